// Computes the results of `unisono-lab drop-compute plan`, and formats them as tables, JSON lines and plots. Performs no I/O.
// The symbols are explained in docs/design/methods/drop_compute.md, "Notation" and "Closed forms".
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/common/plot.h"
#include "lab/drop_compute/drop_plan.h"

namespace unisono::lab {

struct WorkersForecast {
  uint64_t workers = 2;
  double factor = 0, factor_closed = 0;    // z_exact(N) and z(N); both are NaN if there is a trace, and z(1) is always NaN
  double compute = 0, compute_closed = 0;  // E[T] in seconds, computed by z_exact(N) and by z(N)
  double threshold = 0;                    // seconds
  double drop = 0;                         // p, the dropped fraction under rule `at`
  double speedup = 1, speedup_closed = 1;  // S_eff (the speed-up under rule `at`), computed by z_exact(N) and by z(N)
  bool too_few_records = false;
  // Returns why dropping does not pay. Empty if it does pay.
  std::string off_reason() const;
};

struct DropForecast {
  DropPlan plan;
  uint32_t micro_batches = 1;
  double other = 0;  // Tc (the part of a step in which nothing is computed), seconds
  // one entry for each number of workers, in ascending order; the last entry is for DropPlan::workers
  std::vector<WorkersForecast> workers;
  double rule_drop = 0;           // p (the dropped fraction) under DropPlan::rule, with the threshold of workers.back()
  uint32_t local_maxima = 0;      // how many local maxima E[B] / (tau + Tc) has; 0: they were not counted
  bool held_by_max_drop = false;  // a lower threshold would be better, but max_drop forbids it
  struct Recorded {
    uint32_t workers = 0;
    size_t steps = 0;
    double compute = 0;      // T_i (the slowest worker's compute time) in seconds, mean over the steps
    double independent = 0;  // E[T] in seconds of as many workers with the recorded times, if these workers were independent
  };
  std::optional<Recorded> recorded;      // set if the forecast was made from a trace
  std::vector<cli::Point> by_threshold;  // for DropPlan::workers: S_eff (y) by the threshold in seconds (x)
};

// Computes the forecast from closed forms.
DropForecast forecast_of(const DropPlan& plan);
// Computes the forecast from recorded times.
DropForecast forecast_of(const DropPlan& plan, const ComputeTrace& trace);

std::string table_of(const DropForecast& forecast);
// Returns a JSON line for the whole forecast, then one for each number of workers.
std::string json_of(const DropForecast& forecast);
// Returns two plots: the speed-up against the number of workers, and the speed-up against the threshold. A marker shows the
// chosen threshold.
std::vector<cli::Panel> panels_of(const DropForecast& forecast);

}  // namespace unisono::lab
