#include "lab/drop_compute/straggler_run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

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
// From the first step on.
DropOptions fixed(double seconds, Rule rule) {
  auto options = with(Threshold::fixed, rule);
  options.seconds = seconds;
  options.warmup_steps = 0;
  return options;
}
Remedy dropping(const DropOptions& options) { return {.kind = Kind::drop_compute, .drop = options}; }

constexpr uint64_t recorded_until = 49;  // with the usual options: 5 to warm up, 44 to record

// --- what does not depend on chance -----------------------------------------------------------------------------------

TEST(Stragglers, without_a_remedy_gain_nothing) {
  const auto outcome = run_stragglers({.model = model_of("L:mu=1"), .steps = 50}, {});
  EXPECT_EQ(outcome.total, 1);
  EXPECT_EQ(outcome.step, 1);
  EXPECT_EQ(outcome.drop, 0);
  EXPECT_EQ(outcome.step_times.size(), 50u);
  EXPECT_NEAR(outcome.step_mean, outcome.compute_mean + .5, 1e-9);
  EXPECT_EQ(outcome.threshold, 0);
}

TEST(Stragglers, have_the_same_times_whatever_the_remedy_and_others_with_another_seed) {
  StragglerSettings settings{.model = model_of("L:mu=1"), .workers = 3, .micro_batches = 4, .steps = 20, .seed = 7};
  const auto trace = make_trace(settings, 1, 20);
  ASSERT_TRUE(trace.check().ok()) << trace.check().to_string();
  EXPECT_EQ(trace.steps(), 20u);
  const auto none = run_stragglers(settings, {});
  for (size_t i = 0; i < 20; ++i) EXPECT_NEAR(none.step_times[i], static_cast<double>(trace.compute_ns(i)) * 1e-9 + .5, 1e-9);
  const auto later = make_trace(settings, 11, 10);
  EXPECT_TRUE(std::equal(later.ends.begin(), later.ends.end(), trace.ends.begin() + 10 * 3 * 4));
  // Neither remedies nor more workers change the times of these.
  EXPECT_EQ(run_stragglers(settings, dropping(fixed(1e6, Rule::at))).step_times, none.step_times);
  settings.workers = 4;
  const auto wider = make_trace(settings, 1, 1);
  EXPECT_TRUE(std::equal(wider.ends.begin(), wider.ends.begin() + 12, trace.ends.begin()));
  settings.seed = 8;
  EXPECT_NE(make_trace(settings, 1, 1).ends, wider.ends);
}

TEST(Stragglers, are_measured_from_the_step_that_was_asked_for) {
  const StragglerSettings settings{.model = model_of("L:mu=1"), .workers = 3, .steps = 30};
  const auto all = run_stragglers(settings, dropping(fixed(16, Rule::after))),
             last = run_stragglers(settings, dropping(fixed(16, Rule::after)), 21);
  ASSERT_EQ(last.step_times.size(), 10u);
  EXPECT_TRUE(std::equal(last.step_times.begin(), last.step_times.end(), all.step_times.begin() + 20));
  EXPECT_EQ(run_stragglers(settings, {}, 31).step_times.size(), 0u);
}

// 20.
TEST(Stragglers, drop_nothing_while_they_warm_up_and_record) {
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

TEST(Stragglers, come_to_what_is_predicted_of_their_times) {
  for (const uint32_t workers : {1u, 2u, 8u}) {
    const StragglerSettings settings{.model = model_of("L:mu=1"), .workers = workers, .steps = 200};
    const auto trace = make_trace(settings, 1, 200);
    for (const double seconds : {3., 11., 16., 17.3, 30.}) {
      SCOPED_TRACE(std::to_string(workers) + " workers, " + std::to_string(seconds) + " s");
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

// 12.
TEST(Stragglers, one_of_which_is_always_slow_are_found_and_named) {
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
    EXPECT_EQ(outcome.off, "");
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

TEST(Stragglers, one_of_which_is_always_slow_are_rebalanced_without_a_drop) {
  const StragglerSettings settings{.model = model_of("constant:base=1,slow=7x2"),
                                   .workers = 8,
                                   .micro_batches = 12,
                                   .other = .5,
                                   .steps = recorded_until + 20};
  const auto outcome = run_stragglers(settings, {.kind = Kind::rebalanced}, recorded_until + 1);
  EXPECT_EQ(outcome.drop, 0);
  EXPECT_NEAR(outcome.total, 24.5 / 13.5, 1e-9);  // 6 for the slow one, 12 or 13 for the others, instead of 12 that take 24
  EXPECT_NEAR(outcome.compute_deviation, 0, 1e-9);
  // 6 and 2 take 6 s; 5 and 3 would take 6.6.
  const StragglerSettings pair{
      .model = model_of("constant:base=1,slow=0x2.2"), .workers = 2, .micro_batches = 4, .other = 0, .steps = 50};
  EXPECT_NEAR(run_stragglers(pair, {.kind = Kind::rebalanced}).step_times[44], 6, 1e-9);
  // One for each, however slow it is; and as before until speeds are known.
  const StragglerSettings slow{
      .model = model_of("constant:base=1,slow=0x100"), .workers = 2, .micro_batches = 3, .other = 0, .steps = 50};
  const auto least = run_stragglers(slow, {.kind = Kind::rebalanced});
  EXPECT_NEAR(least.step_times[43], 300, 1e-9);
  EXPECT_NEAR(least.step_times[44], 100, 1e-9);
}

TEST(Stragglers, are_left_out_whole_with_backup_workers) {
  const StragglerSettings settings{
      .model = model_of("constant:base=1,slow=1x2"), .workers = 4, .micro_batches = 12, .other = .5, .steps = 20};
  const auto outcome = run_stragglers(settings, {.kind = Kind::backup, .backups = 1});
  EXPECT_NEAR(outcome.drop, .25, 1e-12);
  EXPECT_NEAR(outcome.total, .75 * 24.5 / 12.5, 1e-9);
  EXPECT_EQ(outcome.drop_by_worker, (std::vector<double>{0, 1, 0, 0}));
  EXPECT_EQ(best_backups(settings), 1u);
  EXPECT_EQ(run_stragglers(settings, {.kind = Kind::backup}).total, 1);
  StragglerSettings other = settings;
  other.other = 100;  // little is gained where computing is a small part of a step
  EXPECT_EQ(best_backups(other), 0u);
  other = settings;
  other.model = model_of("constant:base=1");
  EXPECT_EQ(best_backups(other), 0u);
}

TEST(Stragglers, whose_micro_batches_are_dropped_by_lot_take_as_long_as_before) {
  const StragglerSettings settings{.model = model_of("L:mu=1"), .workers = 8, .steps = 500};
  const auto none = run_stragglers(settings, {}), outcome = run_stragglers(settings, {.kind = Kind::random, .share = .1});
  EXPECT_EQ(outcome.step_times, none.step_times);
  EXPECT_NEAR(outcome.drop, .1, .007);  // 48 000 lots: five deviations
  EXPECT_NEAR(outcome.total, 1 - outcome.drop, 1e-12);
  for (const double drop : outcome.drop_by_worker) EXPECT_NEAR(drop, .1, .02);
}

TEST(Stragglers, that_are_alone_or_equal_drop_nothing_by_themselves) {
  const auto alone = run_stragglers({.model = model_of("L:mu=1"), .workers = 1, .steps = 60}, dropping(automatic(Rule::at)));
  EXPECT_EQ(alone.drop, 0);
  EXPECT_EQ(alone.threshold, 0);
  EXPECT_NE(alone.off, "");
  const auto equal =
      run_stragglers({.model = model_of("constant:base=1"), .workers = 8, .steps = 60}, dropping(automatic(Rule::after)));
  EXPECT_EQ(equal.drop, 0);
  EXPECT_EQ(equal.total, 1);
  EXPECT_NE(equal.off, "");
}

TEST(Stragglers, gain_what_was_predicted_by_themselves) {
  const StragglerSettings settings{.model = model_of("L:mu=1"), .workers = 16, .steps = recorded_until + 1000};
  for (const auto rule : {Rule::after, Rule::before, Rule::at}) {
    const auto outcome = run_stragglers(settings, dropping(automatic(rule)), recorded_until + 1);
    SCOPED_TRACE(name_of(dropping(automatic(rule))));
    EXPECT_EQ(outcome.off, "");
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

TEST(Stragglers, progress_is_told) {
  uint64_t told = 0;
  run_stragglers({.model = model_of("L:mu=1"), .workers = 2, .steps = 30}, {}, 1, [&](uint64_t steps) { told = steps; });
  EXPECT_EQ(told, 30u);
}

// --- the specified simulations: S within 1.5 %, p within 0.5 points -----------------------------------------------------

constexpr double gain_tolerance = .015, drop_tolerance = .005;

// With two workers, the share that is dropped in 2000 steps has a deviation of 0.25 points by itself.
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

// 17.
struct PaperCase {
  uint32_t workers;
  double compute, at_model, after, at_carried;
};
void PrintTo(const PaperCase& c, std::ostream* out) { *out << c.workers << " workers"; }

class LongStragglers : public testing::TestWithParam<PaperCase> {};

TEST_P(LongStragglers, of_the_paper_by_the_model_of_the_rule_at) {
  const auto settings = specified("L:mu=1", GetParam().workers);
  const auto trace = make_trace(settings, 1, settings.steps);
  double compute = 0;
  for (size_t step = 0; step < trace.steps(); ++step) compute += static_cast<double>(trace.compute_ns(step)) * 1e-9;
  EXPECT_NEAR(compute / static_cast<double>(settings.steps), GetParam().compute, gain_tolerance * GetParam().compute);
  const auto value = value_of(trace, {.rule = Rule::at}, 16'000'000'000, .5e9);
  expect_near(value.step, GetParam().at_model, value.drop, .145);
}

TEST_P(LongStragglers, of_the_paper_by_the_rule_after) {
  const auto outcome = run_stragglers(specified("L:mu=1", GetParam().workers), dropping(fixed(16, Rule::after)));
  expect_near(outcome.step, GetParam().after, outcome.drop, .075);
}

TEST_P(LongStragglers, of_the_paper_by_the_rule_at_with_what_is_left) {
  const auto outcome = run_stragglers(specified("L:mu=1", GetParam().workers), dropping(fixed(17, Rule::at)));
  expect_near(outcome.total, GetParam().at_carried, outcome.drop, .11);
}

INSTANTIATE_TEST_SUITE_P(Paper, LongStragglers,
                         testing::Values(PaperCase{2, 19.08, 1.009, 1.026, .999}, PaperCase{16, 22.45, 1.189, 1.123, 1.166},
                                         PaperCase{200, 26.05, 1.376, 1.160, 1.348}),
                         [](const auto& tested) { return std::to_string(tested.param.workers) + "_workers"; });

// 18.
TEST(LongNormalStragglers, by_the_model_of_the_rule_at) {
  const auto value =
      value_of(make_trace(specified("G:mean=1,sd=0.25", 200), 1, 2000), {.rule = Rule::at}, 11'300'000'000, .5e9);
  expect_near(value.step, 1.1347, value.drop, .100);
}

TEST(LongNormalStragglers, by_the_rule_after) {
  const auto earlier = run_stragglers(specified("G:mean=1,sd=0.25", 200), dropping(fixed(10.6, Rule::after)));
  expect_near(earlier.step, 1.0940, earlier.drop, .077);
}

TEST(LongNormalStragglers, by_the_rule_after_with_the_models_threshold) {
  const auto outcome = run_stragglers(specified("G:mean=1,sd=0.25", 200), dropping(fixed(11.3, Rule::after)));
  EXPECT_NEAR(outcome.step, 1.087, gain_tolerance * 1.087);
}

// The sentence on backup workers in docs/design/methods/drop_compute.md, "Checked values".
TEST(LongBackupStragglers, sixteen_with_one_backup_worker) {
  const auto settings = specified("L:mu=1", 16);
  EXPECT_EQ(best_backups(settings), 1u);
  const auto outcome = run_stragglers(settings, {.kind = Kind::backup, .backups = 1});
  expect_near(outcome.total, 1.008, outcome.drop, 1. / 16);
}

TEST(LongBackupStragglers, two_hundred_with_fourteen_backup_workers) {
  const auto outcome = run_stragglers(specified("L:mu=1", 200), {.kind = Kind::backup, .backups = 14});
  expect_near(outcome.total, 1.130, outcome.drop, .07);
}

TEST(LongBackupStragglers, two_hundred_have_their_best_near_fourteen) {
  EXPECT_NEAR(best_backups(specified("L:mu=1", 200)), 14, 3);
}

// Check 24 of docs/design/methods/drop_compute.md.
TEST(LongSteadyStragglers, steps_take_less_different_times) {
  const auto settings = specified("L:mu=1", 8);
  EXPECT_NEAR(run_stragglers(settings, {}).compute_deviation, 1.98, .1);
  EXPECT_NEAR(run_stragglers(settings, dropping(fixed(16, Rule::after))).compute_deviation, 1.01, .05);
}

}  // namespace
}  // namespace unisono::sim
