// Tests how dropping micro-batches affects stochastic gradient descent: check 15 of docs/design/methods/drop_compute.md, with
// the formulae of its section "Convergence".
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/concat.h"
#include "base/random.h"

namespace unisono::sim {
namespace {

constexpr uint32_t samples_max = 96, steps = 200;
constexpr double start = 5;  // initial distance to the minimum, |theta(1) - theta*|

double standard_normal(Random& random) {
  return std::sqrt(-2 * std::log(1 - random.unit())) * std::cos(2 * std::numbers::pi * random.unit());
}

double computed_expected(double drop) { return steps * samples_max * (1 - drop); }

// The step size of the convex bound: min(1 / (2 L b_max), D / (s sqrt K)), with L = s = 1.
double step_size(double drop) { return std::min(1 / (2. * samples_max), start / std::sqrt(computed_expected(drop))); }

double bound(double drop) {
  const double computed = computed_expected(drop);
  return 2 * samples_max * start * start / computed + 2 * start / std::sqrt(computed);
}

// Minimises f(theta) = theta^2 / 2; the gradient of a sample is theta + N(0, 1). Returns the weighted mean of f over the steps.
// f is taken before the step, and its weight is the step's number of samples.
double gap(double drop, uint64_t seed) {
  Random random(seed);
  double theta = start, sum = 0, all = 0;
  for (uint32_t i = 0; i < steps; ++i) {
    uint32_t computed = 0;
    for (uint32_t sample = 0; sample < samples_max; ++sample) computed += random.chance(1 - drop);
    sum += computed * theta * theta / 2;
    all += computed;
    theta -= step_size(drop) * (computed * theta + std::sqrt(computed) * standard_normal(random));
  }
  return sum / all;
}

TEST(DropConvergence, the_loss_is_as_expected_and_within_the_bound) {
  const struct {
    double drop, expected, bound;
  } specified[] = {{0, .08506, .322169}, {.1, .09130, .353850}, {.3, .10989, .443401}};
  constexpr uint64_t seeds = 500;
  for (const auto& each : specified) {
    SCOPED_TRACE(concat("p ", each.drop, ", seeds 1 to 500"));
    EXPECT_DOUBLE_EQ(step_size(each.drop), 1. / 192);
    EXPECT_NEAR(bound(each.drop), each.bound, 1e-6);
    double mean = 0;
    for (uint64_t seed = 1; seed <= seeds; ++seed) mean += gap(each.drop, seed) / seeds;
    EXPECT_NEAR(mean, each.expected, .03 * each.expected);
    EXPECT_LT(mean, each.bound);
  }
}

}  // namespace
}  // namespace unisono::sim
