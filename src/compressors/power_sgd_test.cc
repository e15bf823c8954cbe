#include "compressors/power_sgd.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "compressors/compressor_test_support.h"

namespace unisono {
namespace {

using namespace test;
using Shapes = std::vector<std::vector<uint64_t>>;

// Options that compress every tensor with at least two dimensions.
PowerOptions power_options(uint32_t rank) {
  return {.rule = {.max_payload_ppm = UINT32_MAX, .min_elements = 0}, .rank = rank, .seed = 5};
}

// Ranks in one process whose all-reduces are plain sums. Only the warm start is kept between steps. Error feedback is tested in
// training/reducer/power_feedback_test.cc.
class PowerRanks {
 public:
  PowerRanks(size_t count, const PowerOptions& options, const Shapes& shapes)
      : warm(count, std::vector<Values>(shapes.size())) {
    std::vector<GroupTensor> tensors;
    for (uint32_t i = 0; i < shapes.size(); ++i) tensors.push_back({.number = i, .shape = shapes[i]});
    for (size_t r = 0; r < count; ++r) {
      auto made = make_power_sgd(options, 0, tensors);
      EXPECT_TRUE(made.ok()) << made.status().to_string();
      ranks_.push_back(*std::move(made));
    }
    gradients.resize(count, std::vector<Values>(shapes.size()));
  }
  // Runs one step; gradients[rank][tensor] becomes the mean. Returns false if the ranks report a value that is not finite.
  bool step(uint64_t number) {
    std::vector<std::span<float>> buffers;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      std::vector<CompressorInput> inputs;
      for (size_t i = 0; i < warm[r].size(); ++i) inputs.push_back({.values = gradients[r][i].data(), .warm = &warm[r][i]});
      buffers.push_back(ranks_[r]->begin(number, inputs));
    }
    average(buffers);
    size_t good = 0;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      const auto chosen = ranks_[r]->choose();
      const auto values = pointers<const float>(r);
      good += chosen.ok();
      if (chosen.ok()) buffers[r] = ranks_[r]->pack(values);
      else EXPECT_EQ(chosen.code(), Code::corrupt);
    }
    EXPECT_TRUE(good == 0 || good == ranks_.size());
    if (good == 0) return false;
    average(buffers);
    good = 0;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      const bool ok = ranks_[r]->accept().ok();
      good += ok;
      if (ok) ranks_[r]->unpack(pointers<float>(r));
    }
    EXPECT_TRUE(good == 0 || good == ranks_.size());
    return good > 0;
  }
  Compressor& operator[](size_t r) { return *ranks_[r]; }
  size_t size() const { return ranks_.size(); }

  std::vector<std::vector<Values>> gradients, warm;

 private:
  template <typename Value>
  std::vector<Value*> pointers(size_t r) {
    std::vector<Value*> all;
    for (auto& tensor : gradients[r]) all.push_back(tensor.data());
    return all;
  }
  std::vector<std::unique_ptr<Compressor>> ranks_;
};

Values mean_of(const PowerRanks& ranks, size_t tensor) {
  Values mean(ranks.gradients[0][tensor].size());
  for (const auto& gradients : ranks.gradients) {
    for (size_t k = 0; k < mean.size(); ++k) mean[k] += gradients[tensor][k] / static_cast<float>(ranks.size());
  }
  return mean;
}

// Returns ||a - b|| / ||b||.
double distance(const Values& a, const Values& b) {
  Values difference(a);
  for (size_t k = 0; k < a.size(); ++k) difference[k] -= b[k];
  return std::sqrt(squared(difference) / squared(b));
}

// Returns the relative error of one step. On every rank the tensors are independent random matrices.
double error_of(size_t count, const PowerOptions& options, uint64_t rows, uint64_t columns) {
  PowerRanks ranks(count, options, {{rows, columns}});
  for (uint32_t r = 0; r < count; ++r) ranks.gradients[r][0] = normals(2, r, 0, rows * columns);
  const auto mean = mean_of(ranks, 0);
  EXPECT_TRUE(ranks.step(0));
  for (const auto& gradients : ranks.gradients) EXPECT_EQ(gradients, ranks.gradients[0]);
  return distance(ranks.gradients[0][0], mean);
}

TEST(PowerSgd, with_as_many_columns_as_the_matrix_has_reproduces_the_mean) {
  for (const auto& [rows, columns] : {std::pair{16u, 16u}, {31u, 7u}, {7u, 31u}, {13u, 17u}, {1u, 40u}, {40u, 1u}, {1u, 1u}}) {
    EXPECT_LT(error_of(3, power_options(40), rows, columns), 1e-4) << rows << " x " << columns;
  }
}

TEST(PowerSgd, with_fewer_columns_loses_part_of_the_mean) {
  const auto error = error_of(4, power_options(3), 61, 53);
  EXPECT_GT(error, .1);
  EXPECT_LT(error, 1);
}

TEST(PowerSgd, is_exact_for_a_mean_of_rank_one) {
  for (const uint32_t rank : {1u, 2u, 5u}) {
    PowerRanks ranks(4, power_options(rank), {{29, 37}});
    const auto u = normals(3, 0, 0, 29), v = normals(3, 0, 1, 37), apart = normals(3, 0, 2, 29 * 37);
    for (size_t r = 0; r < 4; ++r) {
      for (size_t k = 0; k < apart.size(); ++k)
        // the +- terms cancel: the mean is u v'
        ranks.gradients[r][0].push_back(u[k / 37] * v[k % 37] + (r % 2 == 0 ? apart[k] : -apart[k]));
    }
    const auto mean = mean_of(ranks, 0);
    ASSERT_TRUE(ranks.step(0));
    EXPECT_LT(distance(ranks.gradients[0][0], mean), 1e-5) << "rank " << rank;
  }
}

// With a warm start, repeated steps are a power iteration: the error must fall.
TEST(PowerSgd, improves_its_approximation_of_one_matrix_over_steps) {
  PowerRanks ranks(1, power_options(2), {{40, 30}});
  auto x = normals(4, 0, 0, 1200);
  for (size_t k = 0; k < x.size(); ++k) x[k] /= static_cast<float>(k / 30 + 1);
  std::vector<double> errors;
  for (uint64_t step = 0; step < 6; ++step) {
    ranks.gradients[0][0] = x;
    ASSERT_TRUE(ranks.step(step));
    errors.push_back(distance(ranks.gradients[0][0], x));
  }
  EXPECT_LT(errors.back(), errors.front());
  EXPECT_TRUE(std::is_sorted(errors.rbegin(), errors.rend(), [](double a, double b) { return a < b - 1e-6; }));
}

TEST(PowerSgd, start_factors_depend_on_the_seed) {
  const auto outcome = [](uint64_t seed) {
    auto options = power_options(2);
    options.seed = seed;
    PowerRanks ranks(1, options, {{11, 13}});
    ranks.gradients[0][0] = normals(1, 0, 0, 143);
    EXPECT_TRUE(ranks.step(0));
    return ranks.gradients[0][0];
  };
  EXPECT_EQ(outcome(1), outcome(1));
  EXPECT_NE(outcome(1), outcome(2));
}

TEST(PowerSgd, averages_zeros_and_recovers_from_them) {
  PowerRanks ranks(2, power_options(3), {{11, 13}});
  for (uint64_t step = 0; step < 3; ++step) {
    for (auto& gradients : ranks.gradients) gradients[0].assign(143, 0);
    ASSERT_TRUE(ranks.step(step));
    EXPECT_EQ(ranks.gradients[0][0], Values(143));
  }
  for (auto& gradients : ranks.gradients) gradients[0] = normals(1, 0, 0, 143);
  const auto mean = mean_of(ranks, 0);
  ASSERT_TRUE(ranks.step(3));
  EXPECT_LT(distance(ranks.gradients[1][0], mean), .95);
}

// A matrix of rank 1 leaves six of the seven columns zero. The next step must draw these columns anew.
TEST(PowerSgd, uses_all_columns_again_after_a_low_rank_matrix) {
  PowerRanks ranks(2, power_options(7), {{7, 9}});
  for (auto& gradients : ranks.gradients) gradients[0].assign(63, 1);
  ASSERT_TRUE(ranks.step(0));
  EXPECT_LT(distance(ranks.gradients[0][0], Values(63, 1)), 1e-6);
  for (uint32_t r = 0; r < 2; ++r) ranks.gradients[r][0] = normals(1, r, 0, 63);
  const auto mean = mean_of(ranks, 0);
  ASSERT_TRUE(ranks.step(1));
  EXPECT_LT(distance(ranks.gradients[0][0], mean), 1e-4);
}

TEST(PowerSgd, reports_nonfinite_values_on_all_ranks_and_keeps_its_warm_start) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const size_t tensor : {0u, 1u}) {
      PowerRanks ranks(3, power_options(2), {{8, 9}, {10}});
      const auto fill = [&](uint64_t step) {
        for (uint32_t r = 0; r < 3; ++r) ranks.gradients[r] = {normals(1, step, r, 72), normals(2, step, r, 10)};
      };
      fill(0);
      ASSERT_TRUE(ranks.step(0));
      const auto kept = ranks.warm;
      EXPECT_EQ(kept[0][0].size(), 18u);
      EXPECT_EQ(kept[0][1].size(), 0u);
      fill(1);
      ranks.gradients[1][tensor][5] = bad;
      EXPECT_FALSE(ranks.step(1));
      EXPECT_EQ(ranks.warm, kept);
      fill(2);
      EXPECT_TRUE(ranks.step(2));
    }
  }
}

// subtract_sent() subtracts the average, or this rank's contribution to it. Over all ranks, the contributions must sum to N
// times the average.
TEST(PowerSgd, subtracts_its_contribution) {
  PowerRanks ranks(3, power_options(2), {{23, 19}});
  std::vector<Values> own;
  for (uint32_t r = 0; r < 3; ++r) own.push_back(ranks.gradients[r][0] = normals(1, 0, r, 437));
  ASSERT_TRUE(ranks.step(0));
  std::vector<double> given(437);
  for (size_t r = 0; r < 3; ++r) {
    auto left = own[r];
    ranks[r].subtract_sent(0, left.data(), true);
    for (size_t k = 0; k < left.size(); ++k) EXPECT_NEAR(left[k], own[r][k] - ranks.gradients[r][0][k], 1e-5);
    left = own[r];
    ranks[r].subtract_sent(0, left.data(), false);
    for (size_t k = 0; k < left.size(); ++k) given[k] += own[r][k] - left[k];
  }
  for (size_t k = 0; k < given.size(); ++k) EXPECT_NEAR(given[k], 3 * ranks.gradients[0][0][k], 1e-4);
}

TEST(PowerSgd, averages_the_callers_side_values_with_the_first_factor) {
  auto made = make_power_sgd(power_options(2), 0, {{.number = 0, .shape = {8, 9}}}, 3);
  ASSERT_TRUE(made.ok());
  Values values = normals(1, 0, 0, 72);
  const CompressorInput inputs[] = {{.values = values.data()}};
  const auto first = (*made)->begin(0, inputs);
  EXPECT_EQ(first.size(), 8u * 2 + 3);
  EXPECT_EQ((*made)->side_values().data(), first.data() + 16);
  std::fill((*made)->side_values().begin(), (*made)->side_values().end(), std::numeric_limits<float>::infinity());
  EXPECT_TRUE((*made)->choose().ok());
  EXPECT_TRUE((*make_power_sgd(power_options(2), 0, {{.number = 0, .shape = {9}}}, 3))->side_values().empty());
}

TEST(PowerSgd, rank_of_equal_bytes_matches_rows_and_sketch) {
  const RowRule rule{.ratio_ppm = 200'000, .rank = 4};
  EXPECT_EQ(rank_of_equal_bytes(rule, {4096, 4096}), (820u * 4096 + 4096 * 4) / 8192);
  EXPECT_EQ(rank_of_equal_bytes(rule, {1000, 1}), 4u);
  EXPECT_EQ(rank_of_equal_bytes({.ratio_ppm = 1, .rank = 1}, {1000, 1000}), 1u);
  EXPECT_EQ(rank_of_equal_bytes(rule, {0, 0}), 1u);
  const auto made = make_power_sgd({.rule = rule}, 0, {{.number = 0, .shape = {256, 512}}});
  ASSERT_TRUE(made.ok());
  Values values(256 * 512);
  const CompressorInput inputs[] = {{.values = values.data()}};
  const auto rank = (52 * 512 + 256 * 4) / 768;
  EXPECT_EQ((*made)->begin(0, inputs).size(), 256u * rank);
  const float* const from[] = {values.data()};
  EXPECT_TRUE((*made)->choose().ok());
  EXPECT_EQ((*made)->pack(from).size(), 512u * rank);
}

TEST(PowerSgd, sends_small_and_incompressible_tensors_whole) {
  const auto made = make_power_sgd({.rule = {}, .rank = 4}, 0,
                                   {{.number = 0, .shape = {64, 64}},
                                    {.number = 1, .shape = {5000}},
                                    {.number = 2, .shape = {31, 33}},
                                    {.number = 3, .shape = {0, 7}},
                                    {.number = 4, .shape = {4, 4000}}});
  ASSERT_TRUE(made.ok());
  const Treatment expected[] = {Treatment::compressed, Treatment::dense, Treatment::dense, Treatment::skipped,
                                Treatment::dense};
  for (size_t i = 0; i < std::size(expected); ++i) {
    EXPECT_EQ((*made)->decisions()[i].treatment, expected[i]) << i;
    EXPECT_EQ(*(*made)->decisions()[i].reason == '\0', expected[i] == Treatment::compressed);
  }
}

TEST(PowerSgd, refuses_an_invalid_rule) {
  EXPECT_EQ(make_power_sgd({.rule = {.ratio_ppm = 0}}, 0, {}).status().code(), Code::invalid);
  EXPECT_EQ(make_power_sgd({.rule = {.max_payload_ppm = UINT32_MAX}, .rank = 4'000'000'000}, 0,
                           {{.number = 0, .shape = {1u << 31, 1u << 31}}})
                .status()
                .code(),
            Code::invalid);
}

TEST(PowerSgd, fingerprint_depends_on_step_and_factors) {
  PowerRanks ranks(2, power_options(2), {{8, 9}});
  for (auto& gradients : ranks.gradients) gradients[0] = normals(1, 0, 0, 72);
  ASSERT_TRUE(ranks.step(0));
  const auto first = ranks[0].fingerprint();
  EXPECT_EQ(first, ranks[1].fingerprint());
  ASSERT_TRUE(ranks.step(1));
  EXPECT_NE(first, ranks[0].fingerprint());
  ranks.warm[1][0][3] += 1;  // rank 1 begins with another factor
  ASSERT_TRUE(ranks.step(2));
  EXPECT_NE(ranks[0].fingerprint(), ranks[1].fingerprint());
}

}  // namespace
}  // namespace unisono
