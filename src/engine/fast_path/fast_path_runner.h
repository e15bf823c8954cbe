// Runs operations on the fast path (fast_path.h). The engine owns this object. The engine decides when the fast path may be
// used, and takes over the operations that do not finish here.
#pragma once

#include <optional>
#include <span>

#include "engine/compute.h"
#include "engine/engine_limits.h"
#include "engine/fast_path/fast_path.h"
#include "engine/peer_table.h"
#include "engine/topology.h"

namespace unisono {

// A frame that was taken from the transport. The payload lies in the caller's output.
struct TakenFrame {
  FrameHeader header;
  const std::byte* payload = nullptr;
};

class FastPathRunner {
 public:
  FastPathRunner(const PeerTable& peers, Compute& compute, EngineCounters& counters)
      : peers_(peers), compute_(compute), counters_(counters) {}

  // Sends the values of this rank. Returns false if nothing was sent or changed; then the executor must run the operation.
  bool begin(FastPath& fast_path, GroupCore& group, OperationRequest& request, const Topology& topology, Nanos now);
  // Handles the frames that have arrived from other ranks. Found::all means that the operation is done.
  FastPath::Found look(FastPath& fast_path);
  // Returns the frame that look() has taken, if the executor takes over. It has no other way to get this frame.
  static std::optional<TakenFrame> taken_frame(const FastPath& fast_path);
  // Returns the report of an operation that is done. Call it exactly once, because it also writes the record entry.
  static Result<Report> report(const FastPath& fast_path, Nanos now);

 private:
  Transport* route_of(const GroupCore& group) const;
  static bool plan(GroupCore& group, const OperationRequest& request, const Topology& topology, FastPathPlan& fast_path);
  bool send(FastPath& fast_path, std::span<const PeerIndex> others);
  bool send_blocks(FastPath& fast_path, std::span<const PeerIndex> others);
  void keep_block(FastPath& fast_path, Rank rank, const void* values);
  void confirm(FastPath& fast_path);
  static const FrameHeader& expected(FastPath& fast_path, Rank rank);
  bool look_for_answer_next(FastPath& fast_path);
  void finish(FastPath& fast_path);

  const PeerTable& peers_;
  Compute& compute_;
  EngineCounters& counters_;
};

}  // namespace unisono
