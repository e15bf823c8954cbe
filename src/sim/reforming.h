// The scenario of a group that loses members and goes on: every process calls all-reduce after all-reduce; when one fails,
// the living re-form the group with the state machine of group/lifecycle/reform, over the same links, and begin again.
//
// Checked: rosters (never two under one epoch, one group in the end), who was removed (only who had been silent), values
// per epoch, and that everybody gets through in bounded time once the faults are over.
#pragma once

#include <string>
#include <vector>

#include "sim/cluster.h"
#include "sim/faults.h"
#include "unisono/status.h"

namespace unisono::sim {

struct ReformSettings {
  uint32_t calls = 5;                 // all-reduces that a process must finish in one epoch
  Nanos think_max = 8 * millisecond;  // between two of them
  size_t elements = 3000;
  Nanos timeout = 400 * millisecond;         // of each all-reduce
  Nanos reform_timeout = 200 * millisecond;  // how long a silent member is waited for
  uint64_t seed = 1;
};

struct ReformReport {
  uint64_t operations_ok = 0;
  uint64_t operations_failed = 0;
  uint64_t epochs = 0;   // that some process came to, beyond the first
  uint64_t removed = 0;  // processes
  Nanos ended_at = 0;
};

// Runs to the end or to `limit`; what is wrong is added to problems. The cluster must be fresh, its faults planted. Ends
// all groups.
ReformReport run_reforming(Cluster& cluster, const FaultPlan& plan, const ReformSettings& settings, Nanos limit,
                           std::vector<std::string>& problems);

}  // namespace unisono::sim
