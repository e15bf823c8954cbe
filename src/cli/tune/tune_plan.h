// The trials that `unisono tune` makes, and what it concludes from their times. All functions are pure, so every rank computes
// the same table from the same times.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "schedules/tuning.h"
#include "unisono/options.h"

namespace unisono::cli {

// One way to run a collective of a given size, and the median time that it took.
struct Trial {
  ScheduleKind kind = ScheduleKind::automatic;
  uint64_t slice_bytes = 0;  // 0: the cost model chooses
  double us = 0;
  double low_us = 0, high_us = 0;  // the quartiles of the times in all rounds
};

// Returns the first trials: the choice of the cost model, and then every schedule. Hierarchical schedules are included only if
// there are several hosts, and at least one of them has several ranks.
std::vector<Trial> schedule_trials(unisono::Collective collective, std::span<const uint32_t> host_groups);
// Returns trials that use the quickest schedule with other slice sizes. There are none if the tensor is too small to be cut
// into slices.
std::vector<Trial> slice_trials(const Trial& quickest, uint64_t bytes);
// Returns the quickest trial if its advantage over the first trial is large and certain. Otherwise returns the first trial.
// Large means that it is quicker by more than `gain` (0.05 is a twentieth). Certain means that the middle halves of the two
// trials' times do not overlap.
const Trial& winner(std::span<const Trial> trials, double gain);

struct TunedSize {
  uint64_t bytes = 0;
  Trial winner;
};
// Combines adjacent sizes that have the same winner into ranges. A range ends at sqrt(its last size * the next size). `sizes`
// must be in ascending order. If the cost model wins at all sizes, the result is empty.
std::vector<TunedCall> calls_of(unisono::Collective collective, std::span<const TunedSize> sizes);

struct StreamTrial {
  uint32_t streams = 1;
  double us = 0;
};
// Returns the smallest number of streams with which the time is at most `gain` worse than the best time.
uint32_t best_streams(std::span<const StreamTrial> trials, double gain);

}  // namespace unisono::cli
