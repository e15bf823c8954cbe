// Helpers for the measurements in loss_run.h: they make the ranks, form blocks of steps, and report progress.
#pragma once

#include <cstdint>

#include "lab/loss/loss_run.h"

namespace unisono::sim {

// Makes ranks in which all values are `value` at first. Fails like check(settings).
Result<LossRanks> make_ranks(const LossSettings& settings, float rate, float value);

// Returns how many steps form a block of the statistics.
uint64_t block_steps(const LossSettings& settings);

// Reports progress from time to time, and once more when the run ends.
class ProgressUpdates {
 public:
  ProgressUpdates(const LossSettings& settings, const LossWatch& watch);
  ~ProgressUpdates() { report(); }
  ProgressUpdates(const ProgressUpdates&) = delete;
  void step() {
    if (++steps_ >= every_) report();
  }

 private:
  void report() {
    if (watch_.progress && steps_ > 0) watch_.progress(steps_);
    steps_ = 0;
  }
  const LossWatch& watch_;
  uint64_t every_ = 1, steps_ = 0;
};

}  // namespace unisono::sim
