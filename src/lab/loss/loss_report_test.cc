#include "lab/loss/loss_report.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace unisono::lab {

using cli::svg;

namespace {

LossPlan plan_of(const std::string& loss, uint32_t peers) {
  LossPlan plan;
  plan.settings.ranks.model = *sim::LossModel::parse(loss);
  plan.settings.ranks.peers = peers;
  plan.seeds = {0};
  plan.settings.steps = 10000;
  plan.settings.burn_in = 1000;
  return plan;
}

// Returns statistics in which these block means repeat ten times.
sim::BlockMeans blocks(const std::vector<double>& means) {
  sim::BlockMeans made;
  for (int i = 0; i < 10; ++i) {
    for (const double mean : means) made.add(mean * 1e6, 1e6);
  }
  return made;
}

sim::EstimatesOutcome estimates_of(const std::vector<double>& deviations) {
  sim::EstimatesOutcome outcome;
  for (size_t i = 0; i < deviations.size(); ++i) {
    const double d = deviations[i];
    outcome.of[i] = {blocks({d - 1e-4, d + 1e-4, d, d}), blocks({.02, .02, .02, .02})};
  }
  outcome.full = outcome.reduced = outcome.empty = outcome.loss = blocks({.1, .1, .1, .1});
  outcome.effective = 7;
  return outcome;
}

sim::DriftOutcome drift_of(double owner, double pair) {
  sim::DriftOutcome outcome;
  const auto one = blocks({1, 1, 1, 1});
  outcome.owner = blocks({owner * .999, owner * 1.001, owner, owner});
  outcome.pair = blocks({pair * .999, pair * 1.001, pair, pair});
  outcome.pair_mean = outcome.consensus = outcome.fresh = outcome.age = outcome.fetched = outcome.loss = outcome.noise =
      outcome.update_product = one;
  outcome.update_square = one;
  outcome.ages = {90, 9, 1};
  outcome.curve = {{1, owner, pair}, {2, owner, pair}};
  outcome.owner_growth = outcome.pair_growth = {{0, .01}};
  return outcome;
}

const LossCheck& check_named(const std::vector<LossCheck>& checks, const std::string& what) {
  for (const auto& check : checks) {
    if (check.what == what) return check;
  }
  ADD_FAILURE() << what;
  return checks.front();
}

TEST(LossReport, an_unexpected_bias_is_off_and_an_expected_one_is_a_control) {
  const LossResult result{.plan = plan_of("0.1", 8), .estimates = estimates_of({.05, -.0278, 0, 0, -.2625})};
  const auto checks = checks_of(result);
  EXPECT_EQ(check_named(checks, "deviation of stratified").verdict, CheckVerdict::off);
  EXPECT_EQ(check_named(checks, "deviation of count_all").verdict, CheckVerdict::ok);
  const auto& count = check_named(checks, "deviation of count");
  EXPECT_EQ(count.verdict, CheckVerdict::control);
  EXPECT_EQ(count.note, "biased, as is derived for it");
  EXPECT_NEAR(count.formula, -.0277776, 1e-6);
  EXPECT_EQ(check_named(checks, "variance of zero_fill").verdict, CheckVerdict::off) << "0.02 is not its variance";
  const auto table = table_of(result, checks);
  EXPECT_NE(table.find("OFF"), std::string::npos);
  EXPECT_NE(table.find("# 8 ranks, iid:0.1; stratified, empty ranges: hold\n"), std::string::npos);
}

TEST(LossReport, drift_is_ok_within_the_tolerance_and_off_beyond_it) {
  LossResult result{.plan = plan_of("0.1", 8), .drift = drift_of(.1111, .2020)};
  auto checks = checks_of(result);
  EXPECT_EQ(check_named(checks, "O, owner against replica").verdict, CheckVerdict::ok);
  EXPECT_EQ(check_named(checks, "P, two replicas").verdict, CheckVerdict::ok);
  const auto& paper = check_named(checks, "2p/(1+p), attributed");
  EXPECT_EQ(paper.verdict, CheckVerdict::none);
  EXPECT_EQ(paper.note, "unconfirmed; P is 1.11 times it");
  result.drift = drift_of(.1111, .1818);
  checks = checks_of(result);
  EXPECT_EQ(check_named(checks, "P, two replicas").verdict, CheckVerdict::off)
      << "the form that is attributed is not what replicas do";
  result.drift = drift_of(.1111, .2020);
  result.drift->healed = false;
  EXPECT_EQ(check_named(checks_of(result), "replicas alike after a full step").verdict, CheckVerdict::off);
  result.drift->pair_growth = {{1, .01}};
  EXPECT_EQ(check_named(checks_of(result), "growth of P over the second half").verdict, CheckVerdict::off);
}

TEST(LossReport, too_few_steps_for_the_tolerance_are_unsure) {
  LossResult result{.plan = plan_of("0.1", 8), .drift = drift_of(.1111, .2020)};
  result.drift->owner = blocks({.02, .21, .19, .03});
  EXPECT_EQ(check_named(checks_of(result), "O, owner against replica").verdict, CheckVerdict::unsure);
  result.drift->owner = {};
  result.drift->owner.add(.1111, 1);
  EXPECT_EQ(check_named(checks_of(result), "O, owner against replica").verdict, CheckVerdict::unsure);
}

TEST(LossReport, drift_that_has_not_settled_is_unsure) {
  LossResult result{.plan = plan_of("chain:p=0.1,recovery=0.001", 8), .drift = drift_of(50, 90)};
  const auto checks = checks_of(result);
  const auto& check = check_named(checks, "O, owner against replica");
  EXPECT_EQ(check.verdict, CheckVerdict::unsure);
  EXPECT_TRUE(check.note.starts_with("not settled: needs --burn-in 1000")) << check.note;
  result.plan.settings.ranks.stale_max = 10;
  EXPECT_EQ(check_named(checks_of(result), "O, owner against replica").verdict, CheckVerdict::off)
      << "copies are fetched long before";
}

TEST(LossReport, rare_losses_and_long_bursts_are_unsure) {
  LossResult rare{.plan = plan_of("1e-9", 8), .drift = drift_of(0, 0)};
  rare.drift->owner = blocks({0, 0, 0, 0});
  const auto checks = checks_of(rare);
  EXPECT_EQ(check_named(checks, "share lost of results").verdict, CheckVerdict::unsure);
  EXPECT_EQ(check_named(checks, "share lost of results").note, "too few losses for a verdict");
  const LossResult never{.plan = plan_of("none", 8), .drift = drift_of(.1, .1)};
  EXPECT_EQ(check_named(checks_of(never), "O, owner against replica").verdict, CheckVerdict::off)
      << "without loss nothing may drift";
  const LossResult lasting{.plan = plan_of("gilbert_elliott:p=0.1,burst=1e9", 8), .estimates = estimates_of({.05, 0, 0, 0, 0})};
  EXPECT_EQ(check_named(checks_of(lasting), "deviation of stratified").verdict, CheckVerdict::unsure);
}

TEST(LossReport, ablations_are_negative_controls_and_never_off) {
  LossResult result{.plan = plan_of("0.1", 8), .drift = drift_of(50, 90), .fixed_point = {}};
  result.plan.settings.ranks.travel = sim::Travel::differences;
  result.drift->healed = false;
  for (const auto& check : checks_of(result)) {
    if (check.what.starts_with("share") || check.what.starts_with("noise"))
      continue;  // the ablation does not change links and contributions, so these checks keep their verdicts
    EXPECT_NE(check.verdict, CheckVerdict::off) << check.what;
  }
  EXPECT_EQ(check_named(checks_of(result), "replicas alike after a full step").verdict, CheckVerdict::control);
}

TEST(LossReport, two_ranks_have_no_row_of_pairs) {
  const LossResult result{.plan = plan_of("0.2", 2), .drift = drift_of(.25, .25)};
  for (const auto& check : checks_of(result)) EXPECT_EQ(check.what.find("P, two"), std::string::npos);
  EXPECT_EQ(panels_of(result)[0].series[0].name, "O, owner against replica");
}

TEST(LossReport, fixed_points_follow_the_derivation_for_the_estimator) {
  for (const auto& [estimator, value, verdict] : {std::tuple{Estimator::stratified, 3.5, CheckVerdict::ok},
                                                  {Estimator::stratified, 3.6, CheckVerdict::off},
                                                  {Estimator::count, 3.954667, CheckVerdict::control},
                                                  {Estimator::zero_fill, 3.823529, CheckVerdict::control}}) {
    LossResult result{.plan = plan_of("0.2", 4), .fixed_point = sim::FixedPointOutcome{}};
    result.plan.settings.ranks.estimator = estimator;
    result.plan.settings.ranks.on_empty = OnEmpty::own;
    result.fixed_point->values.assign(4, blocks({value - 1e-3, value + 1e-3, value, value}));
    if (estimator == Estimator::stratified) result.plan.settings.ranks.on_empty = OnEmpty::hold;
    const auto checks = checks_of(result);
    EXPECT_EQ(check_named(checks, "values of rank 3").verdict, verdict);
    if (verdict != CheckVerdict::off) {
      EXPECT_NEAR(check_named(checks, "values of rank 3").formula, value, 1e-5);
    }
  }
}

TEST(LossReport, nan_is_a_dash_in_the_table_and_null_in_json) {
  LossResult result{.plan = plan_of("1", 3), .drift = sim::DriftOutcome{}};
  result.drift->ages = {0, 0, 0};
  result.drift->owner_growth = result.drift->pair_growth = {{std::nan(""), std::nan("")}};
  result.estimates = sim::EstimatesOutcome{};
  const auto checks = checks_of(result);
  const auto text = json_of(result, checks);
  EXPECT_EQ(text.find("nan"), std::string::npos);
  EXPECT_EQ(table_of(result, checks).find("nan"), std::string::npos) << table_of(result, checks);
  EXPECT_EQ(svg(panels_of(result)).find("nan"), std::string::npos);
}

TEST(LossReport, json_has_every_value_one_line_each) {
  const LossResult result{.plan = plan_of("0.1", 8), .drift = drift_of(.1111, .2020)};
  const auto checks = checks_of(result);
  const auto text = json_of(result, checks);
  std::vector<nlohmann::json> lines;
  for (size_t at = 0; at < text.size(); at = text.find('\n', at) + 1)
    lines.push_back(nlohmann::json::parse(text.substr(at, text.find('\n', at) - at)));
  ASSERT_EQ(lines.size(), checks.size() + 3);
  EXPECT_EQ(lines[0]["peers"], 8);
  EXPECT_EQ(lines[0]["loss"], "iid:0.1");
  EXPECT_EQ(lines[1]["what"], "O, owner against replica");
  EXPECT_EQ(lines[1]["verdict"], "ok");
  EXPECT_NEAR(lines[1]["formula"].get<double>(), .111111, 1e-6);
  EXPECT_EQ(lines[lines.size() - 2]["points"][0][0], 1);
  EXPECT_EQ(lines.back()["kind"], "verdict");
}

TEST(LossReport, plots_show_drift_with_its_formulae_and_the_deviations) {
  const LossResult result{
      .plan = plan_of("0.1", 8), .estimates = estimates_of({0, -.0278, 0, 0, -.26}), .drift = drift_of(.1111, .2020)};
  const auto panels = panels_of(result);
  ASSERT_EQ(panels.size(), 2u);
  EXPECT_EQ(panels[0].title, "Drift, 8 ranks, iid:0.1");
  ASSERT_EQ(panels[0].series.size(), 5u);
  EXPECT_NEAR(panels[0].series[2].points[0].y, .2020, 1e-4);
  EXPECT_EQ(panels[1].categories.size(), 5u);
  EXPECT_EQ(panels[1].series[0].points[4].y, -.26);
  EXPECT_EQ(panels[1].series[0].upper[4], 0);
}

}  // namespace
}  // namespace unisono::lab
