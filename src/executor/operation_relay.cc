// Sums in which ranks relay the contributions of other ranks (schedules/relay.h). The value of a lane has one block per rank.
// The blocks are added when all of them have arrived.
#include "executor/operation.h"
#include "schedules/relay.h"

namespace unisono {

// Copies this rank's contribution into the first block of each lane.
void Operation::begin_relay() {
  for (auto& lane : lanes_) {
    if (lane.elements > 0) kernels::copy(output(lane), chunk_memory_[0].input + slice_offset(lane), lane_bytes(lane));
    lane.has_output = true;
  }
}

// Adds the blocks when all have arrived. Returns false if the sum is still being computed.
bool Operation::add_relayed(uint32_t index) {
  auto& lane = lanes_[index];
  sources_.clear();
  for (Rank rank = 0; rank < setup_.world; ++rank)
    sources_.push_back(output(lane) + relay_position(rank, setup_.self, setup_.world) * lane_bytes(lane));
  const auto& q = setup_.request;
  const kernels::Reduction task{.dtype = q.dtype,
                                .op = q.op,
                                .sources = sources_,
                                .destination = static_cast<std::byte*>(q.output) + slice_offset(lane),
                                .copy = nullptr,
                                .count = lane.elements,
                                .divisor = q.op == ReduceOp::avg ? setup_.world : 1};
  lane.computing = lane.elements > 0 && !port_->reduce(task, index);
  return !lane.computing;
}

}  // namespace unisono
