// How much quicker steps would have been with a threshold, by recorded times, and which threshold is best. Pure; the same on
// all ranks to the bit.
//
// Source: the objective is that of DropCompute's published code (mean over steps of each step's gain); the exact sweep over all
// thresholds, the stop rules' own step times and the replay of rule `at` are derived. Formulae:
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

// What a threshold would have come to.
struct ThresholdValue {
  int64_t threshold_ns = 0;
  double step = 1;   // S_step: mean over steps of how many times as many micro-batches per second
  double total = 1;  // S_total: of all steps together
  double drop = 0;   // p: dropped ÷ all micro-batches

  friend bool operator==(const ThresholdValue&, const ThresholdValue&) = default;
};

// From the definition: for each step and worker what it would have computed. other_ns: Tc. O(I N log M).
ThresholdValue value_of(const ComputeTrace& trace, const StopRule& rule, int64_t threshold_ns, double other_ns);
// Micro-batches that a worker computes of those with these ends.
uint32_t computed_by(const StopRule& rule, int64_t threshold_ns, std::span<const int64_t> ends);
// The share that each worker would have dropped.
std::vector<double> drop_by_worker(const ComputeTrace& trace, const StopRule& rule, int64_t threshold_ns);
// Rule `at` with what is left of a micro-batch charged to the next step; carries over steps in their order. Tc is rounded to a
// ns for what is left.
ThresholdValue replayed(const ComputeTrace& trace, int64_t threshold_ns, double other_ns);
// Step times of one who would know before which micro-batches end in time: an upper bound. Thresholds count strictly (<).
ThresholdValue oracle_value(const ComputeTrace& trace, int64_t threshold_ns, double other_ns);

// All thresholds that make a difference, ascending: the times of the trace (of `before`, lhat later), and below all of them the
// least, where nothing is ready. Each value is the same to the bit in whatever order the trace's steps and workers are. O(I N M
// log(I N M)).
std::vector<ThresholdValue> sweep(const ComputeTrace& trace, const StopRule& rule, double other_ns);
// 200 evenly spaced thresholds, from the least T[i,n,min(6,M)] to the greatest T[i,n,M], by oracle_value:
// DropOptions::Search::grid.
std::vector<ThresholdValue> grid(const ComputeTrace& trace, double other_ns);

struct SearchOptions {
  StopRule rule{};
  DropOptions::Objective objective = DropOptions::Objective::step_mean;
  DropOptions::Search search = DropOptions::Search::exact;
  double slack = 0.002, max_drop = 0.10, min_gain = 0.01;
};
// Of DropOptions; `before` takes its lhat from the trace.
SearchOptions search_options(const DropOptions& options, const ComputeTrace& trace);

struct SearchOutcome {
  ThresholdValue best;  // the chosen one; of rule `at` as replayed
  std::string off;      // not empty: why nothing is to be dropped (`best` is what was found nevertheless, if anything was)
  double other_ns = 0;  // Tc
  int64_t micro_batch_ns = 0;  // lhat
  double highest = 1;          // S*: the best value of the objective within max_drop (of rule `at`: of S_total as replayed)
  std::vector<ThresholdValue> candidates;  // what was searched, ascending
  std::vector<ThresholdValue> replays;     // rule `at`: those around the best of the candidates, ascending, with what was left
                                           // charged to the next step; the choice among them is by S_total
};
// The largest threshold within max_drop whose value is not further below the best one than slack allows. A trace that is not
// right is `off`, and says why.
SearchOutcome search(const ComputeTrace& trace, const SearchOptions& options);

// A worker that drops more than 0.25, and more than 3 times what the others do on average: it is slow itself, not late by
// chance.
struct PersistentStraggler {
  size_t worker = 0;
  double drop = 0, others = 0;  // dropped share of its micro-batches, and the others' mean

  friend bool operator==(const PersistentStraggler&, const PersistentStraggler&) = default;
};
// The one that drops the most, if it is one.
std::optional<PersistentStraggler> persistent_straggler(std::span<const double> drop_by_worker);

// R: so many times as many steps more compute as many micro-batches as without drops; and how many steps instead of `steps`,
// rounded up. Derived from I' (1 - p) = I. If all is dropped: infinite, and the greatest number.
double extra_steps(double drop);
uint64_t steps_needed(uint64_t steps, double drop);

}  // namespace unisono
