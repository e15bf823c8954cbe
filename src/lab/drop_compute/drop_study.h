// Studies each stop rule on recorded times: which threshold is best, which fraction each worker drops, and how long the steps
// take. Performs no I/O. The symbols are explained in docs/design/methods/drop_compute.md, "Notation".
//
// The plots are used by both `unisono-lab drop-compute search` and `simulate`.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cli/common/plot.h"
#include "lab/common/option_words.h"
#include "training/drop_compute/compute_trace.h"
#include "training/drop_compute/threshold_search.h"

namespace unisono::lab {

struct Moments {
  double mean = 0, deviation = 0;  // deviation: the population standard deviation
};
Moments moments_of(std::span<const double> values);

struct RuleStudy {
  DropRule rule = DropRule::after;
  SearchOptions options;
  SearchOutcome outcome;
  // found(): true if there is a best threshold. on(): true if it also pays to drop with this threshold.
  bool found() const { return outcome.best.threshold_ns > 0; }
  bool on() const { return found() && outcome.off.empty(); }
  // The members below are set if found() is true. They are for the best threshold.
  std::vector<double> drop_by_worker;
  size_t most = 0;         // the worker that drops the largest fraction
  bool straggles = false;  // worker `most` is a persistent straggler
  // The times of the steps in seconds, including Tc. If a micro-batch still runs at the threshold, rule `at` does not make the
  // step wait for it.
  std::vector<double> step_times;
};

struct TraceStudy {
  uint32_t workers = 0, micro_batches = 0;
  size_t steps = 0;
  // Tc (the part of a step in which nothing is computed) and lhat (the mean time of a micro-batch), seconds
  double other = 0, micro_batch = 0;
  std::vector<RuleStudy> rules;
  ThresholdValue oracle;  // the oracle's best value that drops at most max_drop; if none was found, its threshold_ns is 0
  std::vector<double> compute_times;  // by step: T_i (the slowest worker's compute time), seconds
  std::vector<double> worker_means;   // by worker: mean compute time, seconds
  size_t slowest = 0;                 // the worker with the highest mean compute time
  double slowness = 1;                // mean compute time of the slowest worker, divided by that of the other workers
  double step_mean() const;           // returns the mean step time without a threshold, in seconds
};
TraceStudy study_of(const ComputeTrace& trace, const DropOptions& choice, std::span<const DropRule> rules);

// Returns the options without those that do not apply to this rule: `lag` applies only to `after`, and min_computed applies
// only to `after` and `before`.
DropOptions options_for(DropRule rule, DropOptions options);

// Plots two histograms of the compute times per step. One covers all workers. The other covers only the slowest worker of each
// step.
cli::Panel compute_panel(const ComputeTrace& trace);
// Plots the speed-up of each rule and of the oracle against the threshold. Markers show the chosen thresholds.
cli::Panel thresholds_panel(const ComputeTrace& trace, const TraceStudy& study);
// One curve of step_times_panel(). It shows which percentage of the steps took at most a given time. Later curves are thinner,
// so that earlier curves below them stay visible.
struct StepTimes {
  std::string name;
  const char* colour;
  std::vector<double> times;  // seconds
  bool dashed = false;
};
cli::Panel step_times_panel(const std::vector<StepTimes>& all);
const char* rule_colour(DropRule rule);

}  // namespace unisono::lab
