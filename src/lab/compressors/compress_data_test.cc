#include "lab/compressors/compress_data.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "compressors/counter_random.h"
#include "testing/temporary_folder.h"

namespace unisono::lab {
namespace {

using Values = std::vector<float>;

Values gradients_of(const GradientPlan& plan, uint32_t rank, uint64_t step) {
  const auto made = Gradients::make(plan, rank);
  EXPECT_TRUE(made.ok()) << made.status().message();
  Values values(plan.elements());
  if (made.ok()) made->fill(step, values);
  return values;
}

GradientPlan plan_for(GradientModel model, double noise) {
  return {.shapes = {{20, 30}, {7}}, .model = model, .noise = noise, .seed = 11, .file = {}};
}

TEST(CompressData, gradients_without_noise_are_equal_on_all_ranks_and_in_all_steps) {
  for (const auto model : {GradientModel::gaussian, GradientModel::decay, GradientModel::rank_one}) {
    const auto plan = plan_for(model, 0);
    EXPECT_EQ(gradients_of(plan, 0, 0), gradients_of(plan, 3, 5));
  }
}

TEST(CompressData, noise_differs_by_rank_and_step) {
  const auto plan = plan_for(GradientModel::decay, 0.5);
  const auto first = gradients_of(plan, 0, 1);
  EXPECT_NE(first, gradients_of(plan, 1, 1));
  EXPECT_NE(first, gradients_of(plan, 0, 2));
  EXPECT_EQ(first, gradients_of(plan, 0, 1));
}

TEST(CompressData, noise_has_the_requested_size_in_each_row) {
  GradientPlan plan{.shapes = {{3, 20'000}}, .model = GradientModel::decay, .noise = 0.5, .seed = 1, .file = {}};
  const auto noisy = gradients_of(plan, 0, 1);
  plan.noise = 0;
  const auto shared = gradients_of(plan, 0, 1);
  for (size_t row = 0; row < 3; ++row) {
    double signal = 0, noise = 0;
    for (size_t k = row * 20'000; k < (row + 1) * 20'000; ++k) {
      signal += double{shared[k]} * shared[k];
      noise += (double{noisy[k]} - shared[k]) * (double{noisy[k]} - shared[k]);
    }
    EXPECT_NEAR(std::sqrt(noise / signal), 0.5, 0.02);
    EXPECT_NEAR(signal / 20'000, 1.0 / static_cast<double>(row + 1), 0.05);
  }
}

// Check 14 of docs/design/methods/arc_top_k.md uses matrices with decaying rows, and matrices of rank one.
TEST(CompressData, rows_decay_and_a_rank_one_matrix_is_a_product) {
  const auto plain = gradients_of(plan_for(GradientModel::gaussian, 0), 0, 0),
             decayed = gradients_of(plan_for(GradientModel::decay, 0), 0, 0),
             product = gradients_of(plan_for(GradientModel::rank_one, 0), 0, 0);
  Values z(600);
  RandomStream{.seed = 11, .purpose = RandomStream::Purpose::test_data}.normals(0, z);
  EXPECT_EQ(Values(plain.begin(), plain.begin() + 600), z);
  for (size_t k = 0; k < 600; ++k) EXPECT_NEAR(decayed[k], plain[k] / std::sqrt(static_cast<double>(k / 30 + 1)), 1e-6);
  for (size_t k = 0; k < 600; ++k)
    EXPECT_NEAR(product[k] * product[31], product[k / 30 * 30 + 1] * product[30 + k % 30], 1e-5) << k;
}

TEST(CompressData, real_gradients_come_from_one_file_or_from_a_file_per_rank) {
  const test::TemporaryFolder folder;
  const auto write = [&](const std::string& name, const Values& values) {
    std::ofstream(folder.path() + "/" + name, std::ios::binary)
        .write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(values.size() * sizeof(float)));
  };
  write("all", {1, 2, 3, 4, 5, 6});
  write("of.1", {6, 5, 4, 3, 2, 1});
  GradientPlan plan{.shapes = {{2, 2}, {2}}, .file = folder.path() + "/all"};
  EXPECT_EQ(gradients_of(plan, 0, 0), (Values{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(gradients_of(plan, 1, 9), (Values{1, 2, 3, 4, 5, 6}));
  plan.file = folder.path() + "/of.{rank}";
  EXPECT_EQ(gradients_of(plan, 1, 0), (Values{6, 5, 4, 3, 2, 1}));
  const auto missing = Gradients::make(plan, 0).status();
  EXPECT_EQ(missing.code(), Code::unavailable);
  EXPECT_NE(missing.message().find("of.0"), std::string::npos) << missing.message();
}

TEST(CompressData, a_file_of_another_size_is_refused_with_both_sizes) {
  const test::TemporaryFolder folder;
  std::ofstream(folder.path() + "/short") << "12345678";
  GradientPlan plan{.shapes = {{3}}, .file = folder.path() + "/short"};
  auto status = Gradients::make(plan, 0).status();
  EXPECT_EQ(status.code(), Code::invalid);
  EXPECT_NE(status.message().find("has 8 bytes; the tensors of --shape have 3 elements of fp32, 12 bytes"), std::string::npos)
      << status.message();
  plan.shapes = {{1}};
  status = Gradients::make(plan, 0).status();
  EXPECT_NE(status.message().find("has more bytes"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace unisono::lab
