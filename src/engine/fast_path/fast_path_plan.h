// The part of a fast-path call that is computed once and shared by equal calls. For each collective, a group keeps the latest
// plan.
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
  static constexpr uint32_t world_max = exchange_ranks_max;  // FastPath::missing has one bit per rank
  bool matches(const OperationRequest& q) const {
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
  const Plan* plan = nullptr;  // null: no plan was made yet
  uint64_t tensor_bytes = 0;   // the size of the tensor that the record shows
  FrameHeader header;          // all fields are set, except for the number of the operation and the chunk
  // For all_to_all: the amount that the frames of each rank show, with the share of this rank (executor/block_balance.h). Only
  // equal blocks of all ranks have these shares, so a frame that matches also shows that its sender's other blocks fit.
  std::array<uint64_t, world_max> amounts{};
  // Like `header`, for the confirmation of a collective with a root, and for the root's answer to all
  // (executor/confirmation.h).
  FrameHeader confirmation{}, answer{};
  Report report;         // all fields are set, except for the number, the times and the last rank
  uint32_t pending = 0;  // bit set of the other ranks that send to this rank
  uint32_t sources = 0;  // bit set of the ranks that send data; the other ranks send their confirmation, or the answer
  // The ranks with which this rank exchanges frames. They begin with the next rank, or with the only rank to which this rank
  // sends data or a confirmation.
  std::array<PeerIndex, world_max> others{};
  size_t other_count = 0;
  // This rank sends data to the first `sends` of them, and its confirmation to the next `confirms`. It receives data from
  // `receives` of them.
  size_t sends = 0, confirms = 0, receives = 0;
  bool answers = false;  // true: this rank is the root, and answers all others when it has all their frames
  enum class Answer : uint8_t { none, alone, second };
  Answer answer_comes = Answer::none;  // whether the root's answer is its only frame, or its second one
};

}  // namespace unisono
