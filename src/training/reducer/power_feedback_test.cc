// PowerSGD with error feedback: the residuals after a step. The step may also fail, be skipped, or be used by other ranks only.
#include <algorithm>
#include <cmath>
#include <limits>

#include "training/reducer/feedback_checkpoint.h"
#include "training/reducer/training_test_support.h"

namespace unisono {
namespace {

using namespace test;

constexpr FeedbackOptions ef14{.kind = Feedback::ef14};
constexpr uint64_t rows = 23, columns = 19, elements = rows * columns;

PowerOptions power(uint32_t rank) {
  return {.rule = {.max_payload_ppm = UINT32_MAX, .min_elements = 0}, .rank = rank, .seed = 5};
}

void fill(Trainers& ranks, uint64_t step) {
  for (size_t r = 0; r < ranks.size(); ++r) ranks.gradients[r] = normals(6, step, static_cast<uint32_t>(r), elements);
}

std::vector<Values> kept(Trainers& ranks) {
  std::vector<Values> all;
  for (size_t r = 0; r < ranks.size(); ++r) all.push_back(ranks.state(r).residual);
  return all;
}

// N times the outputs plus the residuals of all N ranks must equal the sum of the gradients.
TEST(PowerFeedback, conserves_the_sum_of_all_gradients) {
  for (const size_t count : {1u, 2u, 3u, 5u}) {
    Trainers ranks(count, power(2), ef14, rows, columns);
    std::vector<double> sum(elements);
    for (uint64_t step = 0; step < 30; ++step) {
      fill(ranks, step);
      for (const auto& gradient : ranks.gradients) {
        for (size_t k = 0; k < elements; ++k) sum[k] += gradient[k];
      }
      const auto& out = ranks.step(step);  // equal on all ranks
      for (size_t k = 0; k < elements; ++k) sum[k] -= static_cast<double>(count) * out[k];
    }
    for (const auto& residual : kept(ranks)) {
      ASSERT_EQ(residual.size(), elements);
      for (size_t k = 0; k < elements; ++k) sum[k] -= residual[k];
    }
    for (size_t k = 0; k < elements; ++k) ASSERT_NEAR(sum[k], 0, 2e-4) << count << " ranks";
  }
}

TEST(PowerFeedback, residual_is_the_gradient_less_the_average) {
  Trainers ranks(3, power(3), ef14, rows, columns);
  fill(ranks, 0);
  const auto given = ranks.gradients;
  const auto out = ranks.step(0);
  const auto residuals = kept(ranks);
  for (size_t r = 0; r < 3; ++r) {
    for (size_t k = 0; k < elements; ++k) ASSERT_NEAR(residuals[r][k], given[r][k] - out[k], 1e-5);
  }
}

TEST(PowerFeedback, residual_of_a_low_rank_mean_is_the_difference_between_ranks) {
  Trainers ranks(4, power(2), ef14, rows, columns);
  for (uint64_t step = 0; step < 3; ++step) {
    const auto u = normals(3, 0, 0, 2 * rows), v = normals(3, 0, 1, 2 * columns);
    for (auto& gradient : ranks.gradients) {
      gradient.resize(elements);
      for (size_t k = 0; k < elements; ++k)
        gradient[k] = u[k / columns] * v[k % columns] + u[rows + k / columns] * v[columns + k % columns];
    }
    const auto given = ranks.gradients[0];
    const auto& out = ranks.step(step);
    for (size_t k = 0; k < elements; ++k) ASSERT_NEAR(out[k], given[k], 1e-4);
  }
  for (const auto& residual : kept(ranks)) EXPECT_LT(std::sqrt(squared(residual) / elements), 1e-4);
}

TEST(PowerFeedback, none_keeps_nothing) {
  Trainers ranks(2, power(2), {.kind = Feedback::none}, rows, columns);
  fill(ranks, 0), ranks.step(0);
  EXPECT_TRUE(ranks.state(0).residual.empty());
  EXPECT_EQ(ranks.state(0).warm.size(), 2 * columns);
}

// After step_skipped(), residuals are exactly the sums of gradients and old residuals.
TEST(PowerFeedback, keeps_all_values_of_a_skipped_step) {
  Trainers ranks(3, power(2), ef14, rows, columns);
  fill(ranks, 0), ranks.step(0);
  const auto before = kept(ranks);
  fill(ranks, 1);
  auto all = ranks.gradients;
  for (size_t r = 0; r < 3; ++r) {
    for (size_t k = 0; k < elements; ++k) all[r][k] += before[r][k];
  }
  ranks.step(1);
  for (size_t r = 0; r < 3; ++r) ranks[r].step_skipped();
  EXPECT_EQ(kept(ranks), all);
}

TEST(PowerFeedback, does_not_change_in_a_nonfinite_step) {
  Trainers ranks(3, power(2), ef14, rows, columns);
  fill(ranks, 0), ranks.step(0);
  const auto before = kept(ranks);
  const auto warm = ranks.state(0).warm;
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    fill(ranks, 1);
    ranks.gradients[1][17] = bad;
    ranks.begin(1);
    EXPECT_FALSE(ranks.next());
    EXPECT_EQ(kept(ranks), before);
    EXPECT_EQ(ranks.state(2).warm, warm);
  }
  fill(ranks, 2), ranks.step(2);
}

TEST(PowerFeedback, keeps_the_gradients_of_a_failed_step_and_draws_a_new_factor) {
  Trainers ranks(3, power(2), ef14, rows, columns);
  fill(ranks, 0), ranks.step(0);
  for (const int reached : {0, 1, 2}) {
    const auto before = kept(ranks);
    fill(ranks, 1 + reached);
    auto all = ranks.gradients;
    for (size_t r = 0; r < 3; ++r) {
      for (size_t k = 0; k < elements; ++k) all[r][k] += before[r][k];
    }
    ranks.begin(1 + reached);
    EXPECT_TRUE(reached < 1 || ranks.next());
    EXPECT_TRUE(reached < 2 || ranks.finish());
    for (size_t r = 0; r < 3; ++r) ranks[r].abandon();
    EXPECT_EQ(kept(ranks), all) << reached;
    EXPECT_TRUE(ranks.state(0).warm.empty());
  }
}

// Other ranks use the averages of a step. `seen`: this rank has received these averages too.
TEST(PowerFeedback, subtracts_its_contribution_if_others_used_the_step) {
  Trainers ranks(3, power(2), ef14, rows, columns);
  for (const bool seen : {false, true}) {
    fill(ranks, seen);
    const auto before = kept(ranks);
    auto all = ranks.gradients;
    for (size_t r = 0; r < 3 && !before[r].empty(); ++r) {
      for (size_t k = 0; k < elements; ++k) all[r][k] += before[r][k];
    }
    ranks.begin(seen);
    ASSERT_TRUE(ranks.next());
    ASSERT_TRUE(!seen || ranks.finish());
    const auto out = ranks.gradients[0];
    for (size_t r = 0; r < 3; ++r) ranks[r].abandon(), ranks[r].used_by_others();
    const auto after = kept(ranks);
    double taken = 0, sent = 0;
    for (size_t k = 0; k < elements; ++k) {
      for (size_t r = 0; r < 3; ++r) {
        taken += std::pow(all[r][k] - after[r][k], 2);
        ASSERT_TRUE(!seen || std::abs(after[r][k] - (all[r][k] - out[k])) < 1e-5);
      }
      sent += std::pow(out[k], 2);
    }
    EXPECT_GT(taken, 0);
    EXPECT_TRUE(!seen || sent > 0);
  }
}

TEST(PowerFeedback, sends_residuals_in_an_uncompressed_step) {
  Trainers ranks(2, power(1), ef14, rows, columns);
  fill(ranks, 0), ranks.step(0);
  const auto left = kept(ranks);
  for (auto& gradient : ranks.gradients) gradient.assign(elements, 0);
  const auto& out = ranks.step(1, true);
  for (size_t k = 0; k < elements; ++k) ASSERT_NEAR(out[k], (left[0][k] + left[1][k]) / 2, 1e-6);
  EXPECT_TRUE(ranks.state(0).residual.empty());
}

TEST(PowerFeedback, continues_bit_for_bit_from_a_checkpoint) {
  Trainers on(3, power(2), ef14, rows, columns), later(3, power(2), ef14, rows, columns);
  for (uint64_t step = 0; step < 5; ++step) fill(on, step), on.step(step);
  on.settle();
  for (uint32_t r = 0; r < 3; ++r) {
    const auto loaded = decode_checkpoint(encode({.world = 3, .rank = r, .options = 1, .step = 5, .store = on.stores[r]}));
    ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
    later.state(r) = loaded->store.at("w");
  }
  for (uint64_t step = 5; step < 15; ++step) {
    fill(on, step), fill(later, step);
    ASSERT_EQ(on.step(step), later.step(step));
  }
}

TEST(PowerFeedback, refuses_options_that_need_rows) {
  FeedbackStore store;
  for (const FeedbackOptions& options : {FeedbackOptions{.kind = Feedback::ef21m}, {.kind = Feedback::ef14, .lossy = true}}) {
    const auto made =
        ErrorFeedback::make(options, *make_power_sgd(power(2), 0, {{.number = 0, .shape = {rows, columns}}}), {"w"}, store);
    EXPECT_EQ(made.status().code(), Code::invalid);
    EXPECT_NE(made.status().message().find("sends rows"), std::string::npos);
  }
}

TEST(PowerFeedback, digest_depends_on_its_options) {
  const auto usual = digest(power(2), ef14);
  auto seed = power(2), small = power(2);
  seed.seed = 6, small.rule.min_elements = 7;
  EXPECT_NE(digest(power(3), ef14), usual);
  EXPECT_NE(digest(seed, ef14), usual);
  EXPECT_NE(digest(small, ef14), usual);
  EXPECT_NE(digest(power(2), {.kind = Feedback::none}), usual);
  EXPECT_NE(digest(ArcOptions{}, ef14), digest(PowerOptions{}, ef14));
}

}  // namespace
}  // namespace unisono
