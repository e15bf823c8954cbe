// Statistics of all ranks over a number of steps.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "unisono/drop_compute.h"

namespace unisono {

// One rank in one step. planned 0: its shard was finished, so the step has no data of it.
struct StepRecord {
  uint64_t planned = 0, computed = 0;
  int64_t compute_ns = 0, wall_ns = 0;
  friend bool operator==(const StepRecord&, const StepRecord&) = default;
};

// Sums over steps, accumulated window by window.
struct DropSums {
  uint64_t steps = 0, planned = 0, computed = 0;
  double wall = 0, wall_squared = 0;              // of steps: mean over ranks, s
  double compute = 0, compute_squared = 0;        // of the slowest rank
  double spread = 0;                              // time from the first to the last rank that stopped
  std::vector<uint64_t> planned_by, computed_by;  // by rank

  void add(const DropSums& other);
};
// ranks: [rank][step], with equal numbers of steps.
DropSums sums_of(std::span<const std::vector<StepRecord>> ranks);
// Sets the report's measured numbers.
void fill(DropReport& report, const DropSums& sums);
std::vector<double> drop_by_rank(const DropSums& sums);

}  // namespace unisono
