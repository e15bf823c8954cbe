// The parts that all fast-path calls of one kind share. Each group keeps the latest plan of every collective.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "executor/plan.h"
#include "executor/request.h"
#include "schedules/cost.h"
#include "unisono/report.h"
#include "wire/frame.h"
#include "wire/peer_id.h"

namespace unisono {

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

}  // namespace unisono
