// One group as the engine knows it: members, epoch, numbering of operations, compiled plans.
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

inline constexpr PeerIndex self_peer = UINT32_MAX;  // this process in a member list

struct GroupCore {
  uint32_t number = 0;
  uint32_t epoch = 0;              // as in frames
  std::vector<PeerIndex> members;  // by rank; self_peer for this process
  Rank self = 0;
  std::vector<uint32_t> host_groups;    // host group (host) of each rank
  std::unique_ptr<UnevenLinks> uneven;  // null where links between hosts are alike
  OperationNumbers numbers;
  PlanCache plans;
  uint64_t failed_elsewhere = 0;     // the latest operation in the order of calls that ended here but failed on another member
  std::string failed_elsewhere_why;  // in that member's words; empty: there is none
  Status violation;                  // not ok: ranks were seen to call different things; the next operation says so
  std::array<FastPathPlan, record::collective_count> fast_path;  // by collective
  std::vector<int32_t> rank_of_peer;                             // by PeerIndex; -1 = not a member
  Status ended;                                                  // not ok: no more operations
  std::vector<Status> aborted;                                   // by rank; empty: nobody has aborted the group
  Status first_abort;                                            // the first abort that was reported; ok: none was
  std::unique_ptr<LossyGroup> lossy;                             // null: a link of it delivers everything
  std::string no_datagrams;                                      // then: which, for people
  std::unique_ptr<record::Recorder> record;                      // null: none is kept, as in the simulator

  // Why the executor serves a call that may be lossy; null: it does not. The answer is the same on all ranks.
  std::shared_ptr<const DeliveryReport> reliable_because(const OperationRequest& request) const;

  // Another rank has sent a frame of an operation that has not begun here.
  void others_began(PeerIndex from, const FrameHeader& header) const;

  PlanContext plan_context(const Topology& topology) const {
    return {.self = self, .world = world(), .host_groups = host_groups, .topology = topology, .uneven = uneven.get()};
  }
  uint32_t world() const { return static_cast<uint32_t>(members.size()); }
  int32_t rank_of(PeerIndex peer) const { return peer < rank_of_peer.size() ? rank_of_peer[peer] : -1; }
};

}  // namespace unisono
