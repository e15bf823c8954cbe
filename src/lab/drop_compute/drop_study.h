// Studies each stop rule on recorded times: the best threshold, the micro-batches that it drops of each worker, and the step
// times. The plots of the study are shared by `unisono-lab drop-compute search` and `simulate`. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cli/common/plot.h"
#include "lab/common/option_words.h"
#include "training/drop_compute/compute_trace.h"
#include "training/drop_compute/threshold_search.h"

namespace unisono::cli {

struct Moments {
  double mean = 0, deviation = 0;  // of all there are: squares by how many
};
Moments moments_of(std::span<const double> values);

struct RuleStudy {
  DropRule rule = DropRule::after;
  SearchOptions options;
  SearchOutcome outcome;
  bool found() const { return outcome.best.threshold_ns > 0; }  // a threshold, though it may not be worth it
  bool on() const { return found() && outcome.off.empty(); }
  // With that threshold, if one was found:
  std::vector<double> drop_by_worker;
  size_t most = 0;                 // the worker that drops most
  bool straggles = false;          // it is a persistent straggler
  std::vector<double> step_times;  // seconds, with all that is beside computing; of `at` without what is left of micro-batches
};

struct TraceStudy {
  uint32_t workers = 0, micro_batches = 0;
  size_t steps = 0;
  double other = 0, micro_batch = 0;  // Tc, lhat, seconds
  std::vector<RuleStudy> rules;
  ThresholdValue oracle;              // the best of these within max_drop; threshold_ns 0: none
  std::vector<double> compute_times;  // T_i, seconds
  std::vector<double> worker_means;   // of their compute times
  size_t slowest = 0;                 // of these
  double slowness = 1;                // its mean by that of the others
  double step_mean() const;           // without a threshold
};
TraceStudy study_of(const ComputeTrace& trace, const DropOptions& choice, std::span<const DropRule> rules);

// Options of one rule: lag is of `after` only, min_computed not of `at`.
DropOptions options_for(DropRule rule, DropOptions options);

// How long workers compute in a step: all, and the slowest.
Panel compute_panel(const ComputeTrace& trace);
// S of each rule's thresholds, with the chosen ones; of the oracle.
Panel thresholds_panel(const ComputeTrace& trace, const TraceStudy& study);
// One curve of step_times_panel(), which shows for each time how many steps took no longer. Later curves are thinner, so that
// the curves below them stay visible.
struct StepTimes {
  std::string name;
  const char* colour;
  std::vector<double> times;  // seconds
  bool dashed = false;
};
Panel step_times_panel(const std::vector<StepTimes>& all);
const char* rule_colour(DropRule rule);

}  // namespace unisono::cli
