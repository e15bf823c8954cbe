// Begins, looks at and ends operations on the fast path (fast_path.h). The engine owns it, decides when nothing else is to be
// done, and takes over what ends early.
#pragma once

#include <span>

#include "engine/compute.h"
#include "engine/engine_limits.h"
#include "engine/fast_path/fast_path.h"
#include "engine/peer_table.h"
#include "engine/topology.h"

namespace unisono {

class FastPathRunner {
 public:
  FastPathRunner(const PeerTable& peers, Compute& compute, EngineCounters& counters)
      : peers_(peers), compute_(compute), counters_(counters) {}

  // Sends this rank's part. False: nothing was sent or changed, and the executor is to run the operation.
  bool begin(FastPath& fast_path, GroupCore& group, OperationRequest& request, const Topology& topology, Nanos now);
  // Takes what is there of the others' parts. `all`: the operation is done.
  FastPath::Found look(FastPath& fast_path);
  // The report of a finished operation. Call exactly once: it also writes the record entry.
  static Result<Report> report(const FastPath& fast_path, Nanos now);

 private:
  Transport* route_of(const GroupCore& group) const;
  static bool plan(GroupCore& group, const OperationRequest& request, const Topology& topology, FastPathPlan& fast_path);
  bool send(FastPath& fast_path, std::span<const PeerIndex> others);
  bool send_blocks(FastPath& fast_path, std::span<const PeerIndex> others);
  void keep_block(FastPath& fast_path, Rank rank, const void* values);
  void reduce(FastPath& fast_path);

  const PeerTable& peers_;
  Compute& compute_;
  EngineCounters& counters_;
};

}  // namespace unisono
