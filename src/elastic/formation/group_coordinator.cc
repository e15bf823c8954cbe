#include "elastic/formation/group_coordinator.h"

#include <algorithm>

#include "elastic/formation/line_slot.h"
#include "elastic/layout/moshpit_key.h"

namespace unisono {

namespace {

constexpr size_t wanted_layouts_max = 16;

}  // namespace

GroupCoordinator::GroupCoordinator(CoordinatorOptions options, const FormationView& view)
    : options_(std::move(options)), view_(view), random_(options_.seed) {
  options_.max_group = std::clamp<uint32_t>(options_.max_group, 1, group_members_max / 2);
}

void GroupCoordinator::message(const PeerId& from, const FormationMessage& message, Nanos now) {
  std::visit(
      [&](const auto& body) {
        if constexpr (requires { take(from, body, now); }) {
          take(from, body, now);
        } else {
          ++counters_.ignored;  // the GroupSeeker handles this kind of message
        }
      },
      message);
}

uint64_t GroupCoordinator::steps_opened() const { return std::max(highest_opened_, view_.steps_opened()); }

void GroupCoordinator::note_opened(uint64_t step) {
  if (step < steps_opened()) return;
  highest_opened_ = step + 1;
  opened_ = step;
  drop_past();
}

bool GroupCoordinator::past(uint64_t step) const { return step + steps_behind_max + 1 < steps_opened(); }

// Returns true if other peers have gone on to a later averaging step.
bool GroupCoordinator::superseded(uint64_t step) const { return step + 1 < steps_opened(); }

void GroupCoordinator::drop_past() {
  for (auto it = open_.begin(); it != open_.end();) {
    if (!past(it->first.step)) {
      ++it;
      continue;
    }
    for (const auto& entry : it->second.entries) {
      if (entry.registered) sends_.push_back({entry.peer, formation::Closed{it->first, steps_opened(), 0}});
    }
    ++counters_.dropped;
    it = open_.erase(it);
  }
}

// Returns the layout that has replaced the layout named in `slot`. Returns null if this process knows no such layout.
const Layout* GroupCoordinator::replacement(const SlotName& slot) const {
  const auto* effective = view_.layout_for(slot.step);
  if (effective == nullptr) return nullptr;
  Layout named;
  named.version = slot.layout_version;
  named.digest = slot.layout_digest;
  return replaces(*effective, named) ? effective : nullptr;
}

// Returns the slot's layout, or null if this process cannot open the slot. If the slot names an outdated layout, the sender
// gets the newer one. If it names an unknown layout, the sender is asked for that layout.
const Layout* GroupCoordinator::layout_of(const PeerId& from, const SlotName& slot) {
  if (const auto* newer = replacement(slot)) {
    sends_.push_back({from, formation::StaleLayout{slot, steps_opened(), *newer}});
    return nullptr;
  }
  const auto* layout = view_.find_layout(slot.layout_version, slot.layout_digest);
  if (layout == nullptr) {
    if (wanted_layouts_.size() >= wanted_layouts_max) wanted_layouts_.erase(wanted_layouts_.begin());
    wanted_layouts_.emplace(slot.layout_version, slot.layout_digest);
    sends_.push_back({from, formation::NeedLayout{slot}});
    return nullptr;
  }
  if (layout->first_step <= slot.step) return layout;
  ++counters_.ignored;
  return nullptr;
}

bool GroupCoordinator::answer_closed(const PeerId& from, const SlotName& name, Nanos now) {
  const auto found = closed_.find(name);
  if (found != closed_.end()) {
    const auto& closed = found->second;
    if (closed.group != nullptr && closed.group->rank_of(from) < closed.group->members.size()) {
      sends_.push_back({from, formation::Descriptor{*closed.group}});
    } else if (closed.sent_alone.contains(from)) {
      sends_.push_back({from, closed.alone});
    } else if (closed.sent_full.contains(from)) {
      sends_.push_back({from, formation::Full{name, false, steps_opened()}});
    } else {
      const auto since_ms = static_cast<uint64_t>((now - closed.at) / millisecond);
      sends_.push_back({from, formation::Closed{name, steps_opened(), since_ms}});
    }
    return true;
  }
  if (!past(name.step)) return false;
  sends_.push_back({from, formation::Closed{name, steps_opened(), closed_kept / millisecond}});
  return true;
}

void GroupCoordinator::take(const PeerId& from, const formation::Register& request, Nanos now) {
  if (answer_closed(from, request.slot, now)) return;
  const auto* layout = layout_of(from, request.slot);
  if (layout == nullptr) return;
  const bool valid =
      may_register(*layout, from, request.slot.round, {request.cell, request.position, request.slot.line, request.in_layout});
  if (!valid || request.slot.step > steps_opened() + steps_ahead_max) {
    ++counters_.ignored;
    return;
  }
  if (request.schema != options_.schema) {
    sends_.push_back({from, formation::Full{request.slot, true, steps_opened()}});
    return;
  }
  auto* slot = open_slot(request.slot, *layout, now);
  if (slot == nullptr) return;
  if (!add_entry(*slot, from, request, now)) {
    settle(open_.find(request.slot), now);
    return;
  }
  const bool opens = !request.pre || (request.slot.round == 0 && all_expected_present(*slot));
  if (opens) note_opened(request.slot.step);
  note_missing(*slot, request.missing);
  if (settle(open_.find(request.slot), now)) return;
  // A peer that missed the previous averaging step only pre-registers, and waits until other peers open this step. PENDING
  // tells the peer that the step is open.
  if (opens && request.slot.round == 0) notify_pre_registered(request.slot, *slot);
  // The sender's pre-registration may have expired. If it has, settle() has dropped it.
  if (const auto entry = find_entry(*slot, from); entry != slot->entries.end()) send_pending(request.slot, *slot, *entry);
}

// Returns true if every expected peer has registered or pre-registered. A layout with keys does not say which peers to expect.
// Under such a layout, it is enough if the peers would fill one group.
bool GroupCoordinator::all_expected_present(Slot& slot) const {
  if (slot.key_group > 0) return slot.entries.size() >= slot.key_group;
  return std::ranges::all_of(
      slot.line, [&](const PeerId& peer) { return view_.gone(peer) || find_entry(slot, peer) != slot.entries.end(); });
}

void GroupCoordinator::notify_pre_registered(const SlotName& name, const Slot& slot) {
  for (const auto& entry : slot.entries) {
    if (!entry.registered) send_pending(name, slot, entry);
  }
}

GroupCoordinator::Slot* GroupCoordinator::open_slot(const SlotName& name, const Layout& layout, Nanos now) {
  const auto found = open_.find(name);
  if (found != open_.end()) return &found->second;
  if (open_.size() >= slots_open_max) {
    auto oldest = open_.end();
    for (auto it = open_.begin(); it != open_.end(); ++it) {
      if (it->second.first_register == never && (oldest == open_.end() || it->second.made < oldest->second.made)) oldest = it;
    }
    if (oldest == open_.end()) {
      ++counters_.ignored;
      return nullptr;
    }
    ++counters_.dropped;
    open_.erase(oldest);
  }
  auto& slot = open_[name];
  slot.line = line_of(layout, name.round, name.line);
  if (key_count(layout) > 0) slot.key_group = key_group(layout);
  slot.made = now;
  return &slot;
}

std::vector<GroupCoordinator::Entry>::iterator GroupCoordinator::find_entry(Slot& slot, const PeerId& peer) {
  return std::find_if(slot.entries.begin(), slot.entries.end(), [&](const Entry& entry) { return entry.peer == peer; });
}

// Adds the registration, or replaces the peer's earlier one. Returns false if the registration is outdated or the slot is full.
bool GroupCoordinator::add_entry(Slot& slot, const PeerId& from, const formation::Register& request, Nanos now) {
  auto entry = find_entry(slot, from);
  if (entry != slot.entries.end() && request.attempt < entry->attempt) return false;
  if (entry == slot.entries.end() || entry->registered == request.pre) {
    const bool has_space = make_space(slot, request);
    entry = find_entry(slot, from);
    if (!has_space) {
      if (entry != slot.entries.end()) slot.entries.erase(entry);
      // A pre-registered peer gets no answer now. It will register later, and is answered then.
      if (!request.pre) sends_.push_back({from, formation::Full{request.slot, false, steps_opened()}});
      return false;
    }
    if (entry == slot.entries.end()) entry = slot.entries.insert(entry, {.peer = from, .since = now});
  }
  entry->position = request.position;
  entry->in_layout = request.in_layout;
  entry->registered = !request.pre;
  entry->weighted = request.weighted;
  entry->role = request.role;
  entry->bandwidth = request.bandwidth;
  entry->attempt = request.attempt;
  slot.lagging.erase(from);
  slot.withdrawn.erase(from);
  if (entry->registered && slot.first_register == never) {
    slot.first_register = now;
    slot.next_pending = now + options_.times.coordinator_timeout / 4;
  }
  return true;
}

// Returns true if the slot has space for the request. There is one limit for registrations, and one for pre-registrations. When
// the limit is reached, a peer that the layout lists displaces the newest peer that the layout does not list.
bool GroupCoordinator::make_space(Slot& slot, const formation::Register& request) {
  const auto same = [&](const Entry& entry) { return entry.registered == !request.pre; };
  const auto count = std::count_if(slot.entries.begin(), slot.entries.end(), same);
  if (count < 2 * static_cast<ptrdiff_t>(options_.max_group)) return true;
  if (!request.in_layout) return false;
  const auto unlisted = std::find_if(slot.entries.rbegin(), slot.entries.rend(),
                                     [&](const Entry& entry) { return same(entry) && !entry.in_layout; });
  if (unlisted == slot.entries.rend()) return false;
  if (unlisted->registered) sends_.push_back({unlisted->peer, formation::Full{request.slot, false, steps_opened()}});
  slot.entries.erase(std::next(unlisted).base());
  return true;
}

// Notes which peers a member reports missing, so that the slot does not wait for them. If more than half of the slot's line is
// reported missing, the report is ignored, because its sender was probably cut off itself.
void GroupCoordinator::note_missing(Slot& slot, std::vector<PeerId> missing) {
  std::sort(missing.begin(), missing.end());
  std::vector<PeerId> named;
  for (const auto& peer : slot.line) {
    if (std::binary_search(missing.begin(), missing.end(), peer)) named.push_back(peer);
  }
  if (2 * named.size() > slot.line.size()) return;
  for (const auto& peer : named) {
    const bool here = find_entry(slot, peer) != slot.entries.end();
    if (!here && !slot.late.contains(peer)) slot.lagging.insert(peer);
  }
}

void GroupCoordinator::take(const PeerId& from, const formation::DescriptorAck& ack, Nanos) {
  const auto found = repeating_.find(ack.id);
  if (found == repeating_.end()) return;  // the acknowledgement is a repeated one, or another member sent the descriptor
  auto& closed = closed_.at(found->second);
  closed.unacknowledged.erase(from);
  if (closed.unacknowledged.empty()) repeating_.erase(found);
}

void GroupCoordinator::take(const PeerId&, const formation::LayoutReply& reply, Nanos) {
  if (wanted_layouts_.erase({reply.layout.version, reply.layout.digest}) == 0) {
    ++counters_.ignored;
    return;
  }
  if (view_.find_layout(reply.layout.version, reply.layout.digest) == nullptr) layouts_.push_back(reply.layout);
}

// Returns the slot's layout if the slot may be opened and `from` belongs to the slot's line. Otherwise returns null, and counts
// the message as ignored. The result is also null under a layout with keys, because such a layout does not say which peers are
// on a line.
const Layout* GroupCoordinator::layout_of_line(const PeerId& from, const SlotName& slot) {
  const auto* layout = view_.find_layout(slot.layout_version, slot.layout_digest);
  if (layout != nullptr && !past(slot.step) && !closed_.contains(slot) && layout->first_step <= slot.step) {
    const auto line_position = position_in(*layout, from, slot.round);
    if (line_position.in_layout && line_position.line == slot.line && key_count(*layout) == 0) return layout;
  }
  ++counters_.ignored;
  return nullptr;
}

void GroupCoordinator::take(const PeerId& from, const formation::Late& late, Nanos now) {
  const auto* layout = layout_of_line(from, late.slot);
  if (layout == nullptr) return;
  auto* slot = open_slot(late.slot, *layout, now);
  if (slot == nullptr) return;
  slot->late.insert(from);
  slot->lagging.erase(from);
  slot->withdrawn.erase(from);
  settle(open_.find(late.slot), now);
}

// WITHDRAW may open the slot, because a peer that skips an averaging step may withdraw before any peer has registered.
void GroupCoordinator::take(const PeerId& from, const formation::Withdraw& withdraw, Nanos now) {
  auto found = open_.find(withdraw.slot);
  if (found == open_.end()) {
    const auto* layout = layout_of_line(from, withdraw.slot);
    if (layout == nullptr || open_slot(withdraw.slot, *layout, now) == nullptr) return;
    found = open_.find(withdraw.slot);
  }
  auto& slot = found->second;
  const auto entry = find_entry(slot, from);
  if (entry != slot.entries.end()) {
    if (withdraw.attempt < entry->attempt) return;
    slot.entries.erase(entry);
  }
  slot.late.erase(from);
  if (std::find(slot.line.begin(), slot.line.end(), from) != slot.line.end()) {
    slot.lagging.insert(from);
    slot.withdrawn.insert(from);
  }
  settle(found, now);
}

void GroupCoordinator::peer_gone(const PeerId& peer, Nanos now) {
  for (auto it = open_.begin(); it != open_.end();) {
    const auto slot = it++;
    auto& entries = slot->second.entries;
    std::erase_if(entries, [&](const Entry& entry) { return entry.peer == peer; });
    settle(slot, now);
  }
  std::erase_if(repeating_, [&](const auto& one) {
    auto& waiting = closed_.at(one.second).unacknowledged;
    waiting.erase(peer);
    return waiting.empty();
  });
}

}  // namespace unisono
