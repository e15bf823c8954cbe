// How an operation receives messages: it finds their places in the plan, refuses what does not belong there, and holds their
// values until their lanes need them.
#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "base/concat.h"
#include "executor/operation.h"

namespace unisono {

// Returns the number of elements that a confirmation between this rank and `other` shows, if only the two know it: the size of
// the block that one of them sends to the other. One of them is the root.
uint64_t Operation::elements_shown_to(Rank other) const {
  const auto chunk = plan_->find(setup_.self == setup_.request.root ? other : setup_.self);
  return chunk < 0 ? 0 : chunk_memory_[static_cast<size_t>(chunk)].elements;
}

// If only two ranks know the size of a block, checks that they agree. Both ranks find the same difference, so the text is the
// same on both.
Status Operation::check_elements(Rank from, const FrameHeader& header, uint32_t chunk) const {
  const bool confirms = plan_->is_confirmation(chunk);
  const auto ours = confirms ? elements_shown_to(from) : chunk_memory_[chunk].elements;
  const auto theirs = elements_in(header.amount);
  if (!sizes_per_pair(setup_.request.collective) || theirs == ours) return {};
  const auto& q = setup_.request;
  const bool from_sends = !confirms || (q.collective == Collective::gather) == (setup_.self == q.root);
  return {Code::invalid,
          concat(label(), ": rank ", from_sends ? from : setup_.self, " sent a block of ", from_sends ? theirs : ours,
                 " elements where rank ", from_sends ? setup_.self : from, " expects ", from_sends ? ours : theirs)};
}

// `payload` is null if the payload has not arrived yet.
Status Operation::locate(Rank from, const FrameHeader& header, Message& message, const std::byte* payload) const {
  const auto wrong = [&](const std::string& what) {
    return Status(Code::invalid, concat(label(), ": rank ", from, " sent ", what));
  };
  if (!has_our_descriptor(header)) {
    return {
        Code::invalid,
        concat(
            label(), ": ",
            descriptor_difference(
                {.rank = from, .location = port_->location(from), .descriptor = {header.descriptor, header.amount}},
                {.rank = setup_.self, .descriptor = descriptor_, .receives = setup_.request.collective == Collective::recv}))};
  }
  const auto chunk = plan_->find(header.chunk);
  if (chunk < 0) return wrong(concat("chunk ", header.chunk, ", which is not in the plan of rank ", setup_.self));
  const auto& chunk_plan = plan_->chunks[static_cast<size_t>(chunk)];
  if (auto status = check_elements(from, header, static_cast<uint32_t>(chunk)); !status.ok()) return status;
  if (header.slice >= slice_count(static_cast<size_t>(chunk)))
    return wrong(concat("slice ", header.slice, " beyond the chunk's end"));
  const auto begin = plan_->stages.begin() + chunk_plan.stage_begin, end = plan_->stages.begin() + chunk_plan.stage_end;
  const auto stage = std::lower_bound(begin, end, header.round, [](const Stage& s, uint32_t round) { return s.round < round; });
  if (stage == end || stage->round != header.round)
    return wrong(concat("a message of round ", header.round, ", but its chunk ", header.chunk, " has no such round"));
  const auto ranks = plan_->receives(*stage);
  const auto at = std::lower_bound(ranks.begin(), ranks.end(), from);
  if (at == ranks.end() || *at != from) return wrong(concat("an unexpected message of round ", header.round));
  message.lane = first_lane_[static_cast<size_t>(chunk)] + header.slice;
  message.stage = static_cast<uint32_t>(stage - plan_->stages.begin());
  message.entry = lanes_[message.lane].arrivals + stage->recv_before + static_cast<size_t>(at - ranks.begin());
  if (auto status = check_codec(from, header, message, payload); !status.ok()) return status;
  const auto bytes = message_bytes(lanes_[message.lane], *stage);
  if (header.payload_bytes != bytes) return wrong(concat("a slice of ", header.payload_bytes, " bytes instead of ", bytes));
  if (arrivals_.arrived(message.entry)) return wrong("the same message twice");
  return {};
}

std::byte* Operation::receive_buffer(Rank from, const FrameHeader& header) {
  Message message;
  if (done_ || header.payload_bytes == 0 || !locate(from, header, message).ok()) return nullptr;
  if (arrivals_.state(message.entry) != ArrivalMap::State::missing) return nullptr;
  const auto& lane = lanes_[message.lane];
  const auto& stage = plan_->stages[message.stage];
  Piece piece{.bytes = header.payload_bytes};
  const bool may_overwrite = plan_->relayed || (lane.stage == message.stage && lane.entered && lane.sends_pending == 0);
  std::byte* target = nullptr;
  if (!stage.reduces && may_overwrite && !is_encoded(stage)) {
    target = copy_destination(lane, stage);
  } else {
    target = port_->stage(header.payload_bytes);
    piece.staged = true;
  }
  piece.data = target;
  if (target != nullptr) arrivals_.receiving(message.entry, piece);
  return target;
}

// Returns the piece that is held until its lane needs it: the receive buffer, the given piece, or a copy of that piece.
Piece Operation::piece_to_hold(Rank from, const Message& message, const Piece& given) {
  if (arrivals_.state(message.entry) == ArrivalMap::State::receiving) return arrivals_.piece(message.entry);
  if (given.handle == 0) return given;
  const auto& lane = lanes_[message.lane];
  const auto& stage = plan_->stages[message.stage];
  const bool used_now = lane.entered && lane.stage == message.stage && lane.sends_pending == 0 &&
                        lane.arrived_messages + 1 == stage.recv_end - stage.recv_begin;
  const bool may_wait = !flows_[from].copies && (setup_.hold_views || !stage.reduces);
  return used_now || may_wait ? given : copied(given);
}

Piece Operation::copied(const Piece& given) {
  const Piece staged{.data = port_->stage(given.bytes), .bytes = given.bytes, .staged = true};
  kernels::copy(const_cast<std::byte*>(staged.data), given.data, given.bytes);
  port_->release(given);
  return staged;
}

void Operation::received(Rank from, const FrameHeader& header, const Piece& given, Nanos now) {
  now_ = now;
  if (done_) return port_->release(given);
  Message message;
  try {
    auto status = locate(from, header, message, given.data);
    if (!status.ok()) {
      port_->release(given);
      return differs_in_hash(header) ? dispute(std::move(status)) : fail_here(std::move(status));
    }
    arrivals_.hold(message.entry, piece_to_hold(from, message, given));
  } catch (const std::bad_alloc&) {
    port_->release(given);
    return out_of_memory(now);
  }
  auto& flow = flows_[from];
  flow.recv_arrived += header.payload_bytes;
  if (flow.is_overdrawn()) grant_more(from);
  if (flow.first_arrival == never) {
    flow.first_arrival = now;
    last_first_arrival_ = now;
    last_rank_ = from;
    ++ranks_heard_;
    balance_ += header.amount >> amount_bits;
  }
  counts_.received_bytes += header.payload_bytes + sizeof(FrameHeader);
  ++counts_.received_messages;
  ++flow.received_messages;
  last_receive_ = now;
  auto& lane = lanes_[message.lane];
  const bool needed_now = lane.entered && lane.stage == message.stage;
  if (needed_now) {
    ++lane.arrived_messages;
    make_ready(message.lane);
  }
  if (confirm_if_all_heard() || needed_now) run(now);
}

}  // namespace unisono
