#include "compressors/power_sgd.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "compressors/compressor_test_support.h"
#include "compressors/mean_feedback.h"

namespace unisono {
namespace {

using namespace test;
using Shapes = std::vector<std::vector<uint64_t>>;

// Everything is compressed.
PowerOptions power_options(uint32_t rank) {
  return {.rule = {.max_payload_ppm = UINT32_MAX, .min_elements = 0}, .rank = rank, .seed = 5};
}

// Ranks in one process, each with all tensors; all-reduces are sums here.
class PowerRanks {
 public:
  PowerRanks(size_t count, const PowerOptions& options, const Shapes& shapes, bool keeps) {
    std::vector<GroupTensor> tensors;
    for (uint32_t i = 0; i < shapes.size(); ++i) tensors.push_back({.number = i, .shape = shapes[i]});
    for (size_t r = 0; r < count; ++r) {
      auto made = make_power_sgd(options, 0, tensors);
      EXPECT_TRUE(made.ok()) << made.status().to_string();
      ranks_.push_back(std::make_unique<MeanFeedback>(*std::move(made), keeps));
    }
    gradients.resize(count, std::vector<Values>(shapes.size()));
  }
  // By rank and tensor; the means stand there afterwards. False: some rank says that something is not finite; then all do.
  bool step(uint64_t number) {
    std::vector<std::span<float>> buffers;
    for (size_t r = 0; r < ranks_.size(); ++r) buffers.push_back(ranks_[r]->begin(number, pointers(r)));
    average(buffers);
    size_t good = 0;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      const auto chosen = ranks_[r]->choose();
      good += chosen.ok();
      if (chosen.ok()) buffers[r] = ranks_[r]->pack();
      else EXPECT_EQ(chosen.code(), Code::corrupt);
    }
    EXPECT_TRUE(good == 0 || good == ranks_.size());
    if (good == 0) return false;
    average(buffers);
    for (const auto& rank : ranks_) good += rank->finish().ok();
    EXPECT_TRUE(good == ranks_.size() || good == 2 * ranks_.size());
    return good == 2 * ranks_.size();
  }
  const MeanFeedback& operator[](size_t r) const { return *ranks_[r]; }
  size_t size() const { return ranks_.size(); }

  std::vector<std::vector<Values>> gradients;

 private:
  std::vector<float*> pointers(size_t r) {
    std::vector<float*> all;
    for (auto& tensor : gradients[r]) all.push_back(tensor.data());
    return all;
  }
  std::vector<std::unique_ptr<MeanFeedback>> ranks_;
};

Values mean_of(const PowerRanks& ranks, size_t tensor) {
  Values mean(ranks.gradients[0][tensor].size());
  for (const auto& gradients : ranks.gradients) {
    for (size_t k = 0; k < mean.size(); ++k) mean[k] += gradients[tensor][k] / static_cast<float>(ranks.size());
  }
  return mean;
}

// ||a - b|| / ||b||
double distance(const Values& a, const Values& b) {
  Values difference(a);
  for (size_t k = 0; k < a.size(); ++k) difference[k] -= b[k];
  return std::sqrt(squared(difference) / squared(b));
}

// What comes out of one step, where tensors of all ranks are independent.
double error_of(size_t count, const PowerOptions& options, uint64_t rows, uint64_t columns) {
  PowerRanks ranks(count, options, {{rows, columns}}, false);
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

TEST(PowerSgd, of_fewer_columns_loses_something_and_not_all) {
  const auto error = error_of(4, power_options(3), 61, 53);
  EXPECT_GT(error, .1);
  EXPECT_LT(error, 1);
}

TEST(PowerSgd, of_a_mean_of_rank_one_is_exact_with_one_column_and_with_more) {
  for (const uint32_t rank : {1u, 2u, 5u}) {
    PowerRanks ranks(4, power_options(rank), {{29, 37}}, false);
    const auto u = normals(3, 0, 0, 29), v = normals(3, 0, 1, 37), apart = normals(3, 0, 2, 29 * 37);
    for (size_t r = 0; r < 4; ++r) {
      for (size_t k = 0; k < apart.size(); ++k)
        ranks.gradients[r][0].push_back(u[k / 37] * v[k % 37] + (r % 2 == 0 ? apart[k] : -apart[k]));  // the mean is u v'
    }
    const auto mean = mean_of(ranks, 0);
    ASSERT_TRUE(ranks.step(0));
    EXPECT_LT(distance(ranks.gradients[0][0], mean), 1e-5) << "rank " << rank;
  }
}

// The power iteration that the method is named for.
TEST(PowerSgd, finds_more_of_the_same_matrix_from_step_to_step) {
  PowerRanks ranks(1, power_options(2), {{40, 30}}, false);
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

TEST(PowerSgd, begins_alike_for_one_seed_and_otherwise_for_another) {
  const auto outcome = [](uint64_t seed) {
    auto options = power_options(2);
    options.seed = seed;
    PowerRanks ranks(1, options, {{11, 13}}, false);
    ranks.gradients[0][0] = normals(1, 0, 0, 143);
    EXPECT_TRUE(ranks.step(0));
    return ranks.gradients[0][0];
  };
  EXPECT_EQ(outcome(1), outcome(1));
  EXPECT_NE(outcome(1), outcome(2));
}

// Every rank of every step holds the same bits, and nothing is lost: N times what came out and what is left over are what went
// in.
TEST(PowerSgd, with_feedback_conserves_the_sum_of_all_gradients) {
  for (const size_t count : {1u, 2u, 3u, 5u}) {
    const Shapes shapes{{23, 19}, {7}, {1, 31}, {5, 3, 7}};
    auto options = power_options(2);
    options.rule.min_elements = 32;
    PowerRanks ranks(count, options, shapes, true);
    std::vector<std::vector<double>> sums;
    for (const size_t elements : {437u, 7u, 31u, 105u}) sums.emplace_back(elements);
    for (uint64_t step = 0; step < 30; ++step) {
      for (uint32_t r = 0; r < count; ++r) {
        for (uint32_t t = 0; t < shapes.size(); ++t) {
          const auto& x = ranks.gradients[r][t] = normals(6, step, 10 * r + t, sums[t].size());
          for (size_t k = 0; k < x.size(); ++k) sums[t][k] += x[k];
        }
      }
      ASSERT_TRUE(ranks.step(step));
      for (const auto& gradients : ranks.gradients) ASSERT_EQ(gradients, ranks.gradients[0]);
      for (size_t t = 0; t < shapes.size(); ++t) {
        for (size_t k = 0; k < sums[t].size(); ++k) sums[t][k] -= static_cast<double>(count) * ranks.gradients[0][t][k];
      }
    }
    for (size_t t = 0; t < shapes.size(); ++t) {
      for (size_t k = 0; k < sums[t].size(); ++k) {
        double left = 0;
        for (size_t r = 0; r < count; ++r) left += ranks[r].residual(t).empty() ? 0 : ranks[r].residual(t)[k];
        ASSERT_NEAR(left, sums[t][k], 2e-4) << count << " ranks, tensor " << t;
      }
    }
    EXPECT_FALSE(ranks[0].residual(0).empty());
    EXPECT_TRUE(ranks[0].residual(1).empty());  // sent whole
  }
}

TEST(PowerSgd, of_zeros_is_zero_and_not_stuck_there) {
  PowerRanks ranks(2, power_options(3), {{11, 13}}, false);
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

// The columns that a matrix of low rank cannot fill are drawn anew.
TEST(PowerSgd, after_a_matrix_of_low_rank_has_all_its_columns_again) {
  PowerRanks ranks(2, power_options(7), {{7, 9}}, false);
  for (auto& gradients : ranks.gradients) gradients[0].assign(63, 1);
  ASSERT_TRUE(ranks.step(0));
  EXPECT_LT(distance(ranks.gradients[0][0], Values(63, 1)), 1e-6);
  for (uint32_t r = 0; r < 2; ++r) ranks.gradients[r][0] = normals(1, r, 0, 63);
  const auto mean = mean_of(ranks, 0);
  ASSERT_TRUE(ranks.step(1));
  EXPECT_LT(distance(ranks.gradients[0][0], mean), 1e-4);
}

TEST(PowerSgd, says_on_all_ranks_that_something_is_not_finite_and_keeps_what_it_kept) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const size_t tensor : {0u, 1u}) {
      PowerRanks ranks(3, power_options(2), {{8, 9}, {10}}, true);
      const auto fill = [&](uint64_t step) {
        for (uint32_t r = 0; r < 3; ++r) ranks.gradients[r] = {normals(1, step, r, 72), normals(2, step, r, 10)};
      };
      fill(0);
      ASSERT_TRUE(ranks.step(0));
      const Values kept(ranks[1].residual(0).begin(), ranks[1].residual(0).end());
      fill(1);
      ranks.gradients[1][tensor][5] = bad;
      EXPECT_FALSE(ranks.step(1));
      EXPECT_EQ(Values(ranks[1].residual(0).begin(), ranks[1].residual(0).end()), kept);
      fill(2);
      EXPECT_TRUE(ranks.step(2));
    }
  }
}

TEST(PowerSgd, of_equal_bytes_is_as_large_as_rows_and_sketch) {
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

TEST(PowerSgd, sends_whole_what_is_small_or_nearly_as_large_as_its_factors) {
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

TEST(PowerSgd, refuses_a_rule_that_is_none) {
  EXPECT_EQ(make_power_sgd({.rule = {.ratio_ppm = 0}}, 0, {}).status().code(), Code::invalid);
  EXPECT_EQ(make_power_sgd({.rule = {.max_payload_ppm = UINT32_MAX}, .rank = 4'000'000'000}, 0,
                           {{.number = 0, .shape = {1u << 31, 1u << 31}}})
                .status()
                .code(),
            Code::invalid);
}

TEST(PowerSgd, has_one_fingerprint_for_one_step_of_one_group) {
  PowerRanks ranks(2, power_options(2), {{8, 9}}, true);
  for (auto& gradients : ranks.gradients) gradients[0] = normals(1, 0, 0, 72);
  ASSERT_TRUE(ranks.step(0));
  const auto first = ranks[0].compressor().fingerprint();
  EXPECT_EQ(first, ranks[1].compressor().fingerprint());
  ASSERT_TRUE(ranks.step(1));
  EXPECT_NE(first, ranks[0].compressor().fingerprint());
}

}  // namespace
}  // namespace unisono
