// One group as the engine knows it: members, epoch, numbering of operations, compiled plans.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "engine/lossy/lossy_group.h"
#include "executor/plan.h"
#include "executor/request.h"
#include "record/recorder.h"
#include "schedules/cost.h"
#include "schedules/uneven_links.h"
#include "unisono/report.h"
#include "wire/frame.h"
#include "wire/peer_id.h"

namespace unisono {

inline constexpr PeerIndex self_peer = UINT32_MAX;  // this process in a member list

// What the latest call of its kind without the executor had in common with the next one like it (engine/fast_path/fast_path.h).
struct FastPathPlan {
  static constexpr uint32_t world_max = exchange_ranks_max;  // bits of FastPath::missing
  bool serves(const OperationRequest& q) const {
    return plan != nullptr && q.count == count && q.dtype == dtype && q.op == op && q.order == order &&
           q.schedule == schedule && q.slice_bytes == asked_slice_bytes && q.collective == collective &&
           q.in_place_blocks == in_place_blocks && q.root == root && q.send_counts.empty() && q.recv_counts.empty() &&
           q.codec->is_plain() && q.encode_error == nullptr && q.agreement == 0;
  }

  Collective collective = Collective::all_reduce;
  size_t count = 0;
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;
  Order order = Order::automatic;
  ScheduleKind schedule = ScheduleKind::automatic;
  uint64_t asked_slice_bytes = 0;
  uint64_t slice_bytes = 0;
  bool in_place_blocks = false;
  Rank root = 0;
  const Plan* plan = nullptr;  // null: there was none
  uint64_t tensor_bytes = 0;   // as in the record
  FrameHeader header;          // but for the operation's number and the chunk
  Report report;               // but for number, times and last rank
  uint32_t pending = 0;        // ranks that send to this one, as bits
  std::array<PeerIndex, world_max>
      others{};                    // that this rank sends to, or receives from, or both; if all of them, from the next rank on
  size_t sends = 0, receives = 0;  // of others: all of them, or none
};

struct GroupCore {
  uint32_t number = 0;
  uint32_t epoch = 0;              // as in frames
  std::vector<PeerIndex> members;  // by rank; self_peer for this process
  Rank self = 0;
  std::vector<uint32_t> host_groups;          // host group (host) of each rank
  std::unique_ptr<UnevenLinks> uneven;        // null where links between hosts are alike
  uint64_t next_operation = 0;                // of those numbered by order of calls
  std::map<uint64_t, uint32_t> next_message;  // point-to-point sequence by (source, destination, tag)
  std::vector<uint64_t> recent_ids;           // user-numbered operations that ended lately: ring of recent_ids_max
  size_t recent_at = 0;
  std::vector<uint64_t> failed;  // operations that failed lately: late data for them are no surprise; ring likewise
  size_t failed_at = 0;
  uint64_t given_up = 0;     // by another member, though it ended here: the latest such operation in the order of calls
  std::string given_up_why;  // in that member's words; empty: there is none
  Status violation;          // not ok: ranks were seen to call different things; the next operation says so
  std::map<uint64_t, std::unique_ptr<Plan>> plans;  // by PlanChoice::key
  // The latest requests and what was chosen for them: choosing costs microseconds, a small operation less.
  struct Chosen {
    Collective collective = Collective::all_reduce;
    DType dtype = DType::f32;
    ReduceOp op = ReduceOp::sum;
    Order order = Order::automatic;
    ScheduleKind schedule = ScheduleKind::automatic;
    Rank root = 0;
    uint64_t bytes = 0, slice_bytes = 0;
    uint64_t chosen_slice_bytes = 0;
    Codec codec{}, chosen_codec{};
    std::string_view codec_note{};
    const Plan* plan = nullptr;
  };
  std::array<Chosen, 16> chosen{};
  size_t chosen_at = 0;
  std::array<FastPathPlan, record::collective_count> fast_path;  // by collective
  std::vector<int32_t> rank_of_peer;                             // by PeerIndex; -1 = not a member
  Status ended;                                                  // not ok: no more operations
  std::vector<Status> gave_up;                                   // by rank; empty: nobody has aborted the group
  Status first_abort;                                            // that was heard of, for people; ok: none
  std::unique_ptr<LossyGroup> lossy;                             // null: a link of it delivers everything
  std::string no_datagrams;                                      // then: which, for people
  std::unique_ptr<record::Recorder> record;                      // null: none is kept, as in the simulator

  static constexpr size_t recent_ids_max = 1024;
  static void remember(std::vector<uint64_t>& ring, size_t& at, uint64_t number) {
    if (ring.size() < recent_ids_max) ring.push_back(number);
    else ring[at++ % recent_ids_max] = number;
  }

  // Why a call that may be lossy is delivered reliably, by the executor; null: it is not. Alike on all ranks.
  std::shared_ptr<const DeliveryReport> reliable_because(const OperationRequest& request) const;

  // A frame of an operation that has not begun here: of the order of calls, or of none.
  void others_began(PeerIndex from, const FrameHeader& header) const;

  uint32_t world() const { return static_cast<uint32_t>(members.size()); }
  int32_t rank_of(PeerIndex peer) const { return peer < rank_of_peer.size() ? rank_of_peer[peer] : -1; }
};

// Operation numbers: by order of calls (no high bit), by the user (bit 62), point to point (bit 63).
inline constexpr uint64_t user_id_bit = uint64_t{1} << 62;
inline constexpr uint64_t message_id_bit = uint64_t{1} << 63;
constexpr bool is_in_order(uint64_t number) { return (number & (user_id_bit | message_id_bit)) == 0; }
inline constexpr uint64_t all_operations = UINT64_MAX;  // in a failed frame: its sender has aborted the group
constexpr uint64_t message_key(Rank source, Rank destination, uint32_t tag) {
  return uint64_t{source} << 40 | uint64_t{destination} << 16 | tag;
}
constexpr uint64_t message_id(Rank source, uint32_t tag, uint32_t sequence) {
  return message_id_bit | uint64_t{source & 0x7FFF} << 47 | uint64_t{tag & 0x7FFF} << 32 | sequence;
}

}  // namespace unisono
