#include "lab/loss/loss_run.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "base/concat.h"
#include "lab/loss/loss_law.h"
#include "training/sharded/drift.h"

namespace unisono::sim {
namespace {

LossSettings settings_of(const std::string& loss, uint32_t peers, uint64_t steps) {
  LossSettings settings{.steps = steps, .burn_in = steps / 10};
  const auto model = LossModel::parse(loss);
  EXPECT_TRUE(model.ok()) << loss << ": " << model.status().to_string();
  if (model.ok()) settings.ranks.model = *model;
  settings.ranks.peers = peers;
  settings.ranks.seed = 5;
  choose_sizes(settings.ranks);
  return settings;
}

DriftOutcome drift(const LossSettings& settings) {
  auto outcome = run_drift(settings);
  EXPECT_TRUE(outcome.ok()) << outcome.status().to_string();
  return outcome.ok() ? *std::move(outcome) : DriftOutcome{};
}

// Drift in units of sigma_u^2.
double owner_of(const DriftOutcome& outcome) { return outcome.owner.mean() / outcome.update_moment(); }
double pair_of(const DriftOutcome& outcome) { return outcome.pair.mean() / outcome.update_moment(); }

void expect_within(double measured, double expected, double tolerance) {
  EXPECT_NEAR(measured / expected, 1, tolerance) << measured << ", expected " << expected;
}

TEST(LossRun, stratified_and_count_all_are_unbiased_and_the_others_are_not) {
  const auto outcome = run_estimates(settings_of("0.2", 4, 4000));
  ASSERT_TRUE(outcome.ok()) << outcome.status().to_string();
  const auto values = fixed_gradients(4);
  const std::vector<double> losses(4, .2);
  for (size_t i = 0; i < estimators.size(); ++i) {
    SCOPED_TRACE(name(estimators[i]));
    const EstimateCase one{.estimator = estimators[i], .values = values, .losses = losses, .known_loss = .2};
    const auto& of = outcome->of[i];
    const double bias = estimate_mean(one) - 2.5, error = of.deviation.standard_error();
    EXPECT_NEAR(of.deviation.mean(), bias, 5 * error);
    expect_within(of.variance().mean(), estimate_variance(one), .02);
    if (estimators[i] == Estimator::zero_fill) {
      EXPECT_LT(of.variance().standard_error(), .7 * of.square.standard_error()) << "that is about the bias, too";
    }
    const bool unbiased = estimators[i] == Estimator::stratified || estimators[i] == Estimator::count_all;
    EXPECT_EQ(std::abs(of.deviation.mean()) < 5 * error, unbiased) << "a test of unbiasedness fails on the negative controls";
  }
}

// Check A4 of docs/design/methods/packet_loss.md, in simulated runs: probabilities of full, reduced and empty ranges.
TEST(LossRun, ranges_are_full_short_and_empty_as_often_as_they_should_be) {
  const auto outcome = run_estimates(settings_of("0.3", 3, 4000));
  ASSERT_TRUE(outcome.ok());
  EXPECT_NEAR(outcome->empty.mean(), .09, 4 * outcome->empty.standard_error());
  EXPECT_NEAR(outcome->full.mean(), .49, 4 * outcome->full.standard_error());
  EXPECT_NEAR(outcome->reduced.mean(), .42, 4 * outcome->reduced.standard_error());
  EXPECT_NEAR(outcome->loss.mean(), .3, 4 * outcome->loss.standard_error());
  expect_within(outcome->effective, 3 / noise_inflation(Estimator::stratified, 3, .3), .01);
  EXPECT_NEAR(outcome->delivered_ratio, 1, .02);
  const auto unequal = run_estimates(settings_of("links:0>*=0.5", 3, 500));
  ASSERT_TRUE(unequal.ok());
  EXPECT_NEAR(unequal->delivered_ratio, 2, .1);
}

// Checks B1, B2, B3 (means over all pairs), B5 and B6 of docs/design/methods/packet_loss.md. B1 lists more losses than this
// test uses.
TEST(LossRun, drift_is_as_derived) {
  const struct {
    const char* loss;
    double rho, owner, pair;
  } known[] = {{"0.05", 0, .0526, .1003},
               {"0.1", 0, .1111, .2020},
               {"0.4", 0, .6667, .9524},
               {"0.1", .9, 0, .2420},
               {"0.2", .9, 0, .5996}};
  for (const auto& each : known) {
    SCOPED_TRACE(concat(each.loss, ", rho ", each.rho));
    auto settings = settings_of(each.loss, 8, each.rho > 0 ? 3000 : 1000);
    settings.rho = each.rho;
    const auto outcome = drift(settings);
    const double p = settings.ranks.model.loss;
    const DriftCase plain{.world = 8}, correlated{.rho = each.rho, .world = 8};
    const auto one = drift_of(settings.ranks.model, plain), other = drift_of(settings.ranks.model, correlated);
    if (each.rho == 0) {
      EXPECT_NEAR(one.owner, each.owner, 6e-5);
    }
    EXPECT_NEAR(other.pair, each.pair, 6e-5);
    expect_within(outcome.owner.mean(), outcome.compose(other.owner, one.owner), each.rho > 0 ? .1 : .05);
    expect_within(outcome.pair.mean(), outcome.compose(other.pair, one.pair), each.rho > 0 ? .1 : .05);
    expect_within(outcome.pair_mean.mean(), pair_mean(8, outcome.owner.mean(), outcome.pair.mean()), 1e-4);
    expect_within(outcome.consensus.mean(), consensus_distance(8, outcome.owner.mean(), outcome.pair.mean()), 1e-4);
    expect_within(outcome.pair.mean() / outcome.fresh.mean(), paper_form(p), .03);
    const auto growth = mean_of(outcome.pair_growth);
    EXPECT_NEAR(growth.value, 0, student(4.5, outcome.pair.blocks() / 2) * growth.standard_error);
    EXPECT_TRUE(outcome.healed);
  }
}

// Check B3 of docs/design/methods/packet_loss.md: drift after each of the first steps, from equal replicas.
TEST(LossRun, drift_begins_at_zero_and_grows_as_derived) {
  double owner = 0, pairs[3] = {};
  constexpr int seeds = 40;
  for (int seed = 0; seed < seeds; ++seed) {
    auto settings = settings_of("0.2", 8, 3);
    settings.ranks.ranges = 60;  // about 135,000 copies of ranges over all seeds
    settings.ranks.seed = static_cast<uint64_t>(seed);
    const auto outcome = drift(settings);
    ASSERT_EQ(outcome.curve.size(), 3u);
    const double moment = 1 + noise_inflation(Estimator::stratified, 8, .2) / 8;
    for (int step = 0; step < 3; ++step) pairs[step] += outcome.curve[static_cast<size_t>(step)].pair / moment / seeds;
    owner += outcome.curve[1].owner / moment / seeds;
  }
  expect_within(pairs[0], .32, .03);
  expect_within(pairs[1], .3968, .03);
  expect_within(pairs[2], .412672, .03);
  expect_within(owner, .24, .03);
}

// Check B4 of docs/design/methods/packet_loss.md: drift with fetches, with losses that last over steps, and with losses common
// to several receivers.
TEST(LossRun, drift_is_as_derived_where_losses_last_or_are_common_or_copies_are_fetched) {
  auto fetched = settings_of("0.2", 8, 1500);
  fetched.ranks.stale_max = 3;
  const auto outcome = drift(fetched);
  expect_within(owner_of(outcome), .22581, .05);
  expect_within(outcome.fetched.mean(), 6.452e-3, .05);
  EXPECT_EQ(outcome.ages[3], 0u);
  for (const auto& [loss, owner, pair] : {std::tuple{"chain:p=0.1,recovery=0.5", .2, .37333},
                                          {"chain:p=0.1,recovery=0.25", .4, .75429},
                                          {"joint:p=0.1,both=0.05", .1111, .11696}}) {
    SCOPED_TRACE(loss);
    const auto one = drift(settings_of(loss, 8, 2000));
    expect_within(owner_of(one), owner, .05);
    expect_within(pair_of(one), pair, .05);
  }
  auto shards = settings_of("iid:0.1,granularity=shard", 16, 3000);
  expect_within(pair_of(drift(shards)), .2020, .05);
}

TEST(LossRun, bursts_that_last_over_steps_drift_as_the_chain_says) {
  auto settings = settings_of("gilbert_elliott:p=0.1,burst=8", 16, 6000);
  settings.ranks.ranges = 1;
  settings.ranks.elements = 16;
  const auto expected = drift_of(settings.ranks.model, {.world = 16, .ranges = 1});
  const auto outcome = drift(settings);
  EXPECT_GT(expected.owner, .4);
  expect_within(owner_of(outcome), expected.owner, .05);
  expect_within(pair_of(outcome), expected.pair, .05);
}

// Negative control of check B5 of docs/design/methods/packet_loss.md. After t = 1000 steps, P = 2p(1-p) t = 180 and O = p t =
// 100.
TEST(LossRun, differences_drift_without_end_and_never_heal) {
  auto settings = settings_of("0.1", 8, 1000);
  settings.ranks.travel = Travel::differences;
  settings.burn_in = 0;
  const auto outcome = run_drift(settings, {.curve_points = 1000});
  ASSERT_TRUE(outcome.ok());
  expect_within(outcome->curve.back().pair / outcome->update_moment(), 180, .05);
  expect_within(outcome->curve.back().owner / outcome->update_moment(), 100, .05);
  EXPECT_FALSE(outcome->healed);
  const auto growth = mean_of(outcome->pair_growth);
  EXPECT_GT(growth.value, 5 * growth.standard_error);
}

TEST(LossRun, zeros_for_missed_parameters_are_far_worse_than_stale_ones) {
  auto settings = settings_of("0.1", 8, 500);
  const auto stale = drift(settings);
  settings.ranks.missed = Missed::zero;
  EXPECT_GT(drift(settings).owner.mean(), 20 * stale.owner.mean());
}

// Checks C1 and C2 of docs/design/methods/packet_loss.md. With `hold`, training must settle at the same point.
TEST(LossRun, training_settles_at_the_derived_point) {
  const struct {
    const char* loss;
    Rank owner;
    Estimator estimator;
    double value;
  } known[] = {{"0.2", 3, Estimator::stratified, 3.5},     {"0.2", 3, Estimator::count, 3.954667},
               {"0.2", 3, Estimator::zero_fill, 3.823529}, {"0.1", 0, Estimator::stratified, 3.5},
               {"0.1", 0, Estimator::count, 3.3705},       {"0.1", 0, Estimator::zero_fill, 3.405405}};
  for (const auto& each : known) {
    SCOPED_TRACE(std::string(each.loss) + ", " + name(each.estimator));
    auto settings = settings_of(each.loss, 4, 3000);
    settings.burn_in = 500;
    settings.ranks.estimator = each.estimator;
    settings.ranks.on_empty = OnEmpty::own;
    if (each.estimator == Estimator::stratified) settings.ranks.on_empty = OnEmpty::hold;
    const auto outcome = run_fixed_point(settings);
    ASSERT_TRUE(outcome.ok()) << outcome.status().to_string();
    const auto& value = outcome->values[each.owner];
    EXPECT_LT(value.standard_error(), .01);
    EXPECT_NEAR(value.mean(), each.value, 5 * value.standard_error());
  }
}

TEST(LossRun, the_seed_determines_the_results) {
  auto settings = settings_of("gilbert_elliott:p=0.1,burst=4", 4, 50);
  const auto first = drift(settings), again = drift(settings);
  EXPECT_EQ(first.owner.mean(), again.owner.mean());
  EXPECT_EQ(first.noise.mean(), again.noise.mean());
  settings.ranks.seed = 6;
  EXPECT_NE(drift(settings).owner.mean(), first.owner.mean());
}

TEST(LossRun, counts_match_the_losses) {
  auto settings = settings_of("0.3", 3, 40);
  settings.burn_in = 0;
  settings.ranks.ranges = 2;
  const auto outcome = run_estimates(settings);
  ASSERT_TRUE(outcome.ok());
  LossPattern pattern(settings.ranks.model, settings.ranks.seed, {.world = 3, .ranges = 2});
  double lost = 0, empty = 0, full = 0;
  for (uint64_t step = 0; step < 40; ++step) {
    for (Rank owner = 0; owner < 3; ++owner) {
      for (uint32_t range = 0; range < 2; ++range) {
        int missing = 0;
        for (Rank sender = 0; sender < 3; ++sender)
          missing +=
              sender != owner && pattern.lost({.sender = sender, .receiver = owner, .step = step, .phase = 0, .range = range});
        lost += missing;
        empty += missing == 2;
        full += missing == 0;
      }
    }
  }
  EXPECT_NEAR(outcome->loss.mean() * 40 * 12, lost, 1e-9);
  EXPECT_NEAR(outcome->empty.mean() * 40 * 6, empty, 1e-9);
  EXPECT_NEAR(outcome->full.mean() * 40 * 6, full, 1e-9);
}

TEST(LossRun, without_loss_replicas_are_the_owners_values) {
  const auto outcome = drift(settings_of("none", 5, 60));
  EXPECT_EQ(outcome.owner.mean(), 0);
  EXPECT_EQ(outcome.pair.mean(), 0);
  EXPECT_EQ(outcome.ages[0], 60u * 9 / 10 * 20 * settings_of("none", 5, 60).ranks.ranges);
  EXPECT_TRUE(outcome.healed);
}

TEST(LossRun, without_arrivals_all_ranges_are_held_and_deviations_are_empty) {
  auto settings = settings_of("1", 3, 50);
  const auto estimates = run_estimates(settings);
  ASSERT_TRUE(estimates.ok());
  EXPECT_EQ(estimates->empty.mean(), 1);
  EXPECT_TRUE(estimates->of[0].deviation.empty());
  const auto outcome = drift(settings);
  EXPECT_EQ(outcome.owner.mean(), 0);
  EXPECT_EQ(outcome.update_moment(), 0);
  EXPECT_TRUE(outcome.healed) << "held ranges heal, too";
  settings.ranks.on_empty = OnEmpty::own;
  EXPECT_GT(drift(settings).owner.mean(), 1);
}

TEST(LossRun, two_ranks_have_no_pair_of_replicas) {
  const auto outcome = drift(settings_of("0.2", 2, 400));
  EXPECT_TRUE(outcome.pair.empty());
  expect_within(owner_of(outcome), .25, .05);
}

TEST(LossRun, contradictory_settings_are_refused) {
  const auto refused = [](auto change, const char* says) {
    auto settings = settings_of("0.1", 4, 100);
    change(settings);
    const auto outcome = run_drift(settings);
    ASSERT_FALSE(outcome.ok()) << says;
    EXPECT_EQ(outcome.status().code(), Code::invalid);
    EXPECT_NE(outcome.status().message().find(says), std::string::npos) << outcome.status().message();
  };
  refused([](LossSettings& s) { s.ranks.peers = 1; }, "peers must be at least 2");
  refused([](LossSettings& s) { s.burn_in = 100; }, "none is left");
  refused([](LossSettings& s) { s.rho = 1; }, "rho");
  refused([](LossSettings& s) { s.ranks.elements = 100; }, "a multiple of 16");
  refused([](LossSettings& s) { s.ranks.elements = 16, s.ranks.ranges = 2; }, "at least 128");
  refused([](LossSettings& s) { s.ranks.ranges = ~0u, s.ranks.elements = ~0u; }, "more than a simulation can hold");
  refused([](LossSettings& s) { s.ranks.on_empty = OnEmpty::fail; }, "an empty range is held");
  refused([](LossSettings& s) { s.ranks.travel = Travel::differences, s.ranks.stale_max = 2; }, "stale_max means nothing");
  refused([](LossSettings& s) { s.ranks.model.dead.push_back({9, 0, 1}); }, "names rank 9");
}

}  // namespace
}  // namespace unisono::sim
