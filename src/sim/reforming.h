// A group that loses members and continues: every process makes one all-reduce after another. When one fails, the survivors
// re-form the group with the state machine of group/lifecycle/reform, over the same links, and start again.
//
// Checks: rosters (never two under one epoch, a single group at the end); removed processes (only silent ones); values per
// epoch; and that all processes finish in bounded time once the faults are over.
#pragma once

#include <string>
#include <vector>

#include "sim/cluster.h"
#include "sim/faults.h"
#include "unisono/status.h"

namespace unisono::sim {

struct ReformSettings {
  uint32_t calls = 5;                 // all-reduces that a process must finish in one epoch
  Nanos think_max = 8 * millisecond;  // limit of the pause between two of them
  size_t elements = 3000;
  Nanos timeout = 400 * millisecond;         // of each all-reduce
  Nanos reform_timeout = 200 * millisecond;  // during re-forming, a member that stays silent for this long is removed
  uint64_t seed = 1;
};

struct ReformReport {
  uint64_t operations_ok = 0;
  uint64_t operations_failed = 0;
  uint64_t epochs = 0;   // reached by some process, without the first
  uint64_t removed = 0;  // processes
  Nanos ended_at = 0;
};

// Runs to the end or to `limit`, and adds failed checks to problems. The cluster must be fresh, with its faults scheduled. Ends
// all groups.
ReformReport run_reforming(Cluster& cluster, const FaultPlan& plan, const ReformSettings& settings, Nanos limit,
                           std::vector<std::string>& problems);

}  // namespace unisono::sim
