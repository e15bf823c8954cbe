// Evaluates thresholds on recorded times and finds the best one. The functions are pure, and their results are equal on all
// ranks, bit by bit.
//
// Source: the objective is that of the published code of DropCompute, which averages the gain of each step over the steps.
// Three parts are derived in docs/design/methods/drop_compute.md, "The threshold search": the exact search over all thresholds,
// the step times of each stop rule, and the replay of the rule `at`.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "training/drop_compute/compute_trace.h"
#include "unisono/drop_compute.h"

namespace unisono {

// Determines when a worker stops computing in a step.
struct StopRule {
  DropOptions::Rule rule = DropOptions::Rule::after;
  uint32_t lag = 0;
  uint32_t min_computed = 1;
  int64_t micro_batch_ns = 0;  // lhat, the mean time of a micro-batch; only the rule `before` uses it

  friend bool operator==(const StopRule&, const StopRule&) = default;
};

// The effect of one threshold.
struct ThresholdValue {
  int64_t threshold_ns = 0;
  double step = 1;   // S_step: the factor by which a step computes more micro-batches per second, averaged over the steps
  double total = 1;  // S_total: the factor by which all steps together compute more micro-batches per second
  double drop = 0;   // p: dropped micro-batches ÷ all micro-batches

  friend bool operator==(const ThresholdValue&, const ThresholdValue&) = default;
};

// Evaluates one threshold directly by its definition: counts what each worker would compute in each step. other_ns is Tc, the
// time per step that is not spent computing. The function takes O(I N log M).
ThresholdValue value_of(const ComputeTrace& trace, const StopRule& rule, int64_t threshold_ns, double other_ns);
// Returns how many micro-batches a worker computes in a step. `ends` holds the times at which all its micro-batches would end.
uint32_t computed_by(const StopRule& rule, int64_t threshold_ns, std::span<const int64_t> ends);
// Returns for each worker which share of its micro-batches is dropped.
std::vector<double> drop_by_worker(const ComputeTrace& trace, const StopRule& rule, int64_t threshold_ns);
// Evaluates a threshold for the rule `at`. If a micro-batch is still running when its step ends, it delays the next step of the
// worker. The function rounds Tc to a whole ns to compute this delay.
ThresholdValue replayed(const ComputeTrace& trace, int64_t threshold_ns, double other_ns);
// Evaluates a threshold for ideal workers. Such a worker knows when each micro-batch will end, and starts only those that end
// before the threshold. No stop rule can gain more than this.
ThresholdValue oracle_value(const ComputeTrace& trace, int64_t threshold_ns, double other_ns);

// Evaluates all thresholds at which the result changes, in ascending order. These are the times of the trace (for the rule
// `before`, lhat is added to them). For all rules except `at`, there is one more threshold, which is smaller than all of these.
// The values do not depend on the order of steps and workers. The function takes O(I N M log(I N M)).
std::vector<ThresholdValue> sweep(const ComputeTrace& trace, const StopRule& rule, double other_ns);
// Implements DropOptions::Search::grid: evaluates 200 thresholds with oracle_value(). They are spaced evenly from the smallest
// T[i,n,min(6,M)] to the largest T[i,n,M].
std::vector<ThresholdValue> grid(const ComputeTrace& trace, double other_ns);

struct SearchOptions {
  StopRule rule{};
  DropOptions::Objective objective = DropOptions::Objective::step_mean;
  DropOptions::Search search = DropOptions::Search::exact;
  double slack = 0.002, max_drop = 0.10, min_gain = 0.01;
};
// Takes the options of the search from `options`. For the rule `before`, takes lhat from the trace.
SearchOptions search_options(const DropOptions& options, const ComputeTrace& trace);

struct SearchOutcome {
  ThresholdValue best;  // The chosen threshold. With the rule `at`, this is its replayed value.
  // If this is not empty, it says why nothing should be dropped. `best` is then the best value that was found, if any.
  std::string off;
  double other_ns = 0;         // Tc of the trace
  int64_t micro_batch_ns = 0;  // lhat of the trace
  // S*: the highest objective of all candidates that drop at most max_drop. With the rule `at`, it is the highest S_total of
  // all `replays` that drop at most max_drop.
  double highest = 1;
  std::vector<ThresholdValue> candidates;  // all evaluated thresholds, in ascending order
  // Only the rule `at` uses this. It holds the results of replayed() for thresholds around the best candidate, in ascending
  // order. search() chooses among these results by S_total.
  std::vector<ThresholdValue> replays;
};
// Considers the thresholds that drop at most max_drop and whose objective is at least (1 - slack) S*. Chooses the largest of
// them. If the trace is invalid, `off` says why.
SearchOutcome search(const ComputeTrace& trace, const SearchOptions& options);

// A worker that is slow all the time, and not only late by chance. It drops more than a quarter of its micro-batches, and more
// than 3 times as large a share as the others on average.
struct PersistentStraggler {
  size_t worker = 0;
  double drop = 0, others = 0;  // the share that this worker drops, and the mean share that the others drop

  friend bool operator==(const PersistentStraggler&, const PersistentStraggler&) = default;
};
// Returns the worker that drops the largest share, if that worker is a persistent straggler.
std::optional<PersistentStraggler> persistent_straggler(std::span<const double> drop_by_worker);

// extra_steps() returns R = p / (1 - p): this share of additional steps makes up for what is dropped. steps_needed() returns
// steps (1 + R), rounded up. If everything is dropped, they return infinity and UINT64_MAX.
double extra_steps(double drop);
uint64_t steps_needed(uint64_t steps, double drop);

}  // namespace unisono
