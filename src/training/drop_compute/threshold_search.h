// Evaluates thresholds on recorded times and finds the best one. Pure; equal on all ranks to the bit.
//
// Source: the objective is that of DropCompute's published code (mean over steps of each step's gain). The exact search over
// all thresholds, the stop rules' own step times and the replay of the rule `at` are derived:
// docs/design/methods/drop_compute.md, "The threshold search".
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "training/drop_compute/compute_trace.h"
#include "unisono/drop_compute.h"

namespace unisono {

// When a worker stops.
struct StopRule {
  DropOptions::Rule rule = DropOptions::Rule::after;
  uint32_t lag = 0;
  uint32_t min_computed = 1;
  int64_t micro_batch_ns = 0;  // lhat, of `before`

  friend bool operator==(const StopRule&, const StopRule&) = default;
};

// The effect of a threshold.
struct ThresholdValue {
  int64_t threshold_ns = 0;
  double step = 1;   // S_step: mean over steps of the factor in micro-batches per second
  double total = 1;  // S_total: the same factor over all steps together
  double drop = 0;   // p: dropped ÷ all micro-batches

  friend bool operator==(const ThresholdValue&, const ThresholdValue&) = default;
};

// By definition: from what each worker would have computed in each step. other_ns: Tc. O(I N log M).
ThresholdValue value_of(const ComputeTrace& trace, const StopRule& rule, int64_t threshold_ns, double other_ns);
// Micro-batches that a worker computes, given all their end times.
uint32_t computed_by(const StopRule& rule, int64_t threshold_ns, std::span<const int64_t> ends);
// Dropped share of each worker.
std::vector<double> drop_by_worker(const ComputeTrace& trace, const StopRule& rule, int64_t threshold_ns);
// Rule `at`; the rest of a running micro-batch is charged to the next step and carries over. Tc is rounded to a ns for that
// rest.
ThresholdValue replayed(const ComputeTrace& trace, int64_t threshold_ns, double other_ns);
// Step times with advance knowledge of which micro-batches end in time: an upper bound. Thresholds count strictly (<).
ThresholdValue oracle_value(const ComputeTrace& trace, int64_t threshold_ns, double other_ns);

// All thresholds that make a difference, ascending: the times of the trace (plus lhat for `before`), and one below them at
// which nothing is ready. Values do not depend on the order of steps and workers, to the bit. O(I N M log(I N M)).
std::vector<ThresholdValue> sweep(const ComputeTrace& trace, const StopRule& rule, double other_ns);
// 200 evenly spaced thresholds from the smallest T[i,n,min(6,M)] to the largest T[i,n,M], by oracle_value():
// DropOptions::Search::grid.
std::vector<ThresholdValue> grid(const ComputeTrace& trace, double other_ns);

struct SearchOptions {
  StopRule rule{};
  DropOptions::Objective objective = DropOptions::Objective::step_mean;
  DropOptions::Search search = DropOptions::Search::exact;
  double slack = 0.002, max_drop = 0.10, min_gain = 0.01;
};
// From DropOptions; `before` takes lhat from the trace.
SearchOptions search_options(const DropOptions& options, const ComputeTrace& trace);

struct SearchOutcome {
  ThresholdValue best;         // the chosen threshold; for the rule `at` as replayed
  std::string off;             // not empty: why nothing should be dropped; `best` still holds the best value found, if any
  double other_ns = 0;         // Tc
  int64_t micro_batch_ns = 0;  // lhat
  double highest = 1;          // S*: the best objective within max_drop (rule `at`: replayed S_total)
  std::vector<ThresholdValue> candidates;  // all evaluated thresholds, ascending
  std::vector<ThresholdValue> replays;     // rule `at`: replays around the best candidate, ascending; S_total decides
};
// The largest threshold within max_drop whose value is below the best one by no more than slack allows. An invalid trace gives
// `off` with the reason.
SearchOutcome search(const ComputeTrace& trace, const SearchOptions& options);

// A worker that drops more than 0.25, and more than 3 times the others' mean: it is persistently slow, not late by chance.
struct PersistentStraggler {
  size_t worker = 0;
  double drop = 0, others = 0;  // dropped share of its micro-batches, and the others' mean

  friend bool operator==(const PersistentStraggler&, const PersistentStraggler&) = default;
};
// The worker that drops most, if it is persistently slow.
std::optional<PersistentStraggler> persistent_straggler(std::span<const double> drop_by_worker);

// R: relative number of extra steps that computes as many micro-batches as without drops; and that number of steps instead of
// `steps`, rounded up. From I' (1 - p) = I. If everything is dropped: infinity, and the largest number.
double extra_steps(double drop);
uint64_t steps_needed(uint64_t steps, double drop);

}  // namespace unisono
