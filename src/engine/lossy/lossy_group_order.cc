// The order of lossy calls among the others: ranks that wait for each other in different calls find out, and end these calls.
//
// A rank that waits, and receives a frame of a call that it has not begun, sends its own position to the frame's sender. That
// is rare where all ranks make the same calls. A position is judged by numbers alone (engine/call_position.h), at once and when
// calls begin. So calls that overlap, in one order everywhere, are never taken for different ones.
#include "engine/lossy/lossy_group.h"

#include <algorithm>

namespace unisono {

bool LossyGroup::heard(Rank from, ByteView news, Nanos now) {
  if (news.empty() || from >= world()) return false;
  if (static_cast<uint8_t>(news[0]) == CallPosition::kind) {
    const auto position = CallPosition::decode(news);
    if (!position || position->rank >= world() || position->rank == setup_.datagrams.self) return false;
    judge_position(from, *position, now);
    keep_position(from, *position);
    return true;
  }
  auto decision = DeliveryDecision::decode(news);
  if (!decision || from != 0) return false;
  choice_.heard(std::move(*decision));
  return true;
}

void LossyGroup::others_began(Rank from) {
  if (running_) tell_position(from, position_in(next_number() - 1));
}

void LossyGroup::reliable_began(Nanos now) {
  judge_kept_positions(now);
  const auto next = next_number();
  const auto& early = early_[next & 1];
  if (early.datagrams.empty() || early.op != next) return;
  const auto position = waiting_position();
  for (Rank rank = 0; position && rank < world(); ++rank) {
    if (rank != setup_.datagrams.self && op_distance(newest_[rank], next) >= 0) tell_position(rank, *position);
  }
}

// A call that this rank has begun; null: it is over.
LossyGroup::Call* LossyGroup::under_way(uint32_t number) {
  const auto distance = op_distance(number, op_);
  if (distance == 0 && running_) return current().done() ? nullptr : &call_;
  const auto at = static_cast<size_t>(distance - (running_ ? 1 : 0));
  if (distance < 0 || at >= waiting_.size() || waiting_[at].completion == nullptr) return nullptr;
  return &waiting_[at];
}

// Where this rank was when it began that call, which is under way.
CallPosition LossyGroup::position_in(uint32_t number) const {
  const auto& call = number == op_ ? call_ : waiting_[number - op_ - 1];
  return {.rank = setup_.datagrams.self,
          .lossy = number + 1,
          .reliable = call.reliable_before,
          .in_lossy = true,
          .call = describe(call.request, ScheduleKind::two_step, setup_.datagram_bytes, world())};
}

// Where this rank is now, if it waits in the newest of its reliable calls.
std::optional<CallPosition> LossyGroup::waiting_position() const {
  const auto begun = setup_.reliable.begun ? setup_.reliable.begun() : 0;
  if (begun == 0) return {};
  const auto call = setup_.reliable.under_way(begun - 1);
  if (!call) return {};
  return CallPosition{.rank = setup_.datagrams.self, .lossy = next_number(), .reliable = begun, .call = *call};
}

void LossyGroup::tell_position(Rank to, const CallPosition& position) {
  if (!setup_.reliable.begun || !lost_[to].ok()) return;
  const std::pair<uint32_t, uint64_t> point{position.lossy, position.reliable};
  if (std::exchange(told_positions_[to], point) != point) setup_.say(to, position.encode());
}

Status LossyGroup::difference_from(const CallPosition& theirs, const CallPosition& ours) const {
  return {Code::invalid, "calls differ: rank " + std::to_string(theirs.rank) + " (" + place(theirs.rank) + ") " +
                             theirs.text() + "; this rank " + ours.text()};
}

// Keeps a position that is about a call which this rank has not begun. It is judged when the call begins: by then the others
// may have ended theirs, and send no more.
void LossyGroup::keep_position(Rank from, const CallPosition& position) {
  if (!setup_.reliable.begun || passed(position)) return;
  const auto same = [&](const auto& k) {
    return k.second.rank == position.rank && k.second.lossy == position.lossy && k.second.reliable == position.reliable;
  };
  if (std::ranges::any_of(kept_positions_, same)) return;
  if (kept_positions_.size() >= kept_positions_max) kept_positions_.erase(kept_positions_.begin());
  kept_positions_.push_back({from, position});
}

void LossyGroup::judge_kept_positions(Nanos now) {
  if (kept_positions_.empty()) return;
  const auto kept = kept_positions_;
  for (const auto& [from, position] : kept) judge_position(from, position, now);
  std::erase_if(kept_positions_, [this](const auto& k) { return passed(k.second); });
}

// Whether the position says nothing about calls that this rank has yet to begin.
bool LossyGroup::passed(const CallPosition& position) const {
  const auto lossy = op_distance(position.lossy, next_number());
  const auto reliable = setup_.reliable.begun();
  return lossy < 0 || position.reliable < reliable || (lossy == 0 && position.reliable == reliable);
}

void LossyGroup::judge_position(Rank from, const CallPosition& theirs, Nanos now) {
  if (!setup_.reliable.begun) return;
  const auto ahead = op_distance(next_number(), theirs.lossy);
  CallPosition ours;
  if (ahead > 0) {
    // Their next lossy call is one that this rank has begun, after fewer of the others than they have by now?
    auto* call = under_way(theirs.lossy);
    if (call == nullptr || theirs.reliable <= call->reliable_before) return;
    ours = position_in(theirs.lossy);
    const auto status = difference_from(theirs, ours);
    if (call == &call_) {
      current().fail(status, now);
    } else {
      end(std::move(*call), status);
      call->completion = nullptr;  // its number stays
    }
  } else {
    // They have begun lossy calls that this rank has not, after fewer of the others than this one has?
    if (ahead == 0 || theirs.reliable >= setup_.reliable.begun()) return;
    const auto call = setup_.reliable.under_way(theirs.reliable);
    if (!call) return;
    ours = {.rank = setup_.datagrams.self, .lossy = next_number(), .reliable = theirs.reliable + 1, .call = *call};
    setup_.reliable.fail(theirs.reliable, difference_from(theirs, ours));
  }
  // Every rank judges for itself. A position that was passed on is not passed on again.
  if (theirs.rank != from) return;
  for (Rank to = 0; to < world(); ++to) {
    if (to == setup_.datagrams.self || !lost_[to].ok()) continue;
    setup_.say(to, ours.encode());
    if (to != theirs.rank) setup_.say(to, theirs.encode());
  }
}

}  // namespace unisono
