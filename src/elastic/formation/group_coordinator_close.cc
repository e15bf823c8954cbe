// How a coordinator closes slots: when it does so, and what it answers to the registered peers.

#include <algorithm>
#include <cstdio>
#include <string>

#include "elastic/formation/group_coordinator.h"
#include "elastic/formation/load_shares.h"
#include "elastic/layout/moshpit_key.h"

namespace unisono {

namespace {

// If other peers are in a later averaging step, the coordinator waits only coordinator_timeout / superseded_part. This is
// enough, because peers that are late arrive at about the same time.
constexpr Nanos superseded_part = 4;
// Signs of life and descriptors are repeated every coordinator_timeout / repeat_part.
constexpr Nanos repeat_part = 4;
// Descriptors are repeated for this many coordinator_timeouts. After that, a member that has no descriptor must ask for it.
constexpr Nanos repeat_timeouts = 2;

std::string group_key(const GroupId& id) {
  char text[40];
  std::snprintf(text, sizeof text, "group/%016llx%016llx", static_cast<unsigned long long>(id.high),
                static_cast<unsigned long long>(id.low));
  return text;
}

}  // namespace

bool GroupCoordinator::has_registered(const Slot& slot, const PeerId& peer) {
  return std::any_of(slot.entries.begin(), slot.entries.end(),
                     [&](const Entry& entry) { return entry.registered && entry.peer == peer; });
}

size_t GroupCoordinator::registered_with_values(const Slot& slot) {
  return static_cast<size_t>(std::ranges::count_if(
      slot.entries, [](const Entry& entry) { return entry.registered && entry.role != ElasticRole::reducer; }));
}

Nanos GroupCoordinator::round_timeout(const Slot& slot) const {
  double slowest = 0;
  for (const auto& entry : slot.entries) {
    if (entry.bandwidth > 0 && (slowest == 0 || entry.bandwidth < slowest)) slowest = entry.bandwidth;
  }
  return options_.times.round_timeout_for(options_.times.contribute_timeout_for(options_.vector_bytes, slowest));
}

// Returns when the slot must close. If the slot waits for no peer, this time is in the past. The slot waits for a
// pre-registered peer at most until the peer's current round has certainly ended. More peers may pre-register in the meantime,
// so this wait is limited: it ends one round_timeout after gather_timeout.
Nanos GroupCoordinator::when_to_close(const SlotName& name, const Slot& slot) const {
  const auto round = round_timeout(slot);
  Nanos pre_registered_until = 0;
  for (const auto& entry : slot.entries) {
    if (!entry.registered) pre_registered_until = std::max(pre_registered_until, entry.since + round);
  }
  if (slot.first_register == never) return pre_registered_until > 0 ? pre_registered_until : never;
  // After round 0, wait half a coordinator_timeout longer. A group of the previous round may have formed only when its
  // gather_timeout was over, and its members then pre-register late.
  const auto held_up = name.round > 0 ? options_.times.coordinator_timeout / 2 : 0;
  const auto gathered =
      slot.first_register +
      (superseded(name.step) ? options_.times.coordinator_timeout / superseded_part : options_.times.gather_timeout) + held_up;
  Nanos at = pre_registered_until > 0 ? std::min(pre_registered_until, gathered + round) : 0;
  if (slot.key_group > 0) return registered_with_values(slot) >= slot.key_group ? at : std::max(at, gathered);
  // If only one peer has registered, the slot waits for lagging peers, too. Otherwise this peer would run through averaging
  // steps alone, and would raise the step number of all peers.
  const auto registered = std::ranges::count_if(slot.entries, [](const Entry& entry) { return entry.registered; });
  for (const auto& peer : slot.line) {
    if (has_registered(slot, peer) || view_.gone(peer) || slot.withdrawn.contains(peer)) continue;
    if (registered < 2 || !slot.lagging.contains(peer)) return std::max(at, gathered);
  }
  return at;
}

bool GroupCoordinator::settle(Slots::iterator it, Nanos now) {
  auto& slot = it->second;
  const bool any = std::any_of(slot.entries.begin(), slot.entries.end(), [](const Entry& entry) { return entry.registered; });
  if (!any) slot.first_register = slot.next_pending = never;
  slot.close_at = when_to_close(it->first, slot);
  if (slot.close_at > now) {
    if (any || !slot.entries.empty() || !slot.late.empty() || !slot.withdrawn.empty()) return false;
    open_.erase(it);
    return true;
  }
  if (any) {
    const auto node = open_.extract(it);
    close(node.key(), node.mapped(), now);
    return true;
  }
  // There are only pre-registrations left. They have expired, because the current rounds of these peers have certainly ended.
  slot.entries.clear();
  return settle(it, now);
}

std::vector<PeerId> GroupCoordinator::missing_of(const Slot& slot) const {
  std::vector<PeerId> missing;
  for (const auto& peer : slot.line) {
    if (!has_registered(slot, peer) && !slot.withdrawn.contains(peer) && !view_.gone(peer)) missing.push_back(peer);
  }
  return missing;
}

// Returns true if every peer of the slot's line is in the group. Under a layout with keys, returns true if the layout lists M
// members of the group (reducers do not count).
bool GroupCoordinator::is_complete(const Slot& slot, const GroupDescriptor& group) {
  if (slot.key_group == 0)
    return std::ranges::all_of(slot.line, [&](const PeerId& peer) { return has_registered(slot, peer); });
  const auto of_layout = std::ranges::count_if(
      group.members, [](const GroupMember& member) { return member.in_layout && member.role != ElasticRole::reducer; });
  return of_layout == static_cast<ptrdiff_t>(slot.key_group);
}

// Forms the slot's group. Returns the error unavailable if no member can own chunks.
Result<GroupDescriptor> GroupCoordinator::form(const SlotName& name, const Slot& slot) {
  GroupDescriptor group;
  group.id.low = random_.next();
  group.id.high = random_.next();
  group.slot = name;
  group.schema = options_.schema;
  group.highest_opened = steps_opened();
  group.missing = missing_of(slot);
  std::vector<PeerId> ids;
  for (const auto& entry : slot.entries) {
    if (entry.registered) ids.push_back(entry.peer);
  }
  ShareRequest shares{.members = {}, .chunk_count = options_.chunk_count, .min_chunks = options_.min_chunks};
  const auto slots = draw_slots(group.id, slot.key_group);
  size_t placed = 0;  // so many members have got a drawn slot
  // The order depends on the random group id, so no peer can predict it. If too many peers have registered, those that are left
  // out are random ones.
  for (const auto& id : by_score(group_key(group.id), ids)) {
    const auto entry = std::find_if(slot.entries.begin(), slot.entries.end(), [&](const Entry& one) { return one.peer == id; });
    auto position = entry->position;
    if (slot.key_group > 0 && entry->role != ElasticRole::reducer) {
      if (placed == slot.key_group) continue;
      position = slots[placed++];
    }
    group.members.push_back({id, position, entry->weighted, entry->in_layout, entry->role, entry->bandwidth});
    shares.members.push_back({entry->role, entry->bandwidth});
  }
  group.line_complete = is_complete(slot, group);
  auto counts = load_shares(shares);
  if (!counts.ok()) return counts.status();
  group.chunk_counts = std::move(*counts);
  return group;
}

void GroupCoordinator::close(const SlotName& name, const Slot& slot, Nanos now) {
  if (closed_.size() >= closed_max) {
    const auto oldest = closed_.find(closed_order_.front().second);
    if (oldest->second.group != nullptr) repeating_.erase(oldest->second.group->id);
    closed_.erase(oldest);
    closed_order_.pop_front();
  }
  auto& closed = closed_[name];
  closed_order_.emplace_back(now, name);
  closed.at = now;
  const auto values = registered_with_values(slot);  // at least two members with values are needed for averaging
  std::vector<PeerId> registered;
  for (const auto& entry : slot.entries) {
    if (entry.registered) registered.push_back(entry.peer);
  }
  Result<GroupDescriptor> group = Status(Code::unavailable, "alone");
  if (values >= 2) group = form(name, slot);
  if (!group.ok() && name.round == 0 && superseded(name.step)) {
    // No other peer will come to this averaging step. CLOSED tells the registered peers to go on to the later step.
    ++counters_.dropped;
    for (const auto& peer : registered) sends_.push_back({peer, formation::Closed{name, steps_opened(), 0}});
    return;
  }
  if (!group.ok()) {
    ++counters_.alone;
    closed.alone = {name, values >= 2, missing_of(slot), steps_opened()};
    closed.sent_alone.insert(registered.begin(), registered.end());
    for (const auto& peer : registered) sends_.push_back({peer, closed.alone});
    return;
  }
  ++counters_.groups;
  closed.group = std::make_shared<const GroupDescriptor>(std::move(*group));
  closed.next_repeat = now + options_.times.coordinator_timeout / repeat_part;
  repeating_.emplace(closed.group->id, name);
  for (const auto& peer : registered) {
    if (closed.group->rank_of(peer) < closed.group->members.size()) {
      closed.unacknowledged.insert(peer);
      sends_.push_back({peer, formation::Descriptor{*closed.group}});
    } else {
      closed.sent_full.insert(peer);
      sends_.push_back({peer, formation::Full{name, false, steps_opened()}});
    }
  }
}

void GroupCoordinator::send_pending(const SlotName& name, const Slot& slot, const Entry& entry) {
  const auto round_ms = static_cast<uint64_t>((round_timeout(slot) + millisecond - 1) / millisecond);
  sends_.push_back({entry.peer, formation::Pending{name, entry.attempt, steps_opened(), round_ms}});
}

// Sends all registered peers a sign of life. But if a newer layout has replaced the slot's layout, sends all peers that newer
// layout, and drops the slot.
void GroupCoordinator::repeat_pending(Slots::iterator it, Nanos now) {
  const auto& [name, slot] = *it;
  if (const auto* newer = replacement(name)) {
    const formation::StaleLayout stale{name, steps_opened(), *newer};
    for (const auto& entry : slot.entries) sends_.push_back({entry.peer, stale});
    ++counters_.dropped;
    open_.erase(it);
    return;
  }
  for (const auto& entry : slot.entries) {
    if (entry.registered) send_pending(name, slot, entry);
  }
  it->second.next_pending = now + options_.times.coordinator_timeout / repeat_part;
}

void GroupCoordinator::repeat_descriptors(const SlotName& name, Nanos now) {
  auto& closed = closed_.at(name);
  if (closed.next_repeat > now) return;
  if (now - closed.at > repeat_timeouts * options_.times.coordinator_timeout) {
    closed.unacknowledged.clear();
    return;
  }
  for (const auto& peer : closed.unacknowledged) sends_.push_back({peer, formation::Descriptor{*closed.group}});
  closed.next_repeat = now + options_.times.coordinator_timeout / repeat_part;
}

void GroupCoordinator::woke(Nanos now) {
  drop_past();
  for (auto it = open_.begin(); it != open_.end();) {
    const auto slot = it++;
    // settle() also runs with each sign of life, because the slot closes sooner if other peers have begun a later averaging
    // step.
    const bool signs = slot->second.next_pending <= now;
    if ((signs || slot->second.close_at <= now) && settle(slot, now)) continue;
    if (signs) repeat_pending(slot, now);
  }
  for (auto it = repeating_.begin(); it != repeating_.end();) {
    const auto one = it++;
    repeat_descriptors(one->second, now);
    if (closed_.at(one->second).unacknowledged.empty()) repeating_.erase(one);
  }
  while (!closed_order_.empty() && now - closed_order_.front().first >= closed_kept) {
    const auto oldest = closed_.find(closed_order_.front().second);
    if (oldest->second.group != nullptr) repeating_.erase(oldest->second.group->id);
    closed_.erase(oldest);
    closed_order_.pop_front();
  }
}

Nanos GroupCoordinator::next_deadline() const {
  Nanos at = closed_order_.empty() ? never : closed_order_.front().first + closed_kept;
  for (const auto& [name, slot] : open_) at = std::min({at, slot.close_at, slot.next_pending});
  for (const auto& [id, name] : repeating_) at = std::min(at, closed_.at(name).next_repeat);
  return at;
}

}  // namespace unisono
