// Checks that all ranks make their lossy and reliable calls in the same order. If ranks wait for each other in different calls,
// they detect this and end these calls.
//
// If a waiting rank receives a frame of a call that it has not begun, it sends its position to the sender of the frame. This is
// rare if all ranks make the same calls. The receiver compares the position with its own at once, and again when it begins
// calls. It compares only the numbers (engine/call_position.h). Calls that overlap but have the same order are therefore never
// reported.
#include "engine/lossy/lossy_group.h"

#include <algorithm>

#include "base/concat.h"

namespace unisono {

bool LossyGroup::on_message(Rank from, ByteView message, Nanos now) {
  if (message.empty() || from >= world()) return false;
  if (static_cast<uint8_t>(message[0]) == CallPosition::kind) {
    const auto position = CallPosition::decode(message);
    if (!position || position->rank >= world() || position->rank == setup_.datagrams.self) return false;
    check_position(from, *position, now);
    keep_position(from, *position);
    return true;
  }
  if (static_cast<uint8_t>(message[0]) == AnnouncedCall::kind) {
    auto call = AnnouncedCall::decode(message);
    if (call) on_call(from, std::move(*call), now);
    return call.ok();
  }
  auto decision = DeliveryDecision::decode(message);
  if (!decision || from != 0) return false;
  choice_.on_decision(std::move(*decision));
  return true;
}

void LossyGroup::on_call_begun_elsewhere(Rank from) {
  if (running_) send_position(from, position_in(next_number() - 1));
}

void LossyGroup::on_reliable_call_begun(Nanos now) {
  check_kept_positions(now);
  const auto next = next_number();
  const auto& early = early_[next & 1];
  if (early.datagrams.empty() || early.op != next) return;
  const auto position = waiting_position();
  for (Rank rank = 0; position && rank < world(); ++rank) {
    if (rank != setup_.datagrams.self && op_distance(newest_[rank], next) >= 0) send_position(rank, *position);
  }
}

// Returns a call that this rank has begun. Returns null if the call has ended.
LossyGroup::Call* LossyGroup::find_call(uint32_t number) {
  const auto distance = op_distance(number, op_);
  if (distance == 0 && running_) return current().done() ? nullptr : &call_;
  const auto at = static_cast<size_t>(distance - (running_ ? 1 : 0));
  if (distance < 0 || at >= waiting_.size() || waiting_[at].completion == nullptr) return nullptr;
  return &waiting_[at];
}

// Returns the position that this rank had when it began the given call. The call must still be running or waiting.
CallPosition LossyGroup::position_in(uint32_t number) const {
  const auto& call = number == op_ ? call_ : waiting_[number - op_ - 1];
  return {.rank = setup_.datagrams.self,
          .lossy = number + 1,
          .reliable = call.reliable_before,
          .in_lossy = true,
          .call = describe(call.request, ScheduleKind::two_step, setup_.datagram_bytes, world())};
}

// Returns this rank's present position if its newest reliable call is still running.
std::optional<CallPosition> LossyGroup::waiting_position() const {
  const auto begun = setup_.reliable.begun ? setup_.reliable.begun() : 0;
  if (begun == 0) return {};
  const auto call = setup_.reliable.running_call(begun - 1);
  if (!call) return {};
  return CallPosition{.rank = setup_.datagrams.self, .lossy = next_number(), .reliable = begun, .call = *call};
}

void LossyGroup::send_position(Rank to, const CallPosition& position) {
  if (!setup_.reliable.begun || !lost_[to].ok()) return;
  const std::pair<uint32_t, uint64_t> point{position.lossy, position.reliable};
  if (std::exchange(sent_positions_[to], point) != point) setup_.send_message(to, position.encode());
}

Status LossyGroup::difference_from(const CallPosition& theirs, const CallPosition& ours) const {
  return {Code::invalid, concat("calls differ: rank ", theirs.rank, " (", location(theirs.rank), ") ", theirs.text(), "; rank ",
                                ours.rank, " ", ours.text())};
}

// Keeps a position that is in a call that this rank has not begun, and compares it when this rank begins that call. By then,
// the other ranks may have ended their calls, and may send no more frames that could show the difference.
void LossyGroup::keep_position(Rank from, const CallPosition& position) {
  if (!setup_.reliable.begun || passed(position)) return;
  const auto same = [&](const auto& k) {
    return k.second.rank == position.rank && k.second.lossy == position.lossy && k.second.reliable == position.reliable;
  };
  if (std::ranges::any_of(kept_positions_, same)) return;
  if (kept_positions_.size() >= kept_positions_max) kept_positions_.erase(kept_positions_.begin());
  kept_positions_.push_back({from, position});
}

void LossyGroup::check_kept_positions(Nanos now) {
  if (kept_positions_.empty()) return;
  const auto kept = kept_positions_;
  for (const auto& [from, position] : kept) check_position(from, position, now);
  std::erase_if(kept_positions_, [this](const auto& k) { return passed(k.second); });
}

// Returns true if the position concerns only calls that this rank has already begun.
bool LossyGroup::passed(const CallPosition& position) const {
  const auto lossy = op_distance(position.lossy, next_number());
  const auto reliable = setup_.reliable.begun();
  return lossy < 0 || position.reliable < reliable || (lossy == 0 && position.reliable == reliable);
}

void LossyGroup::check_position(Rank from, const CallPosition& theirs, Nanos now) {
  if (!setup_.reliable.begun) return;
  const auto ahead = op_distance(next_number(), theirs.lossy);
  CallPosition ours;
  if (ahead > 0) {
    // This rank has begun a lossy call that the other rank has not begun. Before that call, this rank had begun
    // `reliable_before` reliable calls. The orders differ if the other rank has already begun more reliable calls than that.
    auto* call = find_call(theirs.lossy);
    if (call == nullptr || theirs.reliable <= call->reliable_before) return;
    ours = position_in(theirs.lossy);
    const auto status = difference_from(theirs, ours);
    if (call == &call_) {
      current().fail(status, now);
    } else {
      end(std::move(*call), status);
      call->completion = nullptr;  // the entry remains, so that its number stays reserved
    }
  } else {
    // The other rank has begun a lossy call that this rank has not begun. The orders differ if this rank has begun a reliable
    // call that the other rank had not begun by then.
    if (ahead == 0 || theirs.reliable >= setup_.reliable.begun()) return;
    const auto call = setup_.reliable.running_call(theirs.reliable);
    if (!call) return;
    ours = {.rank = setup_.datagrams.self, .lossy = next_number(), .reliable = theirs.reliable + 1, .call = *call};
    setup_.reliable.fail(theirs.reliable, difference_from(theirs, ours));
  }
  // Forward the position to the other ranks, so that each of them can compare it. They do not forward it again.
  if (theirs.rank != from) return;
  for (Rank to = 0; to < world(); ++to) {
    if (to == setup_.datagrams.self || !lost_[to].ok()) continue;
    setup_.send_message(to, ours.encode());
    if (to != theirs.rank) setup_.send_message(to, theirs.encode());
  }
}

}  // namespace unisono
