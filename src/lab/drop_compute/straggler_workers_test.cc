// Tests when workers in virtual time stop, and what they compute. Expected values follow the formulae of
// docs/design/methods/drop_compute.md, "Stop rules".
#include "lab/drop_compute/straggler_workers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "base/concat.h"
#include "base/random.h"

namespace unisono::sim {
namespace {

using Rule = DropOptions::Rule;

// --- expected values by the formulae -------------------------------------------------------------------------------------

std::vector<int64_t> ends_of(int64_t rest, std::span<const int64_t> latencies) {
  std::vector<int64_t> ends;
  for (const auto latency : latencies) ends.push_back(rest += latency);
  return ends;
}

// Returns B(tau): the number of micro-batches that ended by the threshold tau.
uint32_t ended_by(std::span<const int64_t> ends, int64_t threshold) {
  return static_cast<uint32_t>(std::count_if(ends.begin(), ends.end(), [&](int64_t end) { return end <= threshold; }));
}

uint32_t specified_count(const StopRule& rule, int64_t threshold, std::span<const int64_t> ends) {
  const auto all = static_cast<uint32_t>(ends.size());
  if (rule.rule == Rule::at) return ended_by(ends, threshold);
  if (rule.rule == Rule::after) return std::min(all, std::max(rule.min_computed, ended_by(ends, threshold) + 1 + rule.lag));
  if (rule.min_computed == 0 && rule.micro_batch_ns > threshold) return 0;
  return std::min(all, std::max(rule.min_computed, ended_by(ends, threshold - rule.micro_batch_ns) + 1));
}

// --- random steps, compared with the formulae ----------------------------------------------------------------------------

struct FuzzStep {
  StopRule rule;
  std::optional<int64_t> threshold;
  std::vector<int64_t> latencies;
};

constexpr uint32_t fuzz_workers = 8, fuzz_micro_batches = 6;
constexpr int64_t fuzz_other = 5;

// Times are small numbers of ns, so that ends often coincide with each other and with the threshold.
FuzzStep fuzz_step(Random& random) {
  FuzzStep step;
  step.rule = {.rule = static_cast<Rule>(random.below(3)),
               .lag = static_cast<uint32_t>(random.below(4)),
               .min_computed = static_cast<uint32_t>(random.below(fuzz_micro_batches + 2)),
               .micro_batch_ns = static_cast<int64_t>(random.below(15))};
  if (random.chance(.95)) step.threshold = 1 + static_cast<int64_t>(random.below(90));
  for (uint32_t i = 0; i < fuzz_workers * fuzz_micro_batches; ++i)
    step.latencies.push_back(static_cast<int64_t>(random.chance(.02) ? random.below(1000) : random.below(20)));
  return step;
}

// Expected results of one worker in one step. runs_until: end of the micro-batch that the step leaves running.
struct Expected {
  std::vector<int64_t> ends;  // ends of all its micro-batches if nothing were dropped
  uint32_t count = 0;
  int64_t stopped = 0, runs_until = 0;
};

Expected expected_of(const FuzzStep& step, int64_t rest, std::span<const int64_t> latencies) {
  Expected expected{.ends = ends_of(rest, latencies)};
  expected.count =
      step.threshold ? specified_count(step.rule, *step.threshold, expected.ends) : static_cast<uint32_t>(latencies.size());
  if (step.threshold && step.rule.rule == Rule::at) {
    expected.stopped = std::min(*step.threshold, expected.ends.back());
    if (expected.count < latencies.size()) expected.runs_until = rest > *step.threshold ? rest : expected.ends[expected.count];
  } else {
    expected.stopped = expected.count == 0 ? 0 : expected.ends[expected.count - 1];
    // Rule `before` may compute nothing. Then the micro-batch that the previous step left keeps running.
    expected.runs_until = expected.count == 0 ? rest : 0;
  }
  return expected;
}

void expect_within_bounds(const FuzzStep& step, int64_t compute, int64_t longest) {
  if (!step.threshold) return;
  if (step.rule.rule == Rule::at) {
    EXPECT_LE(compute, *step.threshold);
  } else if (step.rule.min_computed <= 1 && step.rule.rule == Rule::after) {
    EXPECT_LE(compute, *step.threshold + (1 + step.rule.lag) * longest);
  } else if (step.rule.min_computed <= 1 && *step.threshold >= step.rule.micro_batch_ns) {
    EXPECT_LE(compute, *step.threshold + longest - step.rule.micro_batch_ns);
  }
}

void fuzz(uint64_t seed, uint64_t steps, std::map<std::string, uint64_t>& seen) {
  Random random(seed);
  StragglerWorkers workers(fuzz_workers, fuzz_micro_batches, fuzz_other), again(fuzz_workers, fuzz_micro_batches, fuzz_other);
  std::vector<int64_t> rests(fuzz_workers, 0);
  for (uint64_t number = 1; number <= steps; ++number) {
    SCOPED_TRACE(concat("seed ", seed, ", step ", number));
    const auto step = fuzz_step(random);
    const auto compute = workers.step(step.rule, step.threshold, step.latencies);
    ASSERT_EQ(again.step(step.rule, step.threshold, step.latencies), compute);
    int64_t slowest = 0, longest = 0;
    std::vector<int64_t> left;
    for (uint32_t i = 0; i < fuzz_workers; ++i) {
      const auto own = std::span(step.latencies).subspan(i * fuzz_micro_batches, fuzz_micro_batches);
      const auto expected = expected_of(step, rests[i], own);
      ASSERT_EQ(workers.computed(i), expected.count) << "worker " << i;
      // The worker computed a prefix of its micro-batches, each with its full latency.
      ASSERT_TRUE(std::equal(workers.ends(i).begin(), workers.ends(i).end(), expected.ends.begin(),
                             expected.ends.begin() + expected.count))
          << "worker " << i;
      ASSERT_TRUE(step.rule.rule != Rule::after || workers.computed(i) >= 1);
      slowest = std::max(slowest, expected.stopped);
      // The bounds hold for workers without a rest from an earlier step. So a rest counts here as part of the first
      // micro-batch.
      for (uint32_t m = 0; m < fuzz_micro_batches; ++m) longest = std::max(longest, own[m] + (m == 0 ? rests[i] : 0));
      left.push_back(expected.runs_until);
      if (expected.count < fuzz_micro_batches) ++seen["cut"];
      if (expected.count == 0) ++seen["none computed"];
    }
    ASSERT_EQ(compute, slowest);
    expect_within_bounds(step, compute, longest);
    for (uint32_t i = 0; i < fuzz_workers; ++i) {
      rests[i] = std::max<int64_t>(0, left[i] - (compute + fuzz_other));
      ASSERT_EQ(workers.rests()[i], rests[i]) << "worker " << i;
      seen["rest"] += rests[i] > 0;
      seen["rest over a whole step"] += step.threshold && rests[i] > *step.threshold;
    }
  }
}

// Check 19 of docs/design/methods/drop_compute.md without the collectives: random times, thresholds and rules.
TEST(StragglerWorkers, random_latencies_give_the_specified_micro_batches) {
  std::map<std::string, uint64_t> seen;
  for (uint64_t seed = 1; seed <= 20 && !HasFatalFailure(); ++seed) fuzz(seed, 500, seen);
  for (const char* what : {"cut", "none computed", "rest", "rest over a whole step"}) EXPECT_GT(seen[what], 100u) << what;
}

// --- examples ----------------------------------------------------------------------------------------------------------

constexpr StopRule after{.rule = Rule::after}, at{.rule = Rule::at};

// The example of check 20 of docs/design/methods/drop_compute.md.
TEST(StragglerWorkers, a_step_begins_after_the_micro_batch_that_was_left_running) {
  StragglerWorkers workers(1, 3, 1);
  const std::vector<int64_t> stalled{1, 6, 1}, usual{1, 1, 1};
  EXPECT_EQ(workers.step(at, 3, stalled), 3);
  EXPECT_EQ(workers.computed(0), 1u);
  EXPECT_EQ(workers.rests()[0], 3);
  EXPECT_EQ(workers.step(at, 3, usual), 3);
  EXPECT_EQ(workers.computed(0), 0u);
  EXPECT_EQ(workers.rests()[0], 0);
  EXPECT_EQ(workers.step(at, 3, usual), 3);
  EXPECT_EQ(workers.computed(0), 3u);
}

TEST(StragglerWorkers, a_worker_that_stalls_for_several_steps_computes_nothing_in_them) {
  StragglerWorkers workers(2, 2, 1);
  const std::vector<int64_t> stalled{2, 2, 1, 20}, usual{2, 2, 1, 1};
  EXPECT_EQ(workers.step(at, 4, stalled), 4);
  EXPECT_EQ(workers.rests()[1], 16);
  for (const int64_t left : {11, 6, 1}) {
    EXPECT_EQ(workers.step(at, 4, usual), 4);
    EXPECT_EQ(workers.computed(1), 0u);
    EXPECT_EQ(workers.rests()[1], left);
  }
  EXPECT_EQ(workers.step(at, 4, usual), 4);
  EXPECT_EQ(workers.computed(1), 2u);
  EXPECT_EQ(workers.ends(1)[1], 3);  // 1 ns rest of the stalled micro-batch, then two micro-batches of 1 ns
}

// Check 14 of docs/design/methods/drop_compute.md: latencies depend on the data. A micro-batch has the latency 1 or 3 with
// equal probability. Its gradient equals its latency.
TEST(StragglerWorkers, rules_that_finish_a_micro_batch_are_unbiased_and_rule_at_is_not) {
  const std::vector<int64_t> sequences[] = {{1, 1}, {1, 3}, {3, 1}, {3, 3}};
  const auto expectation = [&](const StopRule& rule) {
    struct {
      double count = 0, sum = 0, mean = 0;
    } expected;
    for (const auto& sequence : sequences) {
      StragglerWorkers workers(1, 2, 100);
      workers.step(rule, 2, sequence);
      const auto count = workers.computed(0);
      const auto sum = static_cast<double>(count == 0 ? 0 : workers.ends(0).back());
      expected.count += count / 4.;
      expected.sum += sum / 4;
      expected.mean += count == 0 ? 0 : sum / count / 4;
    }
    return expected;
  };
  const auto finished = expectation(after);
  EXPECT_EQ(finished.count, 1.5);
  EXPECT_EQ(finished.sum, 3);      // unbiased: 2 E[k]. With normalize = max, the update is (1-p) times the true one
  EXPECT_EQ(finished.mean, 2.25);  // with normalize = computed, the mean is not 2: biased
  const auto cut = expectation(at);
  EXPECT_EQ(cut.count, .75);
  EXPECT_EQ(cut.sum, .75);  // an unbiased rule would have 2 E[k] = 1.5
}

}  // namespace
}  // namespace unisono::sim
