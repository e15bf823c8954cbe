#include "lab/loss/loss_law.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "base/concat.h"
#include "lab/loss/loss_run.h"
#include "lossy/estimator.h"
#include "sim/loss_model_test_support.h"
#include "training/sharded/drift.h"

namespace unisono::sim {
namespace {

struct Moments {
  double mean = 0, variance = 0;
};

// Computes mean and variance over every set of arrivals, with the production estimator.
Moments enumerated(const EstimateCase& one) {
  const auto world = static_cast<uint32_t>(one.values.size());
  std::vector<float> values(one.values.begin(), one.values.end());
  std::vector<const std::byte*> messages(world);
  RangeEstimator estimator;
  const WireCodec codec;
  double some = 0, mean = 0, square = 0;
  for (uint32_t mask = 0; mask < 1u << world; ++mask) {
    if (one.estimator != Estimator::count_all && (mask >> one.owner & 1) == 0) continue;
    double chance = 1;
    for (Rank rank = 0; rank < world; ++rank) {
      const bool here = mask >> rank & 1;
      messages[rank] = here ? reinterpret_cast<const std::byte*>(&values[rank]) : nullptr;
      if (rank != one.owner || one.estimator == Estimator::count_all) chance *= here ? 1 - one.losses[rank] : one.losses[rank];
    }
    float result = 0;
    const auto kind = estimator.estimate({.codec = codec,
                                          .contributions = messages,
                                          .own = messages[one.owner],
                                          .owner = one.owner,
                                          .count = 1,
                                          .mean = true,
                                          .estimator = one.estimator,
                                          .on_empty = OnEmpty::hold,
                                          .loss = one.known_loss,
                                          .output = &result});
    if (kind == RangeKind::empty) continue;
    some += chance;
    mean += chance * result;
    square += chance * result * result;
  }
  mean /= some;
  return {mean, square / some - mean * mean};
}

TEST(LossLaw, moments_of_every_estimator_match_an_enumeration_of_arrivals) {
  const std::vector<double> values{1, 2, 4, 8, -3};
  const std::vector<std::vector<double>> losses{{.1, .1, .1, .1, .1}, {.4, .4, .4, .4, .4}, {.1, .4, .2, .7, .05}};
  for (const auto estimator : estimators) {
    for (const auto& loss : losses) {
      for (const Rank owner : {0u, 3u}) {
        SCOPED_TRACE(concat(name(estimator), ", ", loss[1], ", owner ", owner));
        const EstimateCase one{.estimator = estimator, .values = values, .losses = loss, .owner = owner, .known_loss = loss[0]};
        const auto expected = enumerated(one);
        EXPECT_NEAR(estimate_mean(one), expected.mean, 1e-5);
        if (loss[0] == loss[1]) {
          EXPECT_NEAR(estimate_variance(one), expected.variance, 1e-4);
        } else {
          EXPECT_TRUE(std::isnan(estimate_variance(one)));
        }
      }
    }
  }
}

// Check A1 of docs/design/methods/packet_loss.md, for the estimators whose moments are conditional on an arrival.
TEST(LossLaw, moments_are_the_specified_ones) {
  const std::vector<double> values{1, 2, 4, 8}, losses(4, .1);
  const EstimateCase one{.values = values, .losses = losses, .owner = 2};
  EXPECT_NEAR(estimate_mean(one), 3.75, 1e-9);
  EXPECT_NEAR(estimate_variance(one), .472128378378, 1e-9);
  auto all = one;
  all.estimator = Estimator::count_all;
  EXPECT_NEAR(estimate_mean(all), 3.75, 1e-9);
  EXPECT_NEAR(estimate_variance(all), .375225022502, 1e-9);
  EXPECT_NEAR(estimate_variance(one), estimator_variance(Estimator::stratified, values, 2, .1), 1e-9);
}

// Check A3 of docs/design/methods/packet_loss.md. Only `rank` contributes 1, all others 0. So the mean of the estimate is the
// weight of `rank`.
TEST(LossLaw, unequal_links_have_the_specified_weights) {
  const std::vector<double> losses{0, .1, .4};
  const double weights[] = {.333333, .4375, .229167};
  for (Rank rank = 0; rank < 3; ++rank) {
    std::vector<double> values(3);
    values[rank] = 1;
    EXPECT_NEAR(estimate_mean({.values = values, .losses = losses, .owner = 0}), weights[rank], 1e-6);
  }
}

TEST(LossLaw, shares_of_full_short_and_empty_ranges_are_those_of_independent_links) {
  const auto shares = branch_shares(std::vector<double>{.9, .1, .4}, 0);
  EXPECT_NEAR(shares.full, .54, 1e-12);
  EXPECT_NEAR(shares.empty, .04, 1e-12);
  EXPECT_NEAR(shares.reduced, .42, 1e-12);
}

TEST(LossLaw, drift_of_links_that_are_alike_is_that_of_one_loss) {
  for (const double rho : {0., .9}) {
    const DriftCase one{.rho = rho, .world = 5};
    const auto expected = drift_of(loss_model_of("0.2"), one), found = drift_of(loss_model_of("links:p=0.2"), one);
    EXPECT_NEAR(found.owner, expected.owner, 1e-12);
    EXPECT_NEAR(found.pair, expected.pair, 1e-12);
  }
  // Only one of the 12 links loses, with p / (1 - p) = 0.25. O is the mean over the links. P is the mean over 12 pairs of
  // replicas, of which two contain the copy behind this link.
  const auto lossy = drift_of(loss_model_of("links:0>1=0.2"), {.world = 4});
  EXPECT_NEAR(lossy.owner, .25 / 12, 1e-12);
  EXPECT_NEAR(lossy.pair, 2 * .25 / 12, 1e-12);
}

TEST(LossLaw, a_chain_sampled_every_few_moves_is_a_chain) {
  const auto bursts = loss_model_of("gilbert_elliott:p=0.1,burst=8");
  const double memory = std::pow(1 - bursts.fall() - .125, 4);
  const auto found = drift_of(bursts, {.world = 8, .ranges = 2});
  EXPECT_NEAR(found.owner, .1 / (.9 * (1 - memory)), 1e-9);
  // With 200 ranges, a link forgets its state between steps, so the drift is that of independent losses.
  EXPECT_NEAR(drift_of(bursts, {.world = 8, .ranges = 200}).pair, drift_of(loss_model_of("0.1"), {.world = 8}).pair, 1e-12);
  EXPECT_FALSE(forgets_between_steps(bursts, 2));
  EXPECT_TRUE(forgets_between_steps(bursts, 200));
}

TEST(LossLaw, formulae_without_a_derivation_give_nan) {
  EXPECT_TRUE(std::isnan(drift_of(loss_model_of("iid:0.1,dead=0@1"), {.world = 4}).owner));
  EXPECT_TRUE(std::isnan(drift_of(loss_model_of("gilbert_elliott:p=0.1,burst=8,bad=0.5"), {.world = 4, .ranges = 1}).owner));
  EXPECT_TRUE(std::isnan(pair_over_fresh(loss_model_of("chain:p=0.1,recovery=0.25"), {.world = 4})));
  EXPECT_TRUE(std::isnan(drift_of(loss_model_of("0.1"), {.world = 2}).pair));
}

}  // namespace
}  // namespace unisono::sim
