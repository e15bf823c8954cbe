// Check 10 of docs/design/methods/drop_compute.md: the one-pass evaluation must agree with independent code that follows the
// definitions.
#include <gtest/gtest.h>

#include <array>
#include <set>

#include "base/concat.h"
#include "training/drop_compute/compute_trace_test_support.h"
#include "training/drop_compute/threshold_search.h"

namespace unisono {
namespace {

using Rule = DropOptions::Rule;
using Latencies = std::vector<std::vector<std::vector<int64_t>>>;

constexpr int64_t unit = 1000;  // ns per unit of latency, so that thresholds can lie between times

struct Plain {
  double step = 0, total = 0, drop = 0;
};

// Runs a worker's micro-batches one after the other, and reads the clock after each (docs/design/methods/drop_compute.md, "The
// controller").
size_t run_worker(const StopRule& rule, double threshold, const std::vector<int64_t>& latencies, double& time) {
  std::array<double, 6> ends{};
  size_t k = 0;
  while (k < latencies.size()) {
    const double next = ends[k] + static_cast<double>(latencies[k] * unit);
    if (rule.rule == Rule::at && next > threshold) break;
    ends[++k] = next;
    if (k < rule.min_computed && rule.rule != Rule::at) continue;
    if (rule.rule == Rule::after && k > rule.lag && ends[k - rule.lag] > threshold) break;
    if (rule.rule == Rule::before && ends[k] + static_cast<double>(rule.micro_batch_ns) > threshold) break;
  }
  time = ends[k];
  return k;
}

Plain plain_value(const Latencies& latencies, const StopRule& rule, double threshold, double other) {
  Plain value;
  double computed_in_all = 0, whole_in_all = 0, cut_in_all = 0, all = 0;
  for (const auto& step : latencies) {
    double computed = 0, whole = 0, cut = 0, time = 0, planned = 0;
    for (const auto& worker : step) {
      computed += static_cast<double>(run_worker(rule, threshold, worker, time));
      cut = std::max(cut, time);
      run_worker({.rule = Rule::at}, 1e18, worker, time);
      whole = std::max(whole, time);
      planned += static_cast<double>(worker.size());
    }
    if (rule.rule == Rule::at) cut = std::min(threshold, whole);
    value.step += computed / planned * (whole + other) / (cut + other) / static_cast<double>(latencies.size());
    computed_in_all += computed, whole_in_all += whole + other, cut_in_all += cut + other, all += planned;
  }
  value.total = computed_in_all / all * whole_in_all / cut_in_all;
  value.drop = (all - computed_in_all) / all;
  return value;
}

Latencies random_latencies(Random& random) {
  Latencies latencies(1 + random.below(5));
  const size_t workers = 1 + random.below(5), micro_batches = 1 + random.below(5);
  for (auto& step : latencies) {
    step.assign(workers, std::vector<int64_t>(micro_batches));
    for (auto& worker : step) {
      for (auto& latency : worker) latency = static_cast<int64_t>(1 + random.below(6));
    }
  }
  return latencies;
}

std::vector<StopRule> rules_of(const ComputeTrace& trace) {
  return {{},
          {.lag = 1},
          {.lag = 2},
          {.min_computed = 0},
          {.min_computed = 3},
          {.lag = 1, .min_computed = 4},
          {.rule = Rule::before, .micro_batch_ns = trace.micro_batch_ns()},
          {.rule = Rule::before, .min_computed = 2, .micro_batch_ns = trace.micro_batch_ns()},
          {.rule = Rule::at}};
}

// Returns all end times and, except for the rule `at`, 1 ns. For the rule `before`, lhat is added to each time.
std::set<int64_t> thresholds_of(const ComputeTrace& trace, const StopRule& rule) {
  std::set<int64_t> all(trace.ends.begin(), trace.ends.end());
  if (rule.rule != Rule::at) all.insert(1);
  if (rule.rule != Rule::before) return all;
  std::set<int64_t> later;
  for (const int64_t each : all) later.insert(each + rule.micro_batch_ns);
  return later;
}

void expect_sweep_is_plain(const Latencies& latencies, const StopRule& rule, double other) {
  const auto trace = trace_of(latencies, unit, 0);
  const auto values = sweep(trace, rule, other);
  std::set<int64_t> thresholds;
  double highest = 0, highest_total = 0;
  for (const auto& value : values) {
    ASSERT_TRUE(thresholds.insert(value.threshold_ns).second);
    const auto plain = plain_value(latencies, rule, static_cast<double>(value.threshold_ns), other);
    ASSERT_NEAR(value.step, plain.step, 1e-12);
    ASSERT_NEAR(value.total, plain.total, 1e-12);
    ASSERT_NEAR(value.drop, plain.drop, 1e-12);
    const auto defined = value_of(trace, rule, value.threshold_ns, other);
    ASSERT_NEAR(value.step, defined.step, 1e-14);
    ASSERT_EQ(value.total, defined.total);
    ASSERT_EQ(value.drop, defined.drop);
    highest = std::max(highest, value.step);
    highest_total = std::max(highest_total, value.total);
  }
  EXPECT_EQ(thresholds, thresholds_of(trace, rule));
  EXPECT_TRUE(std::is_sorted(values.begin(), values.end(),
                             [](const auto& a, const auto& b) { return a.threshold_ns < b.threshold_ns; }));
  const int64_t low = *thresholds.begin(), high = *thresholds.rbegin();
  for (int64_t i = 0; i < 200; ++i) {
    const auto plain = plain_value(latencies, rule, static_cast<double>(low + (high - low) * i / 199), other);
    ASSERT_LE(plain.step, highest + 1e-12);
    ASSERT_LE(plain.total, highest_total + 1e-12);
  }
}

TEST(ThresholdSweep, equals_the_definition_at_every_threshold) {
  const uint64_t seed = 20261123;
  SCOPED_TRACE(concat("seed ", seed));
  Random random(seed);
  for (int i = 0; i < 1000; ++i) {
    const auto latencies = random_latencies(random);
    const double other = 500 + 1500 * random.unit();
    for (const auto& rule : rules_of(trace_of(latencies, unit, 0))) {
      expect_sweep_is_plain(latencies, rule, other);
      if (HasFatalFailure())
        FAIL() << "trace " << i << ", rule " << static_cast<int>(rule.rule) << ", lag " << rule.lag << ", min_computed "
               << rule.min_computed;
    }
  }
}

TEST(ThresholdSearch, chooses_the_threshold_of_a_plain_search) {
  Random random(7);
  for (int i = 0; i < 1000; ++i) {
    const auto latencies = random_latencies(random);
    const auto other = static_cast<int64_t>(500 + random.below(1500));
    const auto trace = trace_of(latencies, unit, other);
    const double slack = i % 2 == 0 ? 0 : 0.05, max_drop = i % 3 == 0 ? 1 : 0.3;
    for (const auto& rule : rules_of(trace)) {
      if (rule.rule == Rule::at || trace.workers == 1) continue;
      const auto outcome = search(trace, {.rule = rule, .slack = slack, .max_drop = max_drop});
      if (outcome.off.starts_with("nothing_to_drop")) continue;
      double highest = 0;
      for (const int64_t each : thresholds_of(trace, rule)) {
        const auto plain = plain_value(latencies, rule, static_cast<double>(each), static_cast<double>(other));
        if (plain.drop <= max_drop) highest = std::max(highest, plain.step);
      }
      int64_t chosen = 0;
      for (const int64_t each : thresholds_of(trace, rule)) {
        const auto plain = plain_value(latencies, rule, static_cast<double>(each), static_cast<double>(other));
        if (plain.drop <= max_drop && plain.step >= highest * (1 - std::max(slack, 1e-9))) chosen = each;
      }
      ASSERT_EQ(outcome.best.threshold_ns, chosen) << "trace " << i;
      ASSERT_NEAR(outcome.highest, highest, 1e-12);
      ASSERT_EQ(outcome.off.empty(), std::min(outcome.best.step, outcome.best.total) > 1.01) << outcome.off;
    }
  }
}

// A trace with random times like measured ones. Some times are equal, and Tc is not a round number.
ComputeTrace measured_trace(Random& random) {
  Latencies latencies(2 + random.below(8), std::vector(2 + random.below(8), std::vector<int64_t>(1 + random.below(8))));
  for (auto& step : latencies) {
    step.resize(latencies[0].size());
    for (auto& worker : step) {
      worker.resize(latencies[0][0].size());
      for (auto& latency : worker)
        latency = random.chance(0.3) ? 20'000'000 : static_cast<int64_t>(20'000'000 + random.below(30'000'000));
    }
  }
  auto trace = trace_of(latencies, 1, 7'654'321);
  for (auto& wall : trace.walls) wall += static_cast<int64_t>(random.below(1'000'000));
  return trace;
}

TEST(ThresholdSweep, does_not_depend_on_the_order_of_steps_and_workers) {
  const uint64_t seed = 1123;
  SCOPED_TRACE(concat("seed ", seed));
  Random random(seed);
  for (int i = 0; i < 100; ++i) {
    const auto trace = measured_trace(random);
    for (int permutation = 0; permutation < 20; ++permutation) {
      const auto other = reordered(trace, shuffled(trace.steps(), random), shuffled(trace.workers, random));
      ASSERT_EQ(other.other_ns(), trace.other_ns());
      ASSERT_EQ(other.micro_batch_ns(), trace.micro_batch_ns());
      for (const auto& rule : rules_of(trace)) {
        ASSERT_EQ(sweep(other, rule, other.other_ns()), sweep(trace, rule, trace.other_ns()));
        const int64_t threshold = trace.ends[random.below(trace.ends.size())];
        ASSERT_EQ(value_of(other, rule, threshold, other.other_ns()), value_of(trace, rule, threshold, trace.other_ns()));
        if (rule.rule == Rule::at) continue;
        const auto here = search(other, {.rule = rule, .max_drop = 0.3}),
                   there = search(trace, {.rule = rule, .max_drop = 0.3});
        ASSERT_EQ(here.best, there.best);
        ASSERT_EQ(here.off, there.off);
      }
    }
  }
}

// With the rule `at`, a running micro-batch delays the next step, so the order of steps matters. The order of workers does not.
TEST(ThresholdSearch, with_rule_at_does_not_depend_on_the_order_of_workers) {
  Random random(29);
  for (int i = 0; i < 30; ++i) {
    const auto trace = measured_trace(random);
    std::vector<size_t> steps(trace.steps());
    for (size_t step = 0; step < steps.size(); ++step) steps[step] = step;
    const auto other = reordered(trace, steps, shuffled(trace.workers, random));
    const SearchOptions options{.rule = {.rule = Rule::at}, .max_drop = 0.3};
    const auto here = search(other, options), there = search(trace, options);
    ASSERT_EQ(here.best, there.best);
    ASSERT_EQ(here.replays, there.replays);
  }
}

// Replays the rule `at` by wall-clock time. A worker begins a step when two things are true: the step has begun, and the
// worker's previous micro-batch has ended.
Plain plain_replay(const Latencies& latencies, double threshold, double other) {
  Plain value;
  double begin = 0, computed_in_all = 0, whole_in_all = 0, all = 0;
  std::vector<double> busy_until(latencies[0].size(), 0);
  for (const auto& step : latencies) {
    double computed = 0, whole = 0, through = 0, planned = 0;
    for (size_t n = 0; n < step.size(); ++n) {
      double clock = std::max(begin, busy_until[n]), alone = 0;
      for (const int64_t latency : step[n]) {
        const double took = static_cast<double>(latency * unit);
        if (clock <= begin + threshold) busy_until[n] = clock + took;  // a micro-batch that has begun is not interrupted
        clock += took, alone += took;
        if (clock <= begin + threshold) ++computed;
      }
      through = std::max(through, clock - begin);
      whole = std::max(whole, alone);
      planned += static_cast<double>(step[n].size());
    }
    const double cut = std::min(threshold, through);
    value.step += computed / planned * (whole + other) / (cut + other) / static_cast<double>(latencies.size());
    computed_in_all += computed, whole_in_all += whole + other, all += planned;
    begin += cut + other;
  }
  value.total = computed_in_all / all * whole_in_all / begin;
  value.drop = (all - computed_in_all) / all;
  return value;
}

TEST(ThresholdSearch, replay_equals_a_simulated_clock) {
  Random random(31);
  for (int i = 0; i < 1000; ++i) {
    auto latencies = random_latencies(random);
    if (random.chance(0.5)) latencies[0][0][0] = 40;  // this micro-batch outlasts several steps
    const auto trace = trace_of(latencies, unit, 0);
    const auto other = static_cast<double>(i % 2 == 0 ? random.below(2000) : random.below(4) * unit / 2);
    for (int64_t threshold = unit / 2; threshold < 20 * unit; threshold += unit / 2) {
      const auto value = replayed(trace, threshold, other);
      const auto plain = plain_replay(latencies, static_cast<double>(threshold), other);
      ASSERT_NEAR(value.step, plain.step, 1e-12) << i << " " << threshold;
      ASSERT_NEAR(value.total, plain.total, 1e-12) << i << " " << threshold;
      ASSERT_NEAR(value.drop, plain.drop, 1e-12) << i << " " << threshold;
    }
  }
}

}  // namespace
}  // namespace unisono
