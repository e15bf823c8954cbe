#include "lab/drop_compute/straggler_run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "base/concat.h"

namespace unisono::sim {
namespace {

using Kind = Remedy::Kind;
using Rule = DropOptions::Rule;
using Threshold = DropOptions::Threshold;

DelayModel model_of(const char* text) { return DelayModel::parse(text).value(); }

DropOptions with(Threshold threshold, Rule rule) {
  DropOptions options;
  options.threshold = threshold;
  options.rule = rule;
  return options;
}
DropOptions automatic(Rule rule) { return with(Threshold::automatic, rule); }
// Options with a fixed threshold that applies from the first step on.
DropOptions fixed(double seconds, Rule rule) {
  auto options = with(Threshold::fixed, rule);
  options.seconds = seconds;
  options.warmup_steps = 0;
  return options;
}
Remedy dropping(const DropOptions& options) { return {.kind = Kind::drop_compute, .drop = options}; }

constexpr uint64_t recorded_until = 49;  // with default options: 5 steps for warm-up, 44 for recording

// --- tests with exact results -----------------------------------------------------------------------------------------

TEST(Stragglers, workers_without_a_remedy_gain_nothing) {
  const auto outcome = run_stragglers({.model = model_of("L:mu=1"), .steps = 50}, {});
  EXPECT_EQ(outcome.total, 1);
  EXPECT_EQ(outcome.step, 1);
  EXPECT_EQ(outcome.drop, 0);
  EXPECT_EQ(outcome.step_times.size(), 50u);
  EXPECT_NEAR(outcome.step_mean, outcome.compute_mean + .5, 1e-9);
  EXPECT_EQ(outcome.threshold, 0);
}

TEST(Stragglers, latencies_depend_on_the_seed_and_not_on_the_remedy) {
  StragglerSettings settings{.model = model_of("L:mu=1"), .workers = 3, .micro_batches = 4, .steps = 20, .seed = 7};
  const auto trace = make_trace(settings, 1, 20);
  ASSERT_TRUE(trace.check().ok()) << trace.check().to_string();
  EXPECT_EQ(trace.steps(), 20u);
  const auto none = run_stragglers(settings, {});
  for (size_t i = 0; i < 20; ++i) EXPECT_NEAR(none.step_times[i], static_cast<double>(trace.compute_ns(i)) * 1e-9 + .5, 1e-9);
  const auto later = make_trace(settings, 11, 10);
  EXPECT_TRUE(std::equal(later.ends.begin(), later.ends.end(), trace.ends.begin() + 10 * 3 * 4));
  // Neither a remedy nor additional workers change the times of the first three workers.
  EXPECT_EQ(run_stragglers(settings, dropping(fixed(1e6, Rule::at))).step_times, none.step_times);
  settings.workers = 4;
  const auto wider = make_trace(settings, 1, 1);
  EXPECT_TRUE(std::equal(wider.ends.begin(), wider.ends.begin() + 12, trace.ends.begin()));
  settings.seed = 8;
  EXPECT_NE(make_trace(settings, 1, 1).ends, wider.ends);
}

TEST(Stragglers, steps_before_measured_from_do_not_count) {
  const StragglerSettings settings{.model = model_of("L:mu=1"), .workers = 3, .steps = 30};
  const auto all = run_stragglers(settings, dropping(fixed(16, Rule::after))),
             last = run_stragglers(settings, dropping(fixed(16, Rule::after)), 21);
  ASSERT_EQ(last.step_times.size(), 10u);
  EXPECT_TRUE(std::equal(last.step_times.begin(), last.step_times.end(), all.step_times.begin() + 20));
  EXPECT_EQ(run_stragglers(settings, {}, 31).step_times.size(), 0u);
}

// Dropping begins with step 50, or with step 6 if nothing has to be recorded (docs/design/methods/drop_compute.md).
TEST(Stragglers, workers_drop_nothing_during_warm_up_and_recording) {
  for (const auto rule : {Rule::after, Rule::before, Rule::at}) {
    for (const auto threshold : {Threshold::fixed, Threshold::automatic}) {
      auto options = with(threshold, rule);
      options.seconds = 12;
      const uint64_t quiet = threshold == Threshold::fixed && rule != Rule::before ? 5 : recorded_until;
      StragglerSettings settings{.model = model_of("L:mu=1"), .workers = 16, .steps = quiet};
      SCOPED_TRACE(name_of(dropping(options)));
      EXPECT_EQ(run_stragglers(settings, dropping(options)).drop, 0);
      settings.steps = quiet + 20;
      EXPECT_GT(run_stragglers(settings, dropping(options), quiet + 1).drop, .01);
    }
  }
}

TEST(Stragglers, results_match_the_predictions_from_recorded_times) {
  for (const uint32_t workers : {1u, 2u, 8u}) {
    const StragglerSettings settings{.model = model_of("L:mu=1"), .workers = workers, .steps = 200};
    const auto trace = make_trace(settings, 1, 200);
    for (const double seconds : {3., 11., 16., 17.3, 30.}) {
      SCOPED_TRACE(concat(workers, " workers, ", seconds, " s"));
      const auto expect_same = [](const StragglerOutcome& outcome, const ThresholdValue& value) {
        EXPECT_NEAR(outcome.total, value.total, 1e-9);
        EXPECT_NEAR(outcome.step, value.step, 1e-9);
        EXPECT_NEAR(outcome.drop, value.drop, 1e-12);
      };
      const auto ns = static_cast<int64_t>(std::llround(seconds * 1e9));
      for (const uint32_t lag : {0u, 2u}) {
        auto options = fixed(seconds, Rule::after);
        options.lag = lag;
        expect_same(run_stragglers(settings, dropping(options)), value_of(trace, {.rule = Rule::after, .lag = lag}, ns, .5e9));
      }
      expect_same(run_stragglers(settings, dropping(fixed(seconds, Rule::at))), replayed(trace, ns, .5e9));
      expect_same(run_stragglers(settings, {.kind = Kind::oracle, .drop = fixed(seconds, Rule::at)}),
                  oracle_value(trace, ns, .5e9));
      auto options = fixed(seconds, Rule::before);
      options.calibration_steps = 50;
      const auto last = make_trace(settings, 51, 150);
      expect_same(
          run_stragglers(settings, dropping(options), 51),
          value_of(last, {.rule = Rule::before, .micro_batch_ns = make_trace(settings, 1, 50).micro_batch_ns()}, ns, .5e9));
    }
  }
}

// Check 12 of docs/design/methods/drop_compute.md: worker 7 is twice as slow as the others. Thresholds and gains are exact.
TEST(Stragglers, a_persistent_straggler_is_found_and_named) {
  const StragglerSettings settings{.model = model_of("constant:base=1,slow=7x2"),
                                   .workers = 8,
                                   .micro_batches = 12,
                                   .other = .5,
                                   .steps = recorded_until + 100};
  const struct {
    double max_drop, threshold, gain, drop;
  } specified[] = {{.10, 11, 147. / 80, 1. / 16}, {.05, 14, 1127. / 792, 1. / 24}};
  for (const auto& each : specified) {
    auto options = automatic(Rule::after);
    options.slack = 0;
    options.max_drop = each.max_drop;
    const auto outcome = run_stragglers(settings, dropping(options), recorded_until + 1);
    EXPECT_EQ(outcome.off_reason, "");
    EXPECT_NEAR(outcome.threshold, each.threshold, 1e-9);
    for (const double gain : {outcome.total, outcome.step, outcome.predicted_total, outcome.predicted_step})
      EXPECT_NEAR(gain, each.gain, 1e-9);
    EXPECT_NEAR(outcome.drop, each.drop, 1e-9);
    EXPECT_NEAR(outcome.predicted_drop, each.drop, 1e-9);
    EXPECT_NEAR(outcome.drop_by_worker[7], 8 * each.drop, 1e-9);
    ASSERT_EQ(outcome.warnings.size(), 1u);
    EXPECT_NE(outcome.warnings[0].find("persistent_straggler: worker 7 drops"), std::string::npos) << outcome.warnings[0];
  }
  EXPECT_TRUE(run_stragglers(settings, {}).warnings.empty());
}

TEST(Stragglers, rebalancing_helps_against_a_persistent_straggler_without_drops) {
  const StragglerSettings settings{.model = model_of("constant:base=1,slow=7x2"),
                                   .workers = 8,
                                   .micro_batches = 12,
                                   .other = .5,
                                   .steps = recorded_until + 20};
  const auto outcome = run_stragglers(settings, {.kind = Kind::rebalanced}, recorded_until + 1);
  EXPECT_EQ(outcome.drop, 0);
  // A step takes 12 * 2 s + 0.5 s before rebalancing, and 13 * 1 s + 0.5 s afterwards. The slow worker then has 6
  // micro-batches, the others 12 or 13.
  EXPECT_NEAR(outcome.total, 24.5 / 13.5, 1e-9);
  EXPECT_NEAR(outcome.compute_deviation, 0, 1e-9);
  // The fast worker gets 6 of the 8 micro-batches, so a step takes 6 s. With 5 and 3, the slow worker would take 6.6 s.
  const StragglerSettings pair{
      .model = model_of("constant:base=1,slow=0x2.2"), .workers = 2, .micro_batches = 4, .other = 0, .steps = 50};
  EXPECT_NEAR(run_stragglers(pair, {.kind = Kind::rebalanced}).step_times[44], 6, 1e-9);
  // Even a very slow worker keeps one micro-batch. Until step 44 speeds are unknown, so each worker has 3.
  const StragglerSettings slow{
      .model = model_of("constant:base=1,slow=0x100"), .workers = 2, .micro_batches = 3, .other = 0, .steps = 50};
  const auto least = run_stragglers(slow, {.kind = Kind::rebalanced});
  EXPECT_NEAR(least.step_times[43], 300, 1e-9);
  EXPECT_NEAR(least.step_times[44], 100, 1e-9);
}

TEST(Stragglers, backup_workers_drop_whole_workers) {
  const StragglerSettings settings{
      .model = model_of("constant:base=1,slow=1x2"), .workers = 4, .micro_batches = 12, .other = .5, .steps = 20};
  const auto outcome = run_stragglers(settings, {.kind = Kind::backup, .backups = 1});
  EXPECT_NEAR(outcome.drop, .25, 1e-12);
  EXPECT_NEAR(outcome.total, .75 * 24.5 / 12.5, 1e-9);
  EXPECT_EQ(outcome.drop_by_worker, (std::vector<double>{0, 1, 0, 0}));
  EXPECT_EQ(best_backups(settings), 1u);
  EXPECT_EQ(run_stragglers(settings, {.kind = Kind::backup}).total, 1);
  StragglerSettings other = settings;
  other.other = 100;  // computing is then a small part of a step, so a backup worker costs more than it gains
  EXPECT_EQ(best_backups(other), 0u);
  other = settings;
  other.model = model_of("constant:base=1");
  EXPECT_EQ(best_backups(other), 0u);
}

TEST(Stragglers, random_drops_save_no_time) {
  const StragglerSettings settings{.model = model_of("L:mu=1"), .workers = 8, .steps = 500};
  const auto none = run_stragglers(settings, {}), outcome = run_stragglers(settings, {.kind = Kind::random, .share = .1});
  EXPECT_EQ(outcome.step_times, none.step_times);
  EXPECT_NEAR(outcome.drop, .1, .007);  // five standard deviations of 48,000 draws
  EXPECT_NEAR(outcome.total, 1 - outcome.drop, 1e-12);
  for (const double drop : outcome.drop_by_worker) EXPECT_NEAR(drop, .1, .02);
}

TEST(Stragglers, an_automatic_threshold_drops_nothing_for_one_worker_or_equal_workers) {
  const auto alone = run_stragglers({.model = model_of("L:mu=1"), .workers = 1, .steps = 60}, dropping(automatic(Rule::at)));
  EXPECT_EQ(alone.drop, 0);
  EXPECT_EQ(alone.threshold, 0);
  EXPECT_NE(alone.off_reason, "");
  const auto equal =
      run_stragglers({.model = model_of("constant:base=1"), .workers = 8, .steps = 60}, dropping(automatic(Rule::after)));
  EXPECT_EQ(equal.drop, 0);
  EXPECT_EQ(equal.total, 1);
  EXPECT_NE(equal.off_reason, "");
}

TEST(Stragglers, an_automatic_threshold_gains_what_was_predicted) {
  const StragglerSettings settings{.model = model_of("L:mu=1"), .workers = 16, .steps = recorded_until + 1000};
  for (const auto rule : {Rule::after, Rule::before, Rule::at}) {
    const auto outcome = run_stragglers(settings, dropping(automatic(rule)), recorded_until + 1);
    SCOPED_TRACE(name_of(dropping(automatic(rule))));
    EXPECT_EQ(outcome.off_reason, "");
    EXPECT_GT(outcome.total, 1.08);
    EXPECT_NEAR(outcome.total, outcome.predicted_total, .05 * outcome.total);
    EXPECT_NEAR(outcome.drop, outcome.predicted_drop, .02);
    EXPECT_LE(outcome.predicted_drop, .10);
    EXPECT_TRUE(outcome.warnings.empty());
  }
}

TEST(Stragglers, remedies_have_names) {
  auto lagging = automatic(Rule::after);
  lagging.lag = 2;
  const std::pair<Remedy, const char*> named[] = {{{}, "no remedy"},
                                                  {dropping({}), "threshold off"},
                                                  {dropping(automatic(Rule::before)), "auto, before"},
                                                  {dropping(lagging), "auto, after, lag 2"},
                                                  {dropping(fixed(16.5, Rule::at)), "16.5 s, at"},
                                                  {{.kind = Kind::backup, .backups = 1}, "1 backup worker"},
                                                  {{.kind = Kind::backup, .backups = 14}, "14 backup workers"},
                                                  {{.kind = Kind::oracle, .drop = fixed(16, Rule::at)}, "oracle, 16 s"},
                                                  {{.kind = Kind::rebalanced}, "rebalanced"},
                                                  {{.kind = Kind::random, .share = .075}, "random, 7.5 %"}};
  for (const auto& [remedy, name] : named) EXPECT_EQ(name_of(remedy), name);
}

TEST(Stragglers, progress_is_reported) {
  uint64_t reported = 0;
  run_stragglers({.model = model_of("L:mu=1"), .workers = 2, .steps = 30}, {}, 1, [&](uint64_t steps) { reported = steps; });
  EXPECT_EQ(reported, 30u);
}

// --- simulations of docs/design/methods/drop_compute.md, "Checked values": S within 1.5 %, p within 0.5 points ---------

constexpr double gain_tolerance = .015, drop_tolerance = .005;

// Few workers need more steps: with two workers and 2000 steps, p has a standard deviation of 0.25 points.
StragglerSettings specified(const char* model, uint32_t workers) {
  return {.model = model_of(model),
          .workers = workers,
          .micro_batches = 12,
          .other = .5,
          .steps = std::max(2000u, 40000 / workers),
          .seed = 17};
}

void expect_near(double gain, double specified_gain, double drop, double specified_drop) {
  EXPECT_NEAR(gain, specified_gain, gain_tolerance * specified_gain);
  EXPECT_NEAR(drop, specified_drop, drop_tolerance);
}

// Check 17 of docs/design/methods/drop_compute.md: model L with 2, 16 and 200 workers.
// - compute: mean compute time
// - at_model: S by the model of rule `at`
// - after: S by rule `after`
// - at_carried: S by rule `at`, where a micro-batch that still runs delays the next step
struct PaperCase {
  uint32_t workers;
  double compute, at_model, after, at_carried;
};
void PrintTo(const PaperCase& c, std::ostream* out) { *out << c.workers << " workers"; }

class LongStragglers : public testing::TestWithParam<PaperCase> {};

TEST_P(LongStragglers, paper_model_gains_as_specified_by_the_model_of_rule_at) {
  const auto settings = specified("L:mu=1", GetParam().workers);
  const auto trace = make_trace(settings, 1, settings.steps);
  double compute = 0;
  for (size_t step = 0; step < trace.steps(); ++step) compute += static_cast<double>(trace.compute_ns(step)) * 1e-9;
  EXPECT_NEAR(compute / static_cast<double>(settings.steps), GetParam().compute, gain_tolerance * GetParam().compute);
  const auto value = value_of(trace, {.rule = Rule::at}, 16'000'000'000, .5e9);
  expect_near(value.step, GetParam().at_model, value.drop, .145);
}

TEST_P(LongStragglers, paper_model_gains_as_specified_under_rule_after) {
  const auto outcome = run_stragglers(specified("L:mu=1", GetParam().workers), dropping(fixed(16, Rule::after)));
  expect_near(outcome.step, GetParam().after, outcome.drop, .075);
}

TEST_P(LongStragglers, paper_model_gains_as_specified_under_rule_at_with_rests) {
  const auto outcome = run_stragglers(specified("L:mu=1", GetParam().workers), dropping(fixed(17, Rule::at)));
  expect_near(outcome.total, GetParam().at_carried, outcome.drop, .11);
}

INSTANTIATE_TEST_SUITE_P(Paper, LongStragglers,
                         testing::Values(PaperCase{2, 19.08, 1.009, 1.026, .999}, PaperCase{16, 22.45, 1.189, 1.123, 1.166},
                                         PaperCase{200, 26.05, 1.376, 1.160, 1.348}),
                         [](const auto& tested) { return concat(tested.param.workers, "_workers"); });

// Check 18 of docs/design/methods/drop_compute.md: model G with 200 workers.
TEST(LongNormalStragglers, normal_model_gains_as_specified_by_the_model_of_rule_at) {
  const auto value =
      value_of(make_trace(specified("G:mean=1,sd=0.25", 200), 1, 2000), {.rule = Rule::at}, 11'300'000'000, .5e9);
  expect_near(value.step, 1.1347, value.drop, .100);
}

TEST(LongNormalStragglers, normal_model_gains_as_specified_under_rule_after) {
  const auto earlier = run_stragglers(specified("G:mean=1,sd=0.25", 200), dropping(fixed(10.6, Rule::after)));
  expect_near(earlier.step, 1.0940, earlier.drop, .077);
}

TEST(LongNormalStragglers, normal_model_gains_as_specified_under_rule_after_with_the_threshold_of_rule_at) {
  const auto outcome = run_stragglers(specified("G:mean=1,sd=0.25", 200), dropping(fixed(11.3, Rule::after)));
  EXPECT_NEAR(outcome.step, 1.087, gain_tolerance * 1.087);
}

// Expected values are from docs/design/methods/drop_compute.md, the sentence on backup workers below "Checked values".
TEST(LongBackupStragglers, sixteen_workers_with_one_backup_worker_gain_as_specified) {
  const auto settings = specified("L:mu=1", 16);
  EXPECT_EQ(best_backups(settings), 1u);
  const auto outcome = run_stragglers(settings, {.kind = Kind::backup, .backups = 1});
  expect_near(outcome.total, 1.008, outcome.drop, 1. / 16);
}

TEST(LongBackupStragglers, two_hundred_workers_with_fourteen_backup_workers_gain_as_specified) {
  const auto outcome = run_stragglers(specified("L:mu=1", 200), {.kind = Kind::backup, .backups = 14});
  expect_near(outcome.total, 1.130, outcome.drop, .07);
}

TEST(LongBackupStragglers, two_hundred_workers_gain_most_with_about_fourteen_backup_workers) {
  EXPECT_NEAR(best_backups(specified("L:mu=1", 200)), 14, 3);
}

// Check 24 of docs/design/methods/drop_compute.md: dropping reduces the standard deviation of compute times from 1.98 s to 1.01
// s.
TEST(LongSteadyStragglers, thresholds_reduce_the_deviation_of_step_times) {
  const auto settings = specified("L:mu=1", 8);
  EXPECT_NEAR(run_stragglers(settings, {}).compute_deviation, 1.98, .1);
  EXPECT_NEAR(run_stragglers(settings, dropping(fixed(16, Rule::after))).compute_deviation, 1.01, .05);
}

}  // namespace
}  // namespace unisono::sim
