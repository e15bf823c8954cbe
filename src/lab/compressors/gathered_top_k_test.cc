#include "lab/compressors/gathered_top_k.h"

#include <cmath>
#include <limits>

#include "compressors/compressor_test_support.h"

namespace unisono {
namespace {

using namespace test;
using Shapes = std::vector<std::vector<uint64_t>>;

GatheredTopKOptions options_of(uint32_t ratio_ppm, bool feedback = true) {
  return {.rule = {.ratio_ppm = ratio_ppm, .max_payload_ppm = UINT32_MAX, .min_elements = 0}, .feedback = feedback};
}

class TopKRanks {
 public:
  TopKRanks(size_t count, const GatheredTopKOptions& options, const Shapes& shapes)
      : gradients(count, std::vector<Values>(shapes.size())) {
    std::vector<GroupTensor> tensors;
    for (const auto& shape : shapes) tensors.push_back({.number = static_cast<uint32_t>(tensors.size()), .shape = shape});
    for (size_t r = 0; r < count; ++r) {
      auto made = GatheredTopK::make(options, tensors);
      EXPECT_TRUE(made.ok()) << made.status().to_string();
      ranks_.push_back(*std::move(made));
    }
  }
  bool step() {
    std::vector<GatheredEntry> gathered;
    std::vector<std::span<float>> dense;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      std::vector<float*> pointers;
      for (auto& tensor : gradients[r]) pointers.push_back(tensor.data());
      const auto entries = ranks_[r]->begin(pointers);
      gathered.insert(gathered.end(), entries.begin(), entries.end());
      dense.push_back(ranks_[r]->dense());
    }
    average(dense);
    size_t good = 0;
    for (const auto& rank : ranks_) good += rank->finish(gathered).ok();
    EXPECT_TRUE(good == 0 || good == ranks_.size());
    return good > 0;
  }
  GatheredTopK& operator[](size_t r) { return *ranks_[r]; }

  std::vector<std::vector<Values>> gradients;

 private:
  std::vector<std::unique_ptr<GatheredTopK>> ranks_;
};

TEST(GatheredTopK, returns_the_mean_of_each_rank_s_largest_elements) {
  TopKRanks ranks(2, options_of(500'000, false), {{2, 3}});
  ranks.gradients = {{{5, -1, 0, 0, -7, 3}}, {{1, 9, -9, 0, 0, 2}}};
  ASSERT_TRUE(ranks.step());
  const Values mean{2.5f, 4.5f, -4.5f, 0, -3.5f, 2.5f};
  EXPECT_EQ(ranks.gradients[0][0], mean);
  EXPECT_EQ(ranks.gradients[1][0], mean);
  EXPECT_TRUE(ranks[0].residual(0).empty());
}

TEST(GatheredTopK, sends_the_lower_index_of_equal_elements) {
  TopKRanks ranks(1, options_of(500'000), {{2, 3}});
  ranks.gradients[0][0] = {1, -2, 2, -2, 2, 1};
  float* const gradients[] = {ranks.gradients[0][0].data()};
  const auto entries = ranks[0].begin(gradients);
  ASSERT_EQ(entries.size(), 3u);
  for (uint32_t i = 0; i < 3; ++i) EXPECT_EQ(entries[i].index, i + 1);
}

TEST(GatheredTopK, a_ratio_near_one_reproduces_nearly_all_elements_and_keeps_zeros) {
  TopKRanks ranks(3, options_of(999'999), {{7, 11}, {1, 13}, {13, 1}});
  for (uint32_t r = 0; r < 3; ++r) ranks.gradients[r] = {normals(1, r, 0, 77), normals(1, r, 1, 13), Values(13)};
  std::vector<Values> means;
  for (size_t t = 0; t < 3; ++t) {
    auto& mean = means.emplace_back(ranks.gradients[0][t].size());
    for (size_t k = 0; k < mean.size(); ++k) {
      for (const auto& gradients : ranks.gradients) mean[k] += gradients[t][k];
      mean[k] /= 3;
    }
  }
  ASSERT_TRUE(ranks.step());
  for (const auto& gradients : ranks.gradients) EXPECT_EQ(gradients, means);
}

TEST(GatheredTopK, feedback_conserves_the_sum_of_all_gradients) {
  for (const size_t count : {1u, 2u, 5u}) {
    const Shapes shapes{{23, 19}, {7}, {5, 3, 7}};
    const size_t elements[] = {437, 7, 105};
    TopKRanks ranks(count, options_of(70'000), shapes);
    std::vector<std::vector<double>> sums;
    for (const size_t each : elements) sums.emplace_back(each);
    for (uint64_t step = 0; step < 30; ++step) {
      for (uint32_t r = 0; r < count; ++r) {
        for (uint32_t t = 0; t < shapes.size(); ++t) {
          const auto& x = ranks.gradients[r][t] = normals(6, step, 10 * r + t, elements[t]);
          for (size_t k = 0; k < x.size(); ++k) sums[t][k] += x[k];
        }
      }
      ASSERT_TRUE(ranks.step());
      for (const auto& gradients : ranks.gradients) ASSERT_EQ(gradients, ranks.gradients[0]);
      for (size_t t = 0; t < shapes.size(); ++t) {
        for (size_t k = 0; k < elements[t]; ++k) sums[t][k] -= static_cast<double>(count) * ranks.gradients[0][t][k];
      }
    }
    for (size_t t = 0; t < shapes.size(); ++t) {
      for (size_t k = 0; k < elements[t]; ++k) {
        double left = 0;
        for (size_t r = 0; r < count; ++r) left += ranks[r].residual(t).empty() ? 0 : ranks[r].residual(t)[k];
        ASSERT_NEAR(left, sums[t][k], 2e-4) << count << " ranks, tensor " << t;
      }
    }
    EXPECT_TRUE(ranks[0].residual(1).empty());  // tensor 1 is sent whole
  }
}

TEST(GatheredTopK, all_ranks_report_a_value_that_is_not_finite_and_keep_their_residuals) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    for (const size_t tensor : {0u, 1u}) {
      TopKRanks ranks(2, options_of(200'000), {{8, 9}, {10}});
      const auto fill = [&](uint64_t step) {
        for (uint32_t r = 0; r < 2; ++r) ranks.gradients[r] = {normals(1, step, r, 72), normals(2, step, r, 10)};
      };
      fill(0);
      ASSERT_TRUE(ranks.step());
      const Values kept(ranks[1].residual(0).begin(), ranks[1].residual(0).end());
      fill(1);
      ranks.gradients[1][tensor][5] = bad;
      EXPECT_FALSE(ranks.step());
      EXPECT_EQ(Values(ranks[1].residual(0).begin(), ranks[1].residual(0).end()), kept);
      fill(2);
      EXPECT_TRUE(ranks.step());
    }
  }
}

TEST(GatheredTopK, refuses_an_index_out_of_range) {
  TopKRanks ranks(1, options_of(500'000), {{2, 3}});
  ranks.gradients[0][0] = {1, 2, 3, 4, 5, 6};
  float* const gradients[] = {ranks.gradients[0][0].data()};
  const auto entries = ranks[0].begin(gradients);
  std::vector<GatheredEntry> gathered(entries.begin(), entries.end());
  gathered.back().index = 6;
  const auto status = ranks[0].finish(gathered);
  EXPECT_EQ(status.code(), Code::corrupt);
  EXPECT_NE(status.message().find("element 6 of a tensor of 6"), std::string::npos) << status.message();
}

TEST(GatheredTopK, refuses_an_invalid_ratio_and_a_tensor_of_2_to_the_32_elements) {
  EXPECT_EQ(GatheredTopK::make(options_of(0), {}).status().code(), Code::invalid);
  const GroupTensor tensors[] = {{.number = 0, .shape = {1u << 16, 1u << 16}}};
  EXPECT_EQ(GatheredTopK::make(options_of(100'000), tensors).status().code(), Code::invalid);
}

}  // namespace
}  // namespace unisono
