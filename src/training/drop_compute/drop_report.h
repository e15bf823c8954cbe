// Statistics over all ranks and several steps.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "unisono/drop_compute.h"

namespace unisono {

// The record of one rank about one step. If `planned` is 0, the rank's shard of the data was finished.
struct StepRecord {
  uint64_t planned = 0, computed = 0;
  int64_t compute_ns = 0, wall_ns = 0;
  friend bool operator==(const StepRecord&, const StepRecord&) = default;
};

// Sums over the steps of one or several windows. Times are in seconds.
struct DropSums {
  uint64_t steps = 0, planned = 0, computed = 0;
  double wall = 0, wall_squared = 0;  // Each step adds its duration, averaged over the ranks, and the square of this average.
  double compute = 0, compute_squared = 0;  // Each step adds the compute time of its slowest rank, and the square of this time.
  double spread = 0;  // Each step adds the time from when its first rank stopped computing until its last rank did.
  std::vector<uint64_t> planned_by, computed_by;  // by rank

  void add(const DropSums& other);
};
// `ranks` is indexed by [rank][step]. All ranks must have the same number of steps.
DropSums sums_of(std::span<const std::vector<StepRecord>> ranks);
// Fills in those fields of the report that are measured.
void fill(DropReport& report, const DropSums& sums);
std::vector<double> drop_by_rank(const DropSums& sums);

}  // namespace unisono
