// The trials of `unisono tune` and their conclusions. Pure: times in, a table out; equal times give the equal table on every
// rank.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "schedules/tuning.h"
#include "unisono/options.h"

namespace unisono::cli {

// One way to run a collective of one size, and the median of what it took.
struct Trial {
  ScheduleKind kind = ScheduleKind::automatic;
  uint64_t slice_bytes = 0;  // 0: as the cost model chooses
  double us = 0;
  double low_us = 0, high_us = 0;  // quartiles of the rounds
};

// The first trials: the cost model's choice, then every schedule there is. Hierarchical schedules are tried only where some
// hosts have several ranks.
std::vector<Trial> schedule_trials(unisono::Collective collective, std::span<const uint32_t> host_groups);
// Then, around the quickest of these, other slices, where tensors have several.
std::vector<Trial> slice_trials(const Trial& quickest, uint64_t bytes);
// The quickest if it beats the first by more than `gain` (0.05: a twentieth) and the middle halves of their rounds do not
// overlap; else the first.
const Trial& winner(std::span<const Trial> trials, double gain);

struct TunedSize {
  uint64_t bytes = 0;
  Trial winner;
};
// By size, ascending: ranges that share a winner become one, and end half-way (by ratio) to the next size. None if the cost
// model wins everywhere.
std::vector<TunedCall> calls_of(unisono::Collective collective, std::span<const TunedSize> sizes);

struct StreamTrial {
  uint32_t streams = 1;
  double us = 0;
};
// The fewest that are within `gain` of the best.
uint32_t best_streams(std::span<const StreamTrial> trials, double gain);

}  // namespace unisono::cli
