// Implements check A9 of docs/design/methods/moshpit.md. The test compares means over many restarts with the expected means.
// With only ten restarts, the means could agree by chance.
#include <gtest/gtest.h>

#include <cmath>
#include <iterator>
#include <string>

#include "lab/averaging/averaging.h"

namespace unisono::sim {
namespace {

using enum AveragingAlgorithm;

struct Expected {
  AveragingAlgorithm algorithm;
  uint32_t peers;
  double rounds[4];  // mean rounds to a variance of 1e-9, for each of expected_absences
  double allowed;    // allowed difference of the mean for 2000 restarts
};
constexpr double expected_absences[] = {0, .001, .005, .01};
constexpr Expected all_expected[] = {
    {random_groups, 512, {6.17, 6.18, 6.39, 6.70}, .06},   {published_grid, 512, {8.32, 8.39, 8.66, 8.96}, .06},
    {published_grid, 1024, {2.00, 3.66, 5.17, 5.89}, .06}, {fitted, 512, {2.000, 3.219, 5.021, 5.795}, .01},
    {fitted, 1024, {2.000, 3.662, 5.180, 5.888}, .01},     {fitted_mid_round, 1024, {2.00, 3.77, 5.52, 6.36}, .12},
    {chunk_keys, 512, {6.85, 6.91, 7.02, 7.24}, .1},       {chunk_keys, 1024, {2.00, 4.17, 5.81, 6.23}, .1}};

double mean_rounds(AveragingSettings settings, uint32_t restarts) {
  double rounds = 0;
  for (settings.seed = 0; settings.seed < restarts; ++settings.seed) {
    settings.cell_seed = averaging_cell_seed + settings.seed;
    const auto outcome = run_averaging(settings);
    EXPECT_TRUE(outcome.ok()) << outcome.status().to_string();
    if (outcome.ok()) rounds += outcome->rounds_to(1e-9);
  }
  return rounds / restarts;
}

// more: added to the allowed difference, for means over fewer than 2000 restarts.
void expect_specified_means(uint32_t restarts, double more) {
  for (const auto& one : all_expected) {
    for (size_t p = 0; p < std::size(expected_absences); ++p) {
      const double rounds =
          mean_rounds({.algorithm = one.algorithm, .peers = one.peers, .absence = expected_absences[p]}, restarts);
      EXPECT_NEAR(rounds, one.rounds[p], one.allowed + more)
          << name(one.algorithm) << ", " << one.peers << " peers, absence " << expected_absences[p] << ", seeds from 0";
    }
  }
}

TEST(AveragingA9, means_over_a_hundred_restarts_are_near_the_specified_ones) { expect_specified_means(100, .35); }
TEST(AveragingA9Long, means_over_two_thousand_restarts_are_the_specified_ones) { expect_specified_means(2000, 0); }

TEST(AveragingA9, the_same_restarts_have_the_same_means_by_average_restarts) {
  constexpr double targets[] = {1e-4, 1e-9};
  const AveragingSettings settings{.peers = 1024, .absence = .005};
  const auto means = average_restarts(settings, {.restarts = 50, .targets = targets});
  ASSERT_TRUE(means.ok());
  EXPECT_DOUBLE_EQ(means->targets[1].rounds, mean_rounds(settings, 50));
  EXPECT_LT(means->targets[0].rounds, means->targets[1].rounds);
  EXPECT_LT(means->targets[0].sent, means->targets[1].sent);
  EXPECT_EQ(means->targets[1].unreached, 0u);
  const auto lost = average_restarts({.algorithm = all_reduce, .absence = .01}, {.restarts = 10, .targets = targets});
  ASSERT_TRUE(lost.ok());
  // AveragingA3 (averaging_test.cc) has the rounds of these ten restarts. Three reach the target, after 26, 40 and 1 rounds;
  // seven do not.
  EXPECT_EQ(lost->targets[1].unreached, 7u);
  EXPECT_EQ(average_restarts(settings, {.restarts = 0}).status().code(), Code::invalid);
}

TEST(Averaging, a_curve_has_the_mean_variance_after_every_round_and_leaves_the_rounds_as_they_were) {
  constexpr double targets[] = {1e-9};
  const AveragingSettings settings{.absence = .005, .seed = 3};
  uint32_t calls = 0;
  const auto curve = average_restarts(settings, {.restarts = 2, .targets = targets, .curve = true}, [&] { ++calls; });
  const auto plain = average_restarts(settings, {.restarts = 2, .targets = targets});
  ASSERT_TRUE(curve.ok() && plain.ok());
  EXPECT_EQ(calls, 2u);
  EXPECT_EQ(curve->targets[0].rounds, plain->targets[0].rounds);
  EXPECT_TRUE(plain->variances.empty());
  ASSERT_EQ(curve->variances.size(), averaging_rounds_cap + 1);
  const auto first = run_averaging(settings), second = run_averaging({.absence = .005, .seed = 4});
  ASSERT_TRUE(first.ok() && second.ok());
  for (size_t t = 0; t < 4; ++t)
    EXPECT_NEAR(curve->variances[t] / ((first->variances[t] + second->variances[t]) / 2), 1, 1e-12);
  // The sample deviation of two numbers is their distance divided by sqrt(2).
  const double a = first->rounds_to(1e-9), b = second->rounds_to(1e-9);
  EXPECT_NEAR(curve->targets[0].deviation, std::abs(a - b) / std::sqrt(2.), 1e-9);
}

}  // namespace
}  // namespace unisono::sim
