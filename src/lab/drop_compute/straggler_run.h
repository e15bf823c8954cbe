// Simulates, in virtual time, workers whose micro-batches have random latencies. Every remedy is measured under the same
// latencies. The symbols are explained in docs/design/methods/drop_compute.md, "Notation".
//
// DropCompute runs with the library's own controller and policy. A micro-batch that has begun always runs to its end. So if
// rule `at` stops a worker in the middle of a micro-batch, the rest of this micro-batch delays the worker's next step.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lab/drop_compute/delay_model.h"
#include "training/drop_compute/compute_trace.h"
#include "training/drop_compute/threshold_search.h"
#include "unisono/drop_compute.h"

namespace unisono::sim {

struct StragglerSettings {
  DelayModel model;
  uint32_t workers = 8, micro_batches = 12;  // both must be at least 1
  double other = 0.5;                        // Tc (the part of a step in which nothing is computed), seconds
  uint64_t steps = 2000;                     // number of steps, counted from 1; this includes steps that are not measured
  uint64_t seed = 0;
};

// Returns the times of all workers in these steps, if nothing is dropped.
ComputeTrace make_trace(const StragglerSettings& settings, uint64_t first_step, uint64_t steps);

struct Remedy {
  enum class Kind : uint8_t {
    none,          // all workers wait for the slowest one
    drop_compute,  // drops micro-batches by a fixed or automatic threshold; see `drop`
    backup,        // leaves out the gradients of the `backups` latest workers (Chen et al. 2016, arXiv:1604.00981)
    // Drops each micro-batch that will not end before drop.seconds. A real worker cannot know this in advance, so the oracle
    // only shows an upper bound (docs/design/methods/drop_compute.md, "The threshold search").
    oracle,
    // Drops nothing, but observes the first drop.calibration_steps steps, and then gives faster workers more micro-batches.
    rebalanced,
    // Drops a fraction `share` of the micro-batches at random. This saves no time, but shows how dropping affects the loss.
    random
  };
  Kind kind = Kind::none;
  DropOptions drop{};
  uint32_t backups = 0;  // must be below StragglerSettings::workers
  double share = 0;
};
std::string name_of(const Remedy& remedy);  // returns a name such as "auto, after", "16 s, at" or "14 backup workers"

struct StragglerOutcome {
  double total = 1;                                // S_total: micro-batches per second, divided by the same without a remedy
  double step = 1;                                 // S_step: the speed-up of a step, mean over the steps
  double drop = 0;                                 // p, the dropped fraction
  double step_mean = 0, step_deviation = 0;        // seconds
  double compute_mean = 0, compute_deviation = 0;  // in seconds; Tc is not included
  double threshold = 0;                            // the threshold in the last step, in seconds; 0: there was none
  std::string off_reason;                          // says why an automatic threshold drops nothing; empty if it drops something
  double predicted_total = 1, predicted_step = 1, predicted_drop = 0;  // what the search for an automatic threshold predicted
  std::vector<double> drop_by_worker;
  std::vector<double> step_times;  // one entry for each measured step, in seconds
  std::vector<std::string> warnings;
};
// measured_from: the first step that is measured; earlier steps are for warm-up and recording. Speed-ups compare each measured
// step with the same step without a remedy.
StragglerOutcome run_stragglers(const StragglerSettings& settings, const Remedy& remedy, uint64_t measured_from = 1,
                                const std::function<void(uint64_t steps)>& progress = nullptr);
// Returns with how many backup workers S_total is highest.
uint32_t best_backups(const StragglerSettings& settings);

}  // namespace unisono::sim
