// A group that loses members and continues. Every process makes one all-reduce after another. When an all-reduce fails, the
// survivors re-form the group and start again. They use the state machine of group/lifecycle/reform, over the same links.
//
// The run checks that
// - each epoch has one roster, and at the end there is a single group
// - only silent processes are removed
// - of a group that is split, at most one part computes, if a majority is required
// - the values of each epoch are right
// - all processes finish in bounded time after the faults have ended
#pragma once

#include <string>
#include <vector>

#include "sim/cluster.h"
#include "sim/faults.h"
#include "unisono/status.h"

namespace unisono::sim {

struct ReformSettings {
  uint32_t calls = 5;                 // number of all-reduces that a process must finish in one epoch
  Nanos think_max = 8 * millisecond;  // a process pauses for at most this long between two all-reduces
  size_t elements = 3000;
  Nanos timeout = 400 * millisecond;         // timeout of each all-reduce
  Nanos reform_timeout = 200 * millisecond;  // a member that is silent for this long is removed while the group re-forms
  Nanos link_timeout = second;               // how long a part without a majority waits for proofs of deaths
  bool require_majority = true;
  uint64_t seed = 1;
};

struct ReformReport {
  uint64_t operations_ok = 0;
  uint64_t operations_failed = 0;
  uint64_t epochs = 0;   // the largest number of epochs that a process reached, not counting the first epoch
  uint64_t removed = 0;  // number of removed processes
  Nanos ended_at = 0;
};

// Runs until no event is left, or until time `limit`. Then ends all groups. Appends a text to `problems` for each failed check.
// The caller must pass a new cluster, in which the faults are already scheduled.
ReformReport run_reforming(Cluster& cluster, const FaultPlan& plan, const ReformSettings& settings, Nanos limit,
                           std::vector<std::string>& problems);

}  // namespace unisono::sim
