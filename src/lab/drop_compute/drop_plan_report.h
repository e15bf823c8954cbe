// The results and the output of `unisono-lab drop-compute plan`: tables, JSON lines, pictures. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/common/plot.h"
#include "lab/drop_compute/drop_plan.h"

namespace unisono::cli {

struct WorkersForecast {
  uint64_t workers = 2;
  double factor = 0, factor_closed = 0;    // z_exact(N), z(N); from a trace, and of one worker, no number
  double compute = 0, compute_closed = 0;  // E[T] by these, seconds
  double threshold = 0;                    // seconds
  double drop = 0;                         // p of rule at
  double speedup = 1, speedup_closed = 1;  // S_eff of rule at
  bool too_few_records = false;
  // Why nothing should be dropped; empty: something should.
  std::string off() const;
};

struct DropForecast {
  DropPlan plan;
  uint32_t micro_batches = 1;
  double other = 0;                      // Tc, seconds
  std::vector<WorkersForecast> workers;  // ascending; the last are as many as was asked for
  double rule_drop = 0;                  // p of the plan's rule at the last one's threshold
  uint32_t local_maxima = 0;             // of E[B] / (tau + Tc); 0: not counted
  bool held_by_max_drop = false;         // a lower threshold would have been better
  struct Recorded {
    uint32_t workers = 0;
    size_t steps = 0;
    double compute = 0;      // mean of T_i
    double independent = 0;  // E[T] of as many workers, from the same times
  };
  std::optional<Recorded> recorded;  // a trace
  std::vector<Point> by_threshold;   // of the last workers: seconds, S_eff
};

// By closed forms.
DropForecast forecast_of(const DropPlan& plan);
// From recorded times.
DropForecast forecast_of(const DropPlan& plan, const ComputeTrace& trace);

std::string table_of(const DropForecast& forecast);
// One line for all of it, then one for each number of workers.
std::string json_of(const DropForecast& forecast);
// Speed-up against workers; against the threshold, with the chosen one.
std::vector<Panel> panels_of(const DropForecast& forecast);

}  // namespace unisono::cli
