#include "elastic/state/state_donor.h"

#include <algorithm>

#include "base/concat.h"

namespace unisono {

namespace {

// If a wake-up is late, the next parts are sent sooner, to keep the average rate. At most this much lateness is made up for.
constexpr Nanos catch_up = 20 * millisecond;

}  // namespace

StateDonor::StateDonor(const StateDonorOptions& options, StateCopy& copy) : options_(options), copy_(copy) {}

StateDonor::Slot* StateDonor::slot_of(const PeerId& joiner) {
  const auto found = std::find_if(slots_.begin(), slots_.end(), [&](const Slot& slot) { return slot.joiner == joiner; });
  return found == slots_.end() ? nullptr : &*found;
}

Status StateDonor::message(const PeerId& from, const StateMessage& message, Nanos now) {
  Status status;
  if (const auto* ask = std::get_if<StateAsk>(&message)) {
    on(from, *ask, now);
  } else if (const auto* want = std::get_if<StateWant>(&message)) {
    status = on(from, *want, now);
  } else if (std::holds_alternative<StateDone>(message)) {
    peer_gone(from);
  } else {
    status = {Code::corrupt, "state message: for a joiner, not for a donor"};
  }
  if (!status.ok()) ++counters_.malformed;
  return status;
}

void StateDonor::on(const PeerId& from, const StateAsk& ask, Nanos now) {
  if (ask.schema != options_.schema) return refuse(from, StateRefusal::other_schema);
  Slot* slot = slot_of(from);
  if (slot != nullptr && ask.wanted != 0 && ask.wanted != copy_.held_digest()) {
    refuse(from, StateRefusal::other_state);
    return peer_gone(from);
  }
  if (slot == nullptr) slot = grant(from, ask.wanted, now);
  if (slot == nullptr) return;
  // If a joiner asks again, it has forgotten its earlier requests. It begins again, with the same state.
  slot->wanted.clear();
  slot->received_at = slot->last_wanted_at = now;
  send(from, StateOffer{copy_.manifest()});
}

// Gives the joiner a slot (a place among the joiners that are served). If this is impossible, tells the joiner why, and returns
// null.
StateDonor::Slot* StateDonor::grant(const PeerId& joiner, uint64_t wanted, Nanos now) {
  const auto no = [&](StateRefusal reason) {
    refuse(joiner, reason);
    return nullptr;
  };
  if (leaving_) return no(StateRefusal::leaving);
  if (copy_.empty()) return no(StateRefusal::no_state);
  if (wanted != 0 && wanted != copy_.state_digest()) return no(StateRefusal::other_state);
  if (slots_.size() >= options_.serve_slots) {
    send_busy(joiner, options_.times.stall_timeout / 2);
    return nullptr;
  }
  copy_.hold();
  ++counters_.granted;
  slots_.push_back({joiner, {}, now, now, now});
  return &slots_.back();
}

Status StateDonor::on(const PeerId& from, const StateWant& want, Nanos now) {
  Slot* slot = slot_of(from);
  if (slot == nullptr) {
    // The joiner has lost its slot, so this donor has forgotten its requests. When BUSY arrives, the joiner requests the parts
    // again.
    if (want.parts.empty() || want.state == 0) {
      send_busy(from, options_.times.stall_timeout / 4);
      return {};
    }
    slot = grant(from, want.state, now);
    if (slot == nullptr) return {};
  }
  if (want.state != copy_.held_digest()) {
    refuse(from, StateRefusal::other_state);
    peer_gone(from);
    return {};
  }
  const auto count = copy_.manifest().part_count();
  slot->received_at = now;
  for (const auto part : want.parts) {
    if (part >= count) return {Code::corrupt, concat("state message: part ", part, " of ", count)};
    const bool queued = std::find(slot->wanted.begin(), slot->wanted.end(), part) != slot->wanted.end();
    if (!queued && slot->wanted.size() < state_window_max) slot->wanted.push_back(part);
    slot->last_wanted_at = now;
  }
  serve(now);
  return {};
}

// Sends parts of the state to the joiners that have slots. The joiners take turns, with one part in each turn. The bandwidth
// limits the rate.
void StateDonor::serve(Nanos now) {
  const double rate = bandwidth_ > 0 ? options_.serve_share * bandwidth_ : 0;
  while (rate <= 0 || now >= next_part_) {
    const auto turn = std::find_if(slots_.begin(), slots_.end(), [](const Slot& slot) { return !slot.wanted.empty(); });
    if (turn == slots_.end()) return;
    const auto part = turn->wanted.front();
    turn->wanted.pop_front();
    auto message = part_message(copy_.held_digest(), part, copy_.part(part));
    const auto bytes = message.size();
    sends_.push_back({turn->joiner, std::move(message)});
    ++counters_.parts;
    counters_.part_bytes += bytes;
    turn->last_wanted_at = turn->sent_at = now;
    std::rotate(turn, turn + 1, slots_.end());
    if (rate > 0)
      next_part_ =
          std::max(next_part_, now - catch_up) + static_cast<Nanos>(std::min(1e9 * static_cast<double>(bytes) / rate, 1e15));
  }
}

void StateDonor::peer_gone(const PeerId& peer) {
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].joiner == peer) return drop(i);
  }
}

void StateDonor::leave() {
  leaving_ = true;
  for (const auto& slot : slots_) refuse(slot.joiner, StateRefusal::leaving);
  slots_.clear();
  copy_.release();
}

void StateDonor::drop(size_t slot) {
  slots_.erase(slots_.begin() + static_cast<std::ptrdiff_t>(slot));
  if (slots_.empty()) copy_.release();
}

// Returns when the joiner loses its slot. While it waits for parts, it must send signs of life. If it has requested no parts,
// it does not need the slot.
Nanos StateDonor::silence_ends(const Slot& slot) const {
  return (slot.wanted.empty() ? slot.last_wanted_at : slot.received_at) + options_.times.stall_timeout;
}

void StateDonor::woke(Nanos now) {
  for (size_t i = slots_.size(); i-- > 0;) {
    if (now < silence_ends(slots_[i])) continue;
    ++counters_.stalled;
    send_busy(slots_[i].joiner, options_.times.stall_timeout / 4);
    drop(i);
  }
  serve(now);
  for (auto& slot : slots_) {
    if (slot.wanted.empty() || now < slot.sent_at + options_.times.stall_timeout / 4) continue;
    slot.sent_at = now;
    send(slot.joiner, StateAlive{});
  }
}

Nanos StateDonor::next_deadline() const {
  Nanos next = never;
  for (const auto& slot : slots_) {
    next = std::min(next, silence_ends(slot));
    if (!slot.wanted.empty()) next = std::min({next, next_part_, slot.sent_at + options_.times.stall_timeout / 4});
  }
  return next;
}

void StateDonor::send(const PeerId& to, const StateMessage& message) { sends_.push_back({to, encode(message)}); }

void StateDonor::send_busy(const PeerId& to, Nanos retry_after) {
  ++counters_.busy;
  send(to, StateBusy{static_cast<uint32_t>(std::min<Nanos>(retry_after / millisecond, 1'000'000))});
}

void StateDonor::refuse(const PeerId& to, StateRefusal reason) {
  ++counters_.refused;
  send(to, StateRefused{reason});
}

}  // namespace unisono
