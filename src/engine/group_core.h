// One group in the engine, with its members, epoch, operation numbers and compiled plans.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/fast_path/fast_path_plan.h"
#include "engine/lossy/lossy_group.h"
#include "engine/operations/operation_numbers.h"
#include "engine/operations/plan_cache.h"
#include "executor/request.h"
#include "record/recorder.h"
#include "schedules/uneven_links.h"
#include "wire/frame.h"
#include "wire/peer_id.h"

namespace unisono {

inline constexpr PeerIndex self_peer = UINT32_MAX;  // stands for this process in a list of members

struct GroupCore {
  uint32_t number = 0;
  uint32_t epoch = 0;              // frames of this group carry this epoch
  std::vector<PeerIndex> members;  // indexed by rank; the entry of this process is self_peer
  Rank self = 0;
  std::vector<uint32_t> host_groups;    // the host group of each rank
  std::unique_ptr<UnevenLinks> uneven;  // null if all links between hosts are equally fast
  OperationNumbers numbers;
  PlanCache plans;
  uint64_t failed_elsewhere = 0;     // the last operation, in the order of calls, that was ok here but failed on another member
  std::string failed_elsewhere_why;  // text of that failure, as that member sent it; empty: there was none
  Status violation;                  // if not ok: ranks made different calls, and the next operation returns this status
  std::array<FastPathPlan, record::collective_count> fast_path;  // indexed by collective
  std::vector<int32_t> rank_of_peer;                             // indexed by PeerIndex; -1: not a member
  Status ended;                                                  // if not ok: further operations are refused with this status
  // For each rank: why it aborted the group (ok: it did not). If no rank did, the vector is empty.
  std::vector<Status> aborted;
  Status first_abort;                        // the abort that was reported first; ok: there was none
  std::unique_ptr<LossyGroup> lossy;         // null: lossy operations are not possible, because some link carries no datagrams
  std::string no_datagrams;                  // says to users why `lossy` is null
  std::unique_ptr<record::Recorder> record;  // null: the group keeps no record, for example in the simulator

  // If a call with automatic delivery must run reliably, returns a report with the reason. Otherwise returns null. The result
  // is equal on all ranks.
  std::shared_ptr<const DeliveryReport> reliable_because(const OperationRequest& request) const;

  // Call it when another rank has sent a frame of an operation that this rank has not begun.
  void on_call_begun_elsewhere(PeerIndex from, const FrameHeader& header) const;

  PlanContext plan_context(const Topology& topology) const {
    return {.self = self, .world = world(), .host_groups = host_groups, .topology = topology, .uneven = uneven.get()};
  }
  uint32_t world() const { return static_cast<uint32_t>(members.size()); }
  int32_t rank_of(PeerIndex peer) const { return peer < rank_of_peer.size() ? rank_of_peer[peer] : -1; }
};

}  // namespace unisono
