// The expected numbers are from docs/design/methods/drop_compute.md, "Checked values".
#include "training/drop_compute/threshold_search.h"

#include <gtest/gtest.h>

#include <cmath>

#include "training/drop_compute/compute_trace_test_support.h"

namespace unisono {
namespace {

using Rule = DropOptions::Rule;
constexpr double exact = 1e-9;

const ComputeTrace& example() {
  static const auto trace = trace_of({{{1, 1, 1}, {1, 2, 3}}, {{2, 1, 1}, {1, 1, 1}}}, second, second);
  return trace;
}

ComputeTrace step_of(const ComputeTrace& trace, size_t step) {
  std::vector<size_t> workers(trace.workers);
  for (size_t i = 0; i < workers.size(); ++i) workers[i] = i;
  return reordered(trace, {step}, workers);
}

// Returns the largest threshold among those with the highest S_step.
ThresholdValue best_of(const std::vector<ThresholdValue>& values) {
  ThresholdValue best{.step = 0};
  for (const auto& value : values) {
    if (value.step >= best.step * (1 - 1e-9)) best = value;
  }
  return best;
}

SearchOptions without_slack(const StopRule& rule, double max_drop = 1) {
  return {.rule = rule, .slack = 0, .max_drop = max_drop};
}

// Check 8 of docs/design/methods/drop_compute.md: values of each threshold.
TEST(ThresholdSearch, values_of_the_documented_example) {
  struct Case {
    double tau, at_1, at_2, at_step, at_drop, at_total, after_1, after_2, after_step, after_drop;
  };
  const Case cases[] = {{1, 7. / 6, 5. / 12, 19. / 24, 3. / 4, 3. / 4, 7. / 6, 5. / 6, 1, 5. / 12},
                        {2, 7. / 6, 5. / 6, 1, 1. / 2, 1, 35. / 24, 25. / 24, 5. / 4, 1. / 6},
                        {2.5, 1, 5. / 7, 6. / 7, 1. / 2, 6. / 7, 35. / 24, 25. / 24, 5. / 4, 1. / 6},
                        {3, 35. / 24, 25. / 24, 5. / 4, 1. / 6, 5. / 4, 1, 1, 1, 0},
                        {4, 7. / 6, 1, 13. / 12, 1. / 12, 11. / 10, 1, 1, 1, 0},
                        {4.5, 35. / 33, 1, 34. / 33, 1. / 12, 22. / 21, 1, 1, 1, 0},
                        {6, 1, 1, 1, 0, 1, 1, 1, 1, 0}};
  const auto first = step_of(example(), 0), last = step_of(example(), 1);
  for (const auto& c : cases) {
    const auto tau = static_cast<int64_t>(c.tau * second);
    const auto at = value_of(example(), {.rule = Rule::at}, tau, second), after = value_of(example(), {}, tau, second);
    EXPECT_EQ(at.threshold_ns, tau);
    EXPECT_NEAR(value_of(first, {.rule = Rule::at}, tau, second).step, c.at_1, exact) << c.tau;
    EXPECT_NEAR(value_of(last, {.rule = Rule::at}, tau, second).step, c.at_2, exact) << c.tau;
    EXPECT_NEAR(at.step, c.at_step, exact) << c.tau;
    EXPECT_NEAR(at.drop, c.at_drop, exact) << c.tau;
    EXPECT_NEAR(at.total, c.at_total, exact) << c.tau;
    EXPECT_NEAR(value_of(first, {}, tau, second).step, c.after_1, exact) << c.tau;
    EXPECT_NEAR(value_of(last, {}, tau, second).step, c.after_2, exact) << c.tau;
    EXPECT_NEAR(after.step, c.after_step, exact) << c.tau;
    EXPECT_NEAR(after.drop, c.after_drop, exact) << c.tau;
  }
}

// Check 8 of docs/design/methods/drop_compute.md: the best threshold of each rule.
TEST(ThresholdSearch, thresholds_of_the_documented_example) {
  const auto at = best_of(sweep(example(), {.rule = Rule::at}, second));
  EXPECT_EQ(at.threshold_ns, 3 * second);
  EXPECT_NEAR(at.step, 5. / 4, exact);
  const auto after = search(example(), without_slack({}));
  EXPECT_EQ(after.best.threshold_ns, 2 * second);
  EXPECT_NEAR(after.best.step, 5. / 4, exact);
  EXPECT_NEAR(after.highest, 5. / 4, exact);
  EXPECT_EQ(after.off, "");
  EXPECT_EQ(after.other_ns, second);
  EXPECT_EQ(after.micro_batch_ns, 1'333'333'333);
  const auto before = search(example(), without_slack({.rule = Rule::before, .micro_batch_ns = 1'333'333'333}));
  EXPECT_NEAR(static_cast<double>(before.best.threshold_ns) / second, 10. / 3, exact);
  EXPECT_NEAR(before.best.step, 5. / 4, exact);
  EXPECT_NEAR(oracle_value(example(), 3 * second + second / 2, second).step, 5. / 4, exact);
  EXPECT_NEAR(oracle_value(example(), 4 * second + second / 2, second).step, 59. / 48, exact);
  const auto lagging = value_of(example(), {.lag = 1}, second, second);
  EXPECT_NEAR(lagging.step, 49. / 48, exact);
  EXPECT_NEAR(lagging.drop, 1. / 12, exact);
}

// Check 9 of docs/design/methods/drop_compute.md: if all times are equal, nothing is dropped.
TEST(ThresholdSearch, with_constant_times_drops_nothing) {
  for (const int64_t other : {0, 1, 700}) {
    const auto trace = trace_of(std::vector(5, std::vector(4, std::vector<int64_t>(6, 3))), 1, other);
    for (const auto& rule :
         {StopRule{}, StopRule{.rule = Rule::before, .micro_batch_ns = 3}, StopRule{.rule = Rule::at}, StopRule{.lag = 2}}) {
      const auto outcome = search(trace, without_slack(rule));
      EXPECT_EQ(outcome.best.drop, 0);
      EXPECT_EQ(outcome.best.step, 1);
      EXPECT_EQ(outcome.best.total, 1);
      EXPECT_EQ(outcome.off.find("gain below min_gain"), 0u) << outcome.off;
      if (other > 0) continue;
      // Without lag, all thresholds have the same S_step, whatever they drop.
      for (const auto& each : outcome.candidates) EXPECT_NEAR(each.step, rule.lag == 0 ? 1 : each.step, exact);
    }
  }
}

// Check 9 of docs/design/methods/drop_compute.md: quotients that are not exact in double must not cause a drop.
TEST(ThresholdSearch, rounding_errors_do_not_decide) {
  for (size_t micro_batches = 2; micro_batches < 60; ++micro_batches) {
    const auto trace = trace_of({std::vector(3, std::vector<int64_t>(micro_batches, 7))}, 1, 0);
    for (const auto rule : {Rule::after, Rule::before, Rule::at})
      EXPECT_EQ(search(trace, without_slack({.rule = rule, .micro_batch_ns = 7})).best.drop, 0) << micro_batches;
  }
}

// Check 11 of docs/design/methods/drop_compute.md. Dropping would speed up a single worker by 26/9. But it is off, because no
// other worker waits.
TEST(ThresholdSearch, with_one_worker_is_off_whatever_the_gain) {
  const auto trace = trace_of({{{1, 1, 10}}}, second, second);
  EXPECT_NEAR(value_of(trace, {.rule = Rule::at}, 2 * second, second).step, 26. / 9, exact);
  const auto outcome = search(trace, without_slack({.rule = Rule::at}));
  EXPECT_GT(outcome.best.total, 2);
  EXPECT_EQ(outcome.off.find("one worker"), 0u) << outcome.off;
}

// Check 12 of docs/design/methods/drop_compute.md: worker 5 of 8 has twice the latency of the others.
TEST(ThresholdSearch, a_worker_that_is_always_slow_is_found) {
  std::vector workers(8, std::vector<int64_t>(12, 2));
  workers[5].assign(12, 4);
  const auto trace = trace_of({workers, workers, workers}, second / 2, second / 2);
  struct Case {
    double max_drop;
    int64_t tau;
    double gain, drop, slow;
  };
  for (const auto& c : {Case{1, 11, 147. / 80, 1. / 16, 0.5}, Case{0.05, 14, 1127. / 792, 1. / 24, 1. / 3}}) {
    const auto outcome = search(trace, without_slack({}, c.max_drop));
    EXPECT_EQ(outcome.off, "");
    EXPECT_EQ(outcome.best.threshold_ns, c.tau * second);
    EXPECT_NEAR(outcome.best.step, c.gain, exact);
    EXPECT_NEAR(outcome.best.drop, c.drop, exact);
    EXPECT_EQ(persistent_straggler(drop_by_worker(trace, {}, outcome.best.threshold_ns)), (PersistentStraggler{5, c.slow, 0}));
  }
}

TEST(ThresholdSearch, persistent_is_more_than_a_quarter_and_more_than_three_times_the_others) {
  const auto found = [](std::vector<double> drops) { return persistent_straggler(drops); };
  EXPECT_FALSE(found({}));
  EXPECT_FALSE(found({0.9}));
  EXPECT_TRUE(found({0, 0.26, 0}));
  EXPECT_FALSE(found({0, 0.25, 0}));
  EXPECT_FALSE(found({0.25, 0.75, 0.25}));
  EXPECT_TRUE(found({0.25, 0.7501, 0.25}));
  EXPECT_EQ(found({0.1, 0.2, 0.5, 0})->worker, 2u);
  EXPECT_NEAR(found({0.1, 0.2, 0.5, 0})->others, 0.1, 1e-12);
  EXPECT_EQ(found({0.9, 0, 0, 0, 0, 0, 0.9})->worker, 0u);
}

// Check 14 of docs/design/methods/drop_compute.md. There are two micro-batches of length 1 or 3, and the threshold is 2. The
// numbers are means over the four cases. The rule `after` computes 3/2 micro-batches of total length 3. The rule `at` computes
// 3/4 micro-batches of total length 3/4.
TEST(ThresholdSearch, rule_after_does_not_favor_fast_micro_batches) {
  double after = 0, after_sum = 0, after_mean = 0, at = 0, at_sum = 0;
  for (const auto& [a, b] : {std::pair{1, 1}, std::pair{1, 3}, std::pair{3, 1}, std::pair{3, 3}}) {
    const int64_t ends[] = {a, a + b};
    const auto sum_of = [&](uint32_t count) { return count == 0 ? 0.0 : static_cast<double>(ends[count - 1]); };
    const auto k = computed_by({}, 2, ends), k_at = computed_by({.rule = Rule::at}, 2, ends);
    after += k / 4.0, after_sum += sum_of(k) / 4, after_mean += sum_of(k) / k / 4;
    at += k_at / 4.0, at_sum += sum_of(k_at) / 4;
  }
  EXPECT_NEAR(after, 3. / 2, exact);
  EXPECT_NEAR(after_sum, 3, exact);
  EXPECT_NEAR(at, 3. / 4, exact);
  EXPECT_NEAR(at_sum, 3. / 4, exact);
  EXPECT_NEAR(after_mean, 9. / 4, exact);
}

// Check 21 of docs/design/methods/drop_compute.md: R = p / (1 - p).
TEST(ThresholdSearch, steps_that_make_up_for_drops) {
  EXPECT_NEAR(extra_steps(0.10), 0.111111, 1e-6);
  EXPECT_NEAR(extra_steps(0.03), 0.030928, 1e-6);
  EXPECT_EQ(extra_steps(0), 0);
  EXPECT_EQ(steps_needed(1000, 0.10), 1112u);
  EXPECT_EQ(steps_needed(1000, 0), 1000u);
  EXPECT_EQ(steps_needed(1000, 0.2), 1250u);
  EXPECT_EQ(steps_needed(1000, 0.9), 10000u);  // 10000, not 10001, although 1 - 0.9 is slightly less than 0.1
  EXPECT_EQ(steps_needed(1000, 1), UINT64_MAX);
}

// Last example of check 20 of docs/design/methods/drop_compute.md: the rest of a running micro-batch delays the next step.
TEST(ThresholdSearch, replay_of_at_carries_over_the_running_micro_batch) {
  const auto trace = trace_of({{{1, 6, 1}}, {{1, 1, 1}}, {{1, 1, 1}}}, second, second);
  const auto value = replayed(trace, 3 * second, second);
  EXPECT_NEAR(value.drop, 5. / 9, exact);  // the three steps compute 1, 0 and 3 micro-batches of 9
  EXPECT_NEAR(value.total, 4. / 9 * 17 / 12, exact);
  EXPECT_NEAR(value.step, (1 * 9. / 4 + 0 + 3 * 4. / 4) / 9, exact);
  // The second micro-batch of the first step ends at 20 s. Each step takes 3 + 1 s. So when the next five steps begin, this
  // micro-batch still needs 16, 12, 8, 4 and 0 s. The first step computes 1 micro-batch, the last step 2, the others none: 3 of
  // 12.
  const auto longer = trace_of({{{1, 19}}, {{1, 1}}, {{1, 1}}, {{1, 1}}, {{1, 1}}, {{1, 1}}}, second, second);
  EXPECT_NEAR(replayed(longer, 3 * second, second).drop, 1 - 3. / 12, exact);
}

TEST(ThresholdSearch, threshold_of_at_is_the_replay_with_the_highest_total_gain) {
  const auto outcome = search(
      example(),
      {.rule = {.rule = Rule::at}, .objective = DropOptions::Objective::step_mean, .slack = 0, .max_drop = 1, .min_gain = 0});
  ASSERT_EQ(outcome.replays.size(), 101u);
  EXPECT_EQ(outcome.replays.front().threshold_ns, 2'400'000'000);
  EXPECT_EQ(outcome.replays[1].threshold_ns, 2'415'000'000);
  EXPECT_EQ(outcome.replays.back().threshold_ns, 3'900'000'000);
  ThresholdValue best{.total = 0};
  for (const auto& each : outcome.replays) {
    EXPECT_EQ(each, replayed(example(), each.threshold_ns, second));
    if (each.total >= best.total * (1 - 1e-9)) best = each;
  }
  EXPECT_EQ(outcome.best, best);
  EXPECT_EQ(outcome.highest, best.total);
}

TEST(ThresholdSearch, takes_the_largest_threshold_that_slack_allows) {
  const auto chosen = [](double slack, double max_drop) {
    return search(example(), {.slack = slack, .max_drop = max_drop, .min_gain = -1}).best.threshold_ns;
  };
  EXPECT_EQ(chosen(0, 1), 2 * second);
  EXPECT_EQ(chosen(0.19, 1), 2 * second);
  // The threshold 6 s drops nothing and has the objective 1. The highest objective is 5/4, and a slack of 0.2 allows 5/4 · (1 -
  // 0.2) = 1.
  EXPECT_EQ(chosen(0.2, 1), 6 * second);
  EXPECT_EQ(chosen(0, 1. / 6), 2 * second);  // 2 s drops exactly 1/6, and a share equal to max_drop is allowed
  EXPECT_EQ(chosen(0, 0.1666), 6 * second);
}

TEST(ThresholdSearch, maximizes_the_given_objective) {
  // A short threshold pays in the short step, but not in the long one. The mean over steps gives both steps the same weight;
  // the total gives the long step more. So the objectives prefer different thresholds.
  const auto trace = trace_of({{{1, 1, 1}, {1, 1, 9}}, {{40, 10, 10}, {30, 30, 30}}}, second, second);
  const auto by = [&](DropOptions::Objective objective) {
    return search(trace, {.objective = objective, .slack = 0, .max_drop = 1, .min_gain = -1}).best;
  };
  const auto mean = by(DropOptions::Objective::step_mean), total = by(DropOptions::Objective::total);
  EXPECT_NE(mean.threshold_ns, total.threshold_ns);
  for (const auto& each : sweep(trace, {}, second)) {
    EXPECT_LE(each.step, mean.step);
    EXPECT_LE(each.total, total.total);
  }
}

TEST(ThresholdSearch, is_off_when_there_is_nothing_to_drop) {
  const auto off = [](const ComputeTrace& trace, const StopRule& rule) {
    return search(trace, without_slack(rule)).off.find("nothing_to_drop") == 0;
  };
  const auto single = trace_of({{{1}, {9}}, {{1}, {9}}}, second, second);
  EXPECT_TRUE(off(single, {}));
  EXPECT_TRUE(off(single, {.rule = Rule::before}));
  EXPECT_FALSE(off(single, {.rule = Rule::at}));
  EXPECT_FALSE(off(example(), {.lag = 1}));
  EXPECT_TRUE(off(example(), {.lag = 2}));
  EXPECT_TRUE(off(example(), {.lag = UINT32_MAX}));
  EXPECT_TRUE(off(example(), {.min_computed = 3}));
  EXPECT_FALSE(off(example(), {.min_computed = 2}));
}

TEST(ThresholdSearch, is_off_below_min_gain_and_gives_the_numbers) {
  const auto outcome = search(example(), {.slack = 0, .max_drop = 1, .min_gain = 0.25});
  EXPECT_EQ(outcome.best.threshold_ns, 2 * second);
  EXPECT_EQ(outcome.off.find("gain below min_gain"), 0u) << outcome.off;
  for (const char* number : {"2 s", "1.2500"}) EXPECT_NE(outcome.off.find(number), outcome.off.npos) << outcome.off;
  EXPECT_EQ(search(example(), {.slack = 0, .max_drop = 1, .min_gain = 0.2499}).off, "");
}

TEST(ThresholdSearch, is_off_when_every_threshold_drops_too_much) {
  // The largest threshold of the grid is the end of the last micro-batch. This one is still dropped, because it does not end
  // before the threshold: 1 of 12.
  const auto outcome = search(example(), {.search = DropOptions::Search::grid, .slack = 0, .max_drop = 0.01});
  EXPECT_EQ(outcome.off.find("no threshold within max_drop"), 0u) << outcome.off;
  EXPECT_NE(outcome.off.find("8.333 %"), outcome.off.npos) << outcome.off;
  EXPECT_EQ(outcome.best, ThresholdValue());
}

TEST(ThresholdSearch, reports_an_invalid_trace) {
  EXPECT_EQ(search({}, {}).off.find("too_few_steps"), 0u);
  auto cut = example();
  cut.ends.pop_back();
  EXPECT_EQ(search(cut, {}).off.find("truncated_trace"), 0u);
}

TEST(ThresholdSearch, grid_is_of_200_evenly_spaced_thresholds) {
  const auto values = grid(example(), second);
  ASSERT_EQ(values.size(), 200u);
  EXPECT_EQ(values.front().threshold_ns, 3 * second);  // the smallest end of a third micro-batch, as there is no sixth
  EXPECT_EQ(values.back().threshold_ns, 6 * second);
  EXPECT_EQ(values[1].threshold_ns, 3 * second + 15'075'377);
  for (const auto& each : values) EXPECT_EQ(each, oracle_value(example(), each.threshold_ns, second));
  const auto found = search(example(), {.search = DropOptions::Search::grid, .slack = 0, .max_drop = 1});
  EXPECT_EQ(found.candidates, values);
  const auto longer = trace_of({{{1, 1, 1, 1, 1, 1, 1, 1}, {2, 2, 2, 2, 2, 2, 2, 2}}}, second, second);
  EXPECT_EQ(grid(longer, second).front().threshold_ns, 6 * second);
}

TEST(ThresholdSearch, an_oracles_steps_end_before_the_threshold) {
  // A micro-batch that ends exactly at the threshold is dropped. If all micro-batches are dropped, the step takes no time.
  EXPECT_NEAR(oracle_value(example(), 3 * second, second).drop, 6. / 12, exact);
  EXPECT_NEAR(oracle_value(example(), 3 * second + 1, second).drop, 2. / 12, exact);
  EXPECT_EQ(oracle_value(example(), second, second).drop, 1);
  EXPECT_EQ(oracle_value(example(), second, second).step, 0);
}

TEST(ThresholdSearch, takes_only_the_options_of_its_rule) {
  DropOptions options;
  options.lag = 2, options.min_computed = 3;
  options.objective = DropOptions::Objective::total, options.search = DropOptions::Search::grid;
  options.slack = 0.1, options.max_drop = 0.2, options.min_gain = 0.3;
  const auto after = search_options(options, example());
  EXPECT_EQ(after.rule, (StopRule{.lag = 2, .min_computed = 3}));
  EXPECT_EQ(after.objective, DropOptions::Objective::total);
  EXPECT_EQ(after.search, DropOptions::Search::grid);
  EXPECT_EQ(std::tuple(after.slack, after.max_drop, after.min_gain), std::tuple(0.1, 0.2, 0.3));
  options.rule = Rule::before;
  EXPECT_EQ(search_options(options, example()).rule,
            (StopRule{.rule = Rule::before, .min_computed = 3, .micro_batch_ns = 1'333'333'333}));
  options.rule = Rule::at;
  EXPECT_EQ(search_options(options, example()).rule, (StopRule{.rule = Rule::at, .min_computed = 0}));
}

TEST(ThresholdSearch, times_beyond_float_precision_are_exact_thresholds) {
  const int64_t large = (int64_t{1} << 53) - 1;
  ComputeTrace trace{
      .workers = 2, .micro_batches = 2, .ends = {large - 2, large, large / 2, large - 1}, .walls = {large + 4, large + 4}};
  std::vector<int64_t> thresholds;
  for (const auto& value : sweep(trace, {}, trace.other_ns())) thresholds.push_back(value.threshold_ns);
  EXPECT_EQ(thresholds, (std::vector<int64_t>{1, large / 2, large - 2, large - 1, large}));
  // Times of 2^60 - 1 ns, the longest that are allowed, must not overflow.
  const int64_t most = (int64_t{1} << 60) - 1;
  trace.ends = {most - 1, most, most, most};
  trace.walls = {most, most};
  ASSERT_TRUE(trace.check().ok());
  for (const auto rule : {Rule::after, Rule::before, Rule::at}) {
    const auto outcome = search(trace, {.rule = {.rule = rule, .micro_batch_ns = trace.micro_batch_ns()}, .max_drop = 1});
    EXPECT_TRUE(outcome.best.step > 0 && outcome.best.step < 3) << outcome.best.step;
    EXPECT_GT(outcome.best.threshold_ns, 0);
  }
}

TEST(ThresholdSearch, accepts_times_of_zero) {
  const auto trace = trace_of({{{0, 0}, {0, 0}}, {{0, 0}, {0, 5}}}, 1, 0);
  for (const auto rule : {Rule::after, Rule::before, Rule::at}) {
    for (const auto& value : sweep(trace, {.rule = rule}, 0)) {
      EXPECT_GE(value.threshold_ns, 1);
      EXPECT_TRUE(std::isfinite(value.step) && std::isfinite(value.total)) << value.step;
      EXPECT_NEAR(value_of(trace, {.rule = rule}, value.threshold_ns, 0).step, value.step, 1e-12 * value.step);
    }
    EXPECT_EQ(search(trace_of({{{0, 0}, {0, 0}}}, 1, 0), without_slack({.rule = rule})).best.step, 1);
  }
}

}  // namespace
}  // namespace unisono
