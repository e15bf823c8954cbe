#include "training/drop_compute/drop_controller.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace unisono {
namespace {

using Rule = DropOptions::Rule;
using Verdict = DropController::Verdict;
using enum DropController::Verdict;

constexpr StopRule after{.rule = Rule::after}, at{.rule = Rule::at};

StopRule after_with(uint32_t lag, uint32_t min_computed = 1) {
  return {.rule = Rule::after, .lag = lag, .min_computed = min_computed};
}
StopRule before_with(int64_t micro_batch_ns, uint32_t min_computed = 1) {
  return {.rule = Rule::before, .min_computed = min_computed, .micro_batch_ns = micro_batch_ns};
}

constexpr int64_t start = 1'000'000;  // start time of each step in these tests

struct Step {
  explicit Step(const StopRule& rule, const DropController::StepOptions& options)
      : controller(8), first(controller.begin(rule, options, start)) {}
  Verdict done(int64_t elapsed) { return controller.micro_batch_done(start + elapsed); }
  Verdict timer(int64_t elapsed) { return controller.timer(start + elapsed); }
  bool should_stop(int64_t elapsed) const { return controller.should_stop(start + elapsed); }

  DropController controller;
  Verdict first;
};

// Returns how many micro-batches are computed, given their end times.
uint32_t computed(const StopRule& rule, int64_t threshold, const std::vector<int64_t>& ends) {
  Step step(rule, {.threshold_ns = threshold, .planned = static_cast<uint32_t>(ends.size())});
  auto verdict = step.first;
  for (size_t i = 0; verdict == run_next; ++i) verdict = step.done(ends.at(i));
  EXPECT_TRUE(std::equal(step.controller.ends().begin(), step.controller.ends().end(), ends.begin()));
  return step.controller.computed();
}

TEST(DropController, without_a_threshold_runs_all_planned_micro_batches) {
  for (const auto rule : {Rule::after, Rule::before, Rule::at}) {
    Step step({.rule = rule, .min_computed = 0, .micro_batch_ns = 1'000'000}, {.planned = 3});
    EXPECT_EQ(step.first, run_next);
    EXPECT_FALSE(step.controller.timer_ns());
    EXPECT_EQ(step.timer(1'000'000), run_next);
    EXPECT_EQ(step.done(10), run_next);
    EXPECT_FALSE(step.should_stop(1'000'000));
    EXPECT_EQ(step.done(1'000'000), run_next);
    EXPECT_EQ(step.done(2'000'000), stop);
    EXPECT_TRUE(step.controller.stopped());
    EXPECT_EQ(step.controller.computed(), 3u);
    EXPECT_EQ(std::vector<int64_t>(step.controller.ends().begin(), step.controller.ends().end()),
              (std::vector<int64_t>{10, 1'000'000, 2'000'000}));
  }
}

TEST(DropController, after_stops_at_the_first_end_after_the_threshold) {
  EXPECT_EQ(computed(after, 25, {10, 20, 30, 40}), 3u);
  EXPECT_EQ(computed(after, 5, {10, 20, 30, 40}), 1u);
  EXPECT_EQ(computed(after, 100, {10, 20, 30, 40}), 4u);
}

TEST(DropController, the_threshold_itself_does_not_stop) {
  EXPECT_EQ(computed(after, 20, {10, 20, 30, 40}), 3u);
  EXPECT_EQ(computed(after, 19, {10, 20, 30, 40}), 2u);
  // after the second micro-batch, the third is expected to end at 30, which is in time
  EXPECT_EQ(computed(before_with(10), 30, {10, 20, 30, 40}), 3u);
  EXPECT_EQ(computed(before_with(11), 30, {10, 20, 30, 40}), 2u);
  Step step(after, {.threshold_ns = 20, .planned = 3});
  step.done(5);
  EXPECT_FALSE(step.should_stop(20));
  EXPECT_TRUE(step.should_stop(21));
}

TEST(DropController, a_lag_compares_earlier_ends) {
  const std::vector<int64_t> ends{10, 20, 30, 40, 50, 60};
  EXPECT_EQ(computed(after_with(1), 15, ends), 3u);
  EXPECT_EQ(computed(after_with(2), 15, ends), 4u);
  EXPECT_EQ(computed(after_with(2), 5, ends), 3u);  // lag 2: the first decision is after three micro-batches
  EXPECT_EQ(computed(after_with(5), 5, ends), 6u);  // lag 5: the first decision is after all six
  EXPECT_EQ(computed(after_with(50), 5, ends), 6u);
}

TEST(DropController, min_computed_micro_batches_are_always_computed) {
  const std::vector<int64_t> ends{10, 20, 30, 40, 50, 60};
  EXPECT_EQ(computed(after_with(0, 4), 5, ends), 4u);
  EXPECT_EQ(computed(after_with(1, 2), 25, ends), 4u);
  EXPECT_EQ(computed(after_with(0, 7), 5, ends), 6u);
  EXPECT_EQ(computed(before_with(10, 3), 5, ends), 3u);
  EXPECT_EQ(computed(after_with(0, 0), 5, ends), 1u);  // the rule `after` always computes one micro-batch
  EXPECT_EQ(computed(before_with(10, 0), 10, ends), 1u);
  EXPECT_EQ(computed(before_with(10, 0), 9, ends), 0u);
  EXPECT_EQ(computed(before_with(10, 1), 9, ends), 1u);
  Step step(after_with(0, 2), {.threshold_ns = 20, .planned = 3});
  step.done(30);
  EXPECT_FALSE(step.should_stop(40));
}

TEST(DropController, before_with_min_computed_zero_may_stop_at_once) {
  Step step(before_with(10, 0), {.threshold_ns = 9, .planned = 3});
  EXPECT_EQ(step.first, stop);
  EXPECT_TRUE(step.controller.stopped());
  EXPECT_EQ(step.controller.computed(), 0u);
}

TEST(DropController, stops_at_once_if_nothing_is_planned) {
  for (const auto rule : {Rule::after, Rule::before, Rule::at}) {
    Step step({.rule = rule}, {.threshold_ns = 20, .planned = 0});
    EXPECT_EQ(step.first, stop);
    EXPECT_FALSE(step.controller.timer_ns());
    EXPECT_FALSE(step.controller.is_last_running());
  }
  Step step(after, {.threshold_ns = 1000, .planned = 2});  // two are planned; the constructor allows more
  EXPECT_EQ(step.done(1), run_next);
  EXPECT_EQ(step.done(2), stop);
}

TEST(DropController, at_stops_at_its_timer_with_the_complete_micro_batches) {
  Step step(at, {.threshold_ns = 25, .planned = 4});
  EXPECT_EQ(step.controller.timer_ns(), start + 25);
  EXPECT_EQ(step.done(10), run_next);
  EXPECT_EQ(step.timer(24), run_next);
  EXPECT_EQ(step.done(20), run_next);
  EXPECT_EQ(step.timer(25), stop);
  EXPECT_EQ(step.controller.computed(), 2u);
  EXPECT_FALSE(step.controller.timer_ns());
  EXPECT_EQ(step.done(30), stop);  // the running micro-batch ends after the timer and is discarded
  EXPECT_EQ(step.controller.computed(), 2u);
}

TEST(DropController, at_counts_a_micro_batch_that_ends_exactly_at_the_timer) {
  Step step(at, {.threshold_ns = 20, .planned = 4});
  step.done(10);
  EXPECT_EQ(step.done(20), run_next);
  EXPECT_EQ(step.timer(20), stop);
  EXPECT_EQ(step.controller.computed(), 2u);
}

TEST(DropController, at_may_compute_nothing_and_stops_only_in_timer) {
  Step none({.rule = Rule::at, .min_computed = 3}, {.threshold_ns = 20, .planned = 4});
  EXPECT_EQ(none.timer(20), stop);
  EXPECT_EQ(none.controller.computed(), 0u);
  // The controller has no clock. Until the caller calls timer(), a micro-batch counts even if it ends after the threshold.
  Step late(at, {.threshold_ns = 20, .planned = 4});
  EXPECT_EQ(late.done(30), run_next);
  EXPECT_EQ(late.timer(35), stop);
  EXPECT_EQ(late.controller.computed(), 1u);
}

TEST(DropController, only_the_rule_at_has_a_timer) {
  for (const auto& rule : {after, before_with(1)}) {
    Step step(rule, {.threshold_ns = 20, .planned = 4});
    EXPECT_FALSE(step.controller.timer_ns());
    EXPECT_EQ(step.timer(100), run_next);
  }
  Step step(at, {.threshold_ns = 20, .planned = 1});
  EXPECT_EQ(step.done(5), stop);
  EXPECT_FALSE(step.controller.timer_ns());  // all planned micro-batches ended before the timer
}

TEST(DropController, a_forced_count_is_computed_whatever_the_time) {
  for (const auto rule : {Rule::after, Rule::before, Rule::at}) {
    for (const uint32_t forced : {0u, 1u, 2u, 3u, 4u, 9u}) {
      Step step({.rule = rule, .micro_batch_ns = 1000}, {.threshold_ns = 20, .planned = 4, .forced = forced});
      auto verdict = step.first;
      EXPECT_FALSE(step.controller.timer_ns());
      while (verdict == run_next) {
        EXPECT_FALSE(step.should_stop(1'000'000));
        EXPECT_EQ(step.timer(1'000'000), run_next);
        verdict = step.done(1'000'000);
      }
      EXPECT_EQ(step.controller.computed(), std::min(forced, 4u));
    }
  }
}

TEST(DropController, a_running_micro_batch_may_be_abandoned) {
  Step step(after, {.threshold_ns = 20, .planned = 4});
  EXPECT_FALSE(step.should_stop(30));  // at least one micro-batch must be computed
  step.done(10);
  EXPECT_FALSE(step.should_stop(15));
  EXPECT_TRUE(step.should_stop(30));
  step.controller.abandon();
  EXPECT_TRUE(step.controller.stopped());
  EXPECT_EQ(step.controller.computed(), 1u);
  EXPECT_TRUE(step.should_stop(15));
  EXPECT_EQ(step.done(40), stop);
  EXPECT_EQ(step.controller.computed(), 1u);
}

TEST(DropController, the_last_micro_batch_is_known_if_no_time_decides) {
  for (const auto& rule : {after, before_with(1)}) {
    Step step(rule, {.threshold_ns = 100, .planned = 2});
    EXPECT_FALSE(step.controller.is_last_running());
    step.done(10);
    EXPECT_TRUE(step.controller.is_last_running());
    step.done(20);
    EXPECT_FALSE(step.controller.is_last_running());
  }
  Step forced(after, {.threshold_ns = 100, .planned = 4, .forced = 2});
  EXPECT_FALSE(forced.controller.is_last_running());
  forced.done(10);
  EXPECT_TRUE(forced.controller.is_last_running());
}

TEST(DropController, at_does_not_know_its_last_micro_batch_while_its_timer_runs) {
  Step step(at, {.threshold_ns = 100, .planned = 1});
  EXPECT_FALSE(step.controller.is_last_running());
  Step without(at, {.planned = 1});
  EXPECT_TRUE(without.controller.is_last_running());
}

TEST(DropController, a_lag_announces_the_last_micro_batch) {
  Step step(after_with(1), {.threshold_ns = 15, .planned = 4});
  EXPECT_FALSE(step.controller.is_last_running());
  EXPECT_EQ(step.done(10), run_next);
  EXPECT_FALSE(step.controller.is_last_running());
  EXPECT_EQ(step.done(20), run_next);
  // the first micro-batch with an end past 15 has ended, so the running one is the last
  EXPECT_TRUE(step.controller.is_last_running());
  EXPECT_EQ(step.done(30), stop);
  Step least(after_with(1, 3), {.threshold_ns = 5, .planned = 4});
  least.done(10);
  EXPECT_FALSE(least.controller.is_last_running());
  least.done(20);
  EXPECT_TRUE(least.controller.is_last_running());
}

TEST(DropController, nothing_changes_after_a_stop) {
  Step step(after, {.threshold_ns = 5, .planned = 4});
  EXPECT_EQ(step.done(10), stop);
  EXPECT_EQ(step.done(11), stop);
  EXPECT_EQ(step.timer(12), stop);
  EXPECT_EQ(step.controller.computed(), 1u);
  EXPECT_EQ(step.controller.ends().size(), 1u);
  EXPECT_FALSE(step.controller.is_last_running());
  DropController unused(4);
  EXPECT_TRUE(unused.stopped());
  EXPECT_EQ(unused.micro_batch_done(5), stop);
  EXPECT_EQ(unused.computed(), 0u);
}

TEST(DropController, begin_resets_all_state) {
  DropController controller(4);
  controller.begin(after, {.threshold_ns = 25, .planned = 4}, 0);
  for (const int64_t now : {10, 20, 30}) controller.micro_batch_done(now);
  EXPECT_TRUE(controller.stopped());
  // begin() in the middle of a step starts a new step: times are relative to it, and the rule may differ.
  controller.begin(after, {.threshold_ns = 25, .planned = 4}, 100);
  controller.micro_batch_done(110);
  controller.begin(at, {.threshold_ns = 5, .planned = 3}, 200);
  EXPECT_FALSE(controller.stopped());
  EXPECT_EQ(controller.computed(), 0u);
  EXPECT_EQ(controller.timer_ns(), 205);
  EXPECT_EQ(controller.micro_batch_done(204), run_next);
  EXPECT_EQ(controller.ends()[0], 4);
  EXPECT_EQ(controller.timer(205), stop);
}

}  // namespace
}  // namespace unisono
