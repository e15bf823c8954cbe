// Workers whose micro-batches take times by chance, step after step in virtual time: what each remedy makes of the same times.
//
// DropCompute is run by the library's own controller and policy. Delays are never cut short: what is left of a micro-batch that
// `at` leaves is charged to the next step.
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
  uint32_t workers = 8, micro_batches = 12;  // at least one of each
  double other = 0.5;                        // Tc, seconds
  uint64_t steps = 2000;                     // from 1, those that are not measured among them
  uint64_t seed = 0;
};

// Times of all workers, as if nothing was ever dropped.
ComputeTrace make_trace(const StragglerSettings& settings, uint64_t first_step, uint64_t steps);

struct Remedy {
  enum class Kind : uint8_t {
    none,          // all wait for the slowest
    drop_compute,  // by `drop`: a threshold that is given, or chosen
    backup,        // the `backups` latest workers' gradients are left out whole (Chen et al. 2016, arXiv:1604.00981)
    oracle,  // knows in advance which micro-batches end in time (docs/design/methods/drop_compute.md, "The threshold search"):
             // no method, a bound. `drop.seconds` is the threshold
    rebalanced,  // each worker has as many micro-batches as its mean speed in the first drop.calibration_steps steps allows;
                 // their sum is the same
    random       // leaves out `share` of the micro-batches by lot, whoever is late: no remedy for time, but for comparing what
                 // dropping does to the loss
  };
  Kind kind = Kind::none;
  DropOptions drop{};
  uint32_t backups = 0;  // fewer than workers
  double share = 0;
};
std::string name_of(const Remedy& remedy);  // "auto, after", "16 s, at", "14 backup workers"

struct StragglerOutcome {
  double total = 1;                                // S_total: micro-batches per second, of those without a remedy
  double step = 1;                                 // S_step
  double drop = 0;                                 // p
  double step_mean = 0, step_deviation = 0;        // seconds
  double compute_mean = 0, compute_deviation = 0;  // without Tc
  double threshold = 0;                            // that was in force last; 0: none
  std::string off;                                 // why not
  double predicted_total = 1, predicted_step = 1, predicted_drop = 0;  // of an automatic one
  std::vector<double> drop_by_worker;
  std::vector<double> step_times;  // of each measured step, seconds
  std::vector<std::string> warnings;
};
// `measured_from`: steps before count for nothing (warming up and recording). The time without a remedy is that of the same
// steps.
StragglerOutcome run_stragglers(const StragglerSettings& settings, const Remedy& remedy, uint64_t measured_from = 1,
                                const std::function<void(uint64_t steps)>& progress = nullptr);
// The number of backup workers with the highest S_total.
uint32_t best_backups(const StragglerSettings& settings);

}  // namespace unisono::sim
