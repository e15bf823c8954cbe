#include "elastic/formation/group_coordinator.h"

#include <algorithm>

#include "elastic/formation/line_slot.h"
#include "elastic/layout/moshpit_key.h"

namespace unisono {

namespace {

constexpr size_t wanted_layouts_max = 16;

}  // namespace

GroupClerk::GroupClerk(ClerkOptions options, const FormationView& view)
    : options_(std::move(options)), view_(view), random_(options_.seed) {
  options_.max_group = std::clamp<uint32_t>(options_.max_group, 1, group_members_max / 2);
}

void GroupClerk::message(const PeerId& from, const FormationMessage& message, Nanos now) {
  std::visit(
      [&](const auto& body) {
        if constexpr (requires { take(from, body, now); }) {
          take(from, body, now);
        } else {
          ++counters_.ignored;  // for a member
        }
      },
      message);
}

uint64_t GroupClerk::sweeps_opened() const { return std::max(highest_opened_, view_.sweeps_opened()); }

void GroupClerk::note_opened(uint64_t sweep) {
  if (sweep < sweeps_opened()) return;
  highest_opened_ = sweep + 1;
  opened_ = sweep;
  give_up_past();
}

bool GroupClerk::past(uint64_t sweep) const { return sweep + sweeps_behind_max + 1 < sweeps_opened(); }

// Others have gone on to a later sweep.
bool GroupClerk::superseded(uint64_t sweep) const { return sweep + 1 < sweeps_opened(); }

void GroupClerk::give_up_past() {
  for (auto it = open_.begin(); it != open_.end();) {
    if (!past(it->first.sweep)) {
      ++it;
      continue;
    }
    for (const auto& entry : it->second.entries) {
      if (entry.registered) sends_.push_back({entry.peer, formation::Closed{it->first, sweeps_opened(), 0}});
    }
    ++counters_.given_up;
    it = open_.erase(it);
  }
}

// The layout that takes the place of the seat's, if this process knows one.
const Layout* GroupClerk::replacement(const SeatName& seat) const {
  const auto* effective = view_.layout_for(seat.sweep);
  if (effective == nullptr) return nullptr;
  Layout named;
  named.version = seat.layout_version;
  named.digest = seat.layout_digest;
  return replaces(*effective, named) ? effective : nullptr;
}

// Null if the seat is not to be opened under its layout; the sender has been told why.
const Layout* GroupClerk::layout_of(const PeerId& from, const SeatName& seat) {
  if (const auto* newer = replacement(seat)) {
    sends_.push_back({from, formation::StaleLayout{seat, sweeps_opened(), *newer}});
    return nullptr;
  }
  const auto* layout = view_.find_layout(seat.layout_version, seat.layout_digest);
  if (layout == nullptr) {
    if (wanted_layouts_.size() >= wanted_layouts_max) wanted_layouts_.erase(wanted_layouts_.begin());
    wanted_layouts_.emplace(seat.layout_version, seat.layout_digest);
    sends_.push_back({from, formation::NeedLayout{seat}});
    return nullptr;
  }
  if (layout->first_sweep <= seat.sweep) return layout;
  ++counters_.ignored;
  return nullptr;
}

bool GroupClerk::answer_closed(const PeerId& from, const SeatName& name, Nanos now) {
  const auto found = closed_.find(name);
  if (found != closed_.end()) {
    const auto& closed = found->second;
    if (closed.group != nullptr && closed.group->rank_of(from) < closed.group->members.size()) {
      sends_.push_back({from, formation::Descriptor{*closed.group}});
    } else if (closed.told_alone.contains(from)) {
      sends_.push_back({from, closed.alone});
    } else if (closed.told_full.contains(from)) {
      sends_.push_back({from, formation::Full{name, false, sweeps_opened()}});
    } else {
      const auto since_ms = static_cast<uint64_t>((now - closed.at) / millisecond);
      sends_.push_back({from, formation::Closed{name, sweeps_opened(), since_ms}});
    }
    return true;
  }
  if (!past(name.sweep)) return false;
  sends_.push_back({from, formation::Closed{name, sweeps_opened(), closed_kept / millisecond}});
  return true;
}

void GroupClerk::take(const PeerId& from, const formation::Register& request, Nanos now) {
  if (answer_closed(from, request.seat, now)) return;
  const auto* layout = layout_of(from, request.seat);
  if (layout == nullptr) return;
  const bool stands = may_stand(*layout, from, request.seat.round, {request.cell, request.position, request.seat.line, request.in_layout});
  if (!stands || request.seat.sweep > sweeps_opened() + sweeps_ahead_max) {
    ++counters_.ignored;
    return;
  }
  if (request.schema != options_.schema) {
    sends_.push_back({from, formation::Full{request.seat, true, sweeps_opened()}});
    return;
  }
  auto* seat = open_seat(request.seat, *layout, now);
  if (seat == nullptr) return;
  if (!seat_entry(*seat, from, request, now)) {
    settle(open_.find(request.seat), now);
    return;
  }
  const bool opens = !request.pre || (request.seat.round == 0 && everybody_is_here(*seat));
  if (opens) note_opened(request.seat.sweep);
  hear_missing(*seat, request.missing);
  if (settle(open_.find(request.seat), now)) return;
  // Who was late for the sweep before waits for this one to begin.
  if (opens && request.seat.round == 0) tell_announced(request.seat, *seat);
  // Its round may have been over long ago, and what was announced for it is gone.
  if (const auto entry = find_entry(*seat, from); entry != seat->entries.end()) send_pending(request.seat, *seat, *entry);
}

// All that are expected, or with keys as many as a group has, have registered or announced themselves.
bool GroupClerk::everybody_is_here(Seat& seat) const {
  if (seat.key_group > 0) return seat.entries.size() >= seat.key_group;
  return std::ranges::all_of(seat.line, [&](const PeerId& peer) { return view_.gone(peer) || find_entry(seat, peer) != seat.entries.end(); });
}

void GroupClerk::tell_announced(const SeatName& name, const Seat& seat) {
  for (const auto& entry : seat.entries) {
    if (!entry.registered) send_pending(name, seat, entry);
  }
}

GroupClerk::Seat* GroupClerk::open_seat(const SeatName& name, const Layout& layout, Nanos now) {
  const auto found = open_.find(name);
  if (found != open_.end()) return &found->second;
  if (open_.size() >= seats_open_max) {
    auto oldest = open_.end();
    for (auto it = open_.begin(); it != open_.end(); ++it) {
      if (it->second.first_register == never && (oldest == open_.end() || it->second.made < oldest->second.made)) oldest = it;
    }
    if (oldest == open_.end()) {
      ++counters_.ignored;
      return nullptr;
    }
    ++counters_.given_up;
    open_.erase(oldest);
  }
  auto& seat = open_[name];
  seat.line = line_of(layout, name.round, name.line);
  if (key_count(layout) > 0) seat.key_group = key_group(layout);
  seat.made = now;
  return &seat;
}

std::vector<GroupClerk::Entry>::iterator GroupClerk::find_entry(Seat& seat, const PeerId& peer) {
  return std::find_if(seat.entries.begin(), seat.entries.end(), [&](const Entry& entry) { return entry.peer == peer; });
}

// False if the registration was not put down: it is an old one, or there is no room.
bool GroupClerk::seat_entry(Seat& seat, const PeerId& from, const formation::Register& request, Nanos now) {
  auto entry = find_entry(seat, from);
  if (entry != seat.entries.end() && request.attempt < entry->attempt) return false;
  if (entry == seat.entries.end() || entry->registered == request.pre) {
    const bool room = make_room(seat, request);
    entry = find_entry(seat, from);
    if (!room) {
      if (entry != seat.entries.end()) seat.entries.erase(entry);
      // One that only announces itself need not know: it will ask again.
      if (!request.pre) sends_.push_back({from, formation::Full{request.seat, false, sweeps_opened()}});
      return false;
    }
    if (entry == seat.entries.end()) entry = seat.entries.insert(entry, {.peer = from, .since = now});
  }
  entry->position = request.position;
  entry->in_layout = request.in_layout;
  entry->registered = !request.pre;
  entry->weighted = request.weighted;
  entry->role = request.role;
  entry->bandwidth = request.bandwidth;
  entry->attempt = request.attempt;
  seat.lagging.erase(from);
  seat.withdrawn.erase(from);
  if (entry->registered && seat.first_register == never) {
    seat.first_register = now;
    seat.next_sign = now + options_.times.clerk_timeout / 4;
  }
  return true;
}

// For one more, pre-registered or registered. A member of the layout takes the place of the last who is not.
bool GroupClerk::make_room(Seat& seat, const formation::Register& request) {
  const auto same = [&](const Entry& entry) { return entry.registered == !request.pre; };
  const auto count = std::count_if(seat.entries.begin(), seat.entries.end(), same);
  if (count < 2 * static_cast<ptrdiff_t>(options_.max_group)) return true;
  if (!request.in_layout) return false;
  const auto stranger = std::find_if(seat.entries.rbegin(), seat.entries.rend(),
                                     [&](const Entry& entry) { return same(entry) && !entry.in_layout; });
  if (stranger == seat.entries.rend()) return false;
  if (stranger->registered) sends_.push_back({stranger->peer, formation::Full{request.seat, false, sweeps_opened()}});
  seat.entries.erase(std::next(stranger).base());
  return true;
}

// A list that names more than half of the line is that of a minority, which was cut off: the others are where it was not.
void GroupClerk::hear_missing(Seat& seat, std::vector<PeerId> missing) {
  std::sort(missing.begin(), missing.end());
  std::vector<PeerId> named;
  for (const auto& peer : seat.line) {
    if (std::binary_search(missing.begin(), missing.end(), peer)) named.push_back(peer);
  }
  if (2 * named.size() > seat.line.size()) return;
  for (const auto& peer : named) {
    const bool here = find_entry(seat, peer) != seat.entries.end();
    if (!here && !seat.late.contains(peer)) seat.lagging.insert(peer);
  }
}

void GroupClerk::take(const PeerId& from, const formation::DescriptorAck& ack, Nanos) {
  const auto found = repeating_.find(ack.id);
  if (found == repeating_.end()) return;  // it has come twice, or was for a member that handed on a descriptor
  auto& closed = closed_.at(found->second);
  closed.unacknowledged.erase(from);
  if (closed.unacknowledged.empty()) repeating_.erase(found);
}

void GroupClerk::take(const PeerId&, const formation::LayoutReply& reply, Nanos) {
  if (wanted_layouts_.erase({reply.layout.version, reply.layout.digest}) == 0) {
    ++counters_.ignored;
    return;
  }
  if (view_.find_layout(reply.layout.version, reply.layout.digest) == nullptr) layouts_.push_back(reply.layout);
}

// The seat's layout, if the seat may be opened and the layout puts the peer into its line; null, and counted, if not: with keys nobody is expected anyway.
const Layout* GroupClerk::layout_of_line(const PeerId& from, const SeatName& seat) {
  const auto* layout = view_.find_layout(seat.layout_version, seat.layout_digest);
  if (layout != nullptr && !past(seat.sweep) && !closed_.contains(seat) && layout->first_sweep <= seat.sweep) {
    const auto place = place_in(*layout, from, seat.round);
    if (place.in_layout && place.line == seat.line && key_count(*layout) == 0) return layout;
  }
  ++counters_.ignored;
  return nullptr;
}

void GroupClerk::take(const PeerId& from, const formation::Late& late, Nanos now) {
  const auto* layout = layout_of_line(from, late.seat);
  if (layout == nullptr) return;
  auto* seat = open_seat(late.seat, *layout, now);
  if (seat == nullptr) return;
  seat->late.insert(from);
  seat->lagging.erase(from);
  seat->withdrawn.erase(from);
  settle(open_.find(late.seat), now);
}

// Whoever skips a sweep says so before others have registered for it.
void GroupClerk::take(const PeerId& from, const formation::Withdraw& withdraw, Nanos now) {
  auto found = open_.find(withdraw.seat);
  if (found == open_.end()) {
    const auto* layout = layout_of_line(from, withdraw.seat);
    if (layout == nullptr || open_seat(withdraw.seat, *layout, now) == nullptr) return;
    found = open_.find(withdraw.seat);
  }
  auto& seat = found->second;
  const auto entry = find_entry(seat, from);
  if (entry != seat.entries.end()) {
    if (withdraw.attempt < entry->attempt) return;
    seat.entries.erase(entry);
  }
  seat.late.erase(from);
  if (std::find(seat.line.begin(), seat.line.end(), from) != seat.line.end()) {
    seat.lagging.insert(from);
    seat.withdrawn.insert(from);
  }
  settle(found, now);
}

void GroupClerk::peer_gone(const PeerId& peer, Nanos now) {
  for (auto it = open_.begin(); it != open_.end();) {
    const auto seat = it++;
    auto& entries = seat->second.entries;
    std::erase_if(entries, [&](const Entry& entry) { return entry.peer == peer; });
    settle(seat, now);
  }
  std::erase_if(repeating_, [&](const auto& one) {
    auto& waiting = closed_.at(one.second).unacknowledged;
    waiting.erase(peer);
    return waiting.empty();
  });
}

}  // namespace unisono
