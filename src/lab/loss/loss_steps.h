// Helpers that the studies of loss_run.h share: virtual ranks for the settings, blocks of steps, and progress.
#pragma once

#include <cstdint>

#include "lab/loss/loss_run.h"

namespace unisono::sim {

// Ranks whose values all begin as `value`. invalid: as check(settings).
Result<LossRanks> make_ranks(const LossSettings& settings, float rate, float value);

// Steps per block of the statistics.
uint64_t block_steps(const LossSettings& settings);

// Reports progress after every few steps, and when the run ends.
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
