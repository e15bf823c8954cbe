// When a clerk closes a seat, and what it tells those who registered.

#include <algorithm>
#include <cstdio>
#include <string>

#include "elastic/formation/group_coordinator.h"
#include "elastic/formation/load_shares.h"
#include "elastic/layout/moshpit_key.h"

namespace unisono {

namespace {

constexpr Nanos superseded_part = 4;  // of clerk_timeout: so long a clerk waits where others are in a later sweep; who is as late as that comes at about the same time
constexpr Nanos repeat_part = 4;  // of clerk_timeout, between signs of life and between descriptors
// Descriptors are repeated for so many clerk_timeouts; whoever is waiting still asks by then.
constexpr Nanos repeat_timeouts = 2;

std::string group_key(const GroupId& id) {
  char text[40];
  std::snprintf(text, sizeof text, "group/%016llx%016llx", static_cast<unsigned long long>(id.high),
                static_cast<unsigned long long>(id.low));
  return text;
}

}  // namespace

bool GroupClerk::has_registered(const Seat& seat, const PeerId& peer) {
  return std::any_of(seat.entries.begin(), seat.entries.end(),
                     [&](const Entry& entry) { return entry.registered && entry.peer == peer; });
}

size_t GroupClerk::registered_with_values(const Seat& seat) {
  return static_cast<size_t>(std::ranges::count_if(seat.entries, [](const Entry& entry) { return entry.registered && entry.role != ElasticRole::reducer; }));
}

Nanos GroupClerk::round_timeout(const Seat& seat) const {
  double slowest = 0;
  for (const auto& entry : seat.entries) {
    if (entry.bandwidth > 0 && (slowest == 0 || entry.bandwidth < slowest)) slowest = entry.bandwidth;
  }
  return options_.times.round_timeout_for(options_.times.contribute_timeout_for(options_.vector_bytes, slowest));
}

// In the past if nobody is waited for. The pre-registered are waited for until their round must be over, and no longer than that
// after gather_timeout: more may come while we wait.
Nanos GroupClerk::when_to_close(const SeatName& name, const Seat& seat) const {
  const auto round = round_timeout(seat);
  Nanos announced_until = 0;
  for (const auto& entry : seat.entries) {
    if (!entry.registered) announced_until = std::max(announced_until, entry.since + round);
  }
  if (seat.first_register == never) return announced_until > 0 ? announced_until : never;
  // Members of a later round may have been held up for a whole gather_timeout in the round before, and announce themselves only then.
  const auto held_up = name.round > 0 ? options_.times.clerk_timeout / 2 : 0;
  const auto gathered = seat.first_register + (superseded(name.sweep) ? options_.times.clerk_timeout / superseded_part : options_.times.gather_timeout) + held_up;
  Nanos at = announced_until > 0 ? std::min(announced_until, gathered + round) : 0;
  if (seat.key_group > 0) return registered_with_values(seat) >= seat.key_group ? at : std::max(at, gathered);
  // A member that would be alone waits for those who lag, too: else it would run ahead through one sweep after the other, and the others' numbers with it.
  const auto registered = std::ranges::count_if(seat.entries, [](const Entry& entry) { return entry.registered; });
  for (const auto& peer : seat.line) {
    if (has_registered(seat, peer) || view_.gone(peer) || seat.withdrawn.contains(peer)) continue;
    if (registered < 2 || !seat.lagging.contains(peer)) return std::max(at, gathered);
  }
  return at;
}

bool GroupClerk::settle(Seats::iterator it, Nanos now) {
  auto& seat = it->second;
  const bool any = std::any_of(seat.entries.begin(), seat.entries.end(), [](const Entry& entry) { return entry.registered; });
  if (!any) seat.first_register = seat.next_sign = never;
  seat.close_at = when_to_close(it->first, seat);
  if (seat.close_at > now) {
    if (any || !seat.entries.empty() || !seat.late.empty() || !seat.withdrawn.empty()) return false;
    open_.erase(it);
    return true;
  }
  if (any) {
    const auto node = open_.extract(it);
    close(node.key(), node.mapped(), now);
    return true;
  }
  seat.entries.clear();  // announced, and their round is long over
  return settle(it, now);
}

std::vector<PeerId> GroupClerk::missing_of(const Seat& seat) const {
  std::vector<PeerId> missing;
  for (const auto& peer : seat.line) {
    if (!has_registered(seat, peer) && !seat.withdrawn.contains(peer) && !view_.gone(peer)) missing.push_back(peer);
  }
  return missing;
}

// The members are those of the layout that the seat is for.
bool GroupClerk::is_complete(const Seat& seat, const GroupDescriptor& group) {
  if (seat.key_group == 0) return std::ranges::all_of(seat.line, [&](const PeerId& peer) { return has_registered(seat, peer); });
  const auto of_layout = std::ranges::count_if(group.members, [](const GroupMember& member) { return member.in_layout && member.role != ElasticRole::reducer; });
  return of_layout == static_cast<ptrdiff_t>(seat.key_group);
}

// unavailable: nobody could own chunks.
Result<GroupDescriptor> GroupClerk::form(const SeatName& name, const Seat& seat) {
  GroupDescriptor group;
  group.id.low = random_.next();
  group.id.high = random_.next();
  group.seat = name;
  group.schema = options_.schema;
  group.highest_opened = sweeps_opened();
  group.missing = missing_of(seat);
  std::vector<PeerId> ids;
  for (const auto& entry : seat.entries) {
    if (entry.registered) ids.push_back(entry.peer);
  }
  ShareRequest shares{.members = {}, .chunk_count = options_.chunk_count, .min_chunks = options_.min_chunks};
  const auto slots = draw_slots(group.id, seat.key_group);
  size_t seated = 0;  // with values
  // In an order that no peer can foresee, so whom a key's group has no room for is left to chance.
  for (const auto& id : by_score(group_key(group.id), ids)) {
    const auto entry = std::find_if(seat.entries.begin(), seat.entries.end(), [&](const Entry& one) { return one.peer == id; });
    auto position = entry->position;
    if (seat.key_group > 0 && entry->role != ElasticRole::reducer) {
      if (seated == seat.key_group) continue;
      position = slots[seated++];
    }
    group.members.push_back({id, position, entry->weighted, entry->in_layout, entry->role, entry->bandwidth});
    shares.members.push_back({entry->role, entry->bandwidth});
  }
  group.line_complete = is_complete(seat, group);
  auto counts = load_shares(shares);
  if (!counts.ok()) return counts.status();
  group.chunk_counts = std::move(*counts);
  return group;
}

void GroupClerk::close(const SeatName& name, const Seat& seat, Nanos now) {
  if (closed_.size() >= closed_max) {
    const auto oldest = closed_.find(closed_order_.front().second);
    if (oldest->second.group != nullptr) repeating_.erase(oldest->second.group->id);
    closed_.erase(oldest);
    closed_order_.pop_front();
  }
  auto& closed = closed_[name];
  closed_order_.emplace_back(now, name);
  closed.at = now;
  const auto values = registered_with_values(seat);  // two members must have some, or there is nothing to average
  std::vector<PeerId> registered;
  for (const auto& entry : seat.entries) {
    if (entry.registered) registered.push_back(entry.peer);
  }
  Result<GroupDescriptor> group = Status(Code::unavailable, "alone");
  if (values >= 2) group = form(name, seat);
  if (!group.ok() && name.round == 0 && superseded(name.sweep)) {
    // Nobody else comes to this sweep any more: it had better go where the others are.
    ++counters_.given_up;
    for (const auto& peer : registered) sends_.push_back({peer, formation::Closed{name, sweeps_opened(), 0}});
    return;
  }
  if (!group.ok()) {
    ++counters_.alone;
    closed.alone = {name, values >= 2, missing_of(seat), sweeps_opened()};
    closed.told_alone.insert(registered.begin(), registered.end());
    for (const auto& peer : registered) sends_.push_back({peer, closed.alone});
    return;
  }
  ++counters_.groups;
  closed.group = std::make_shared<const GroupDescriptor>(std::move(*group));
  closed.next_repeat = now + options_.times.clerk_timeout / repeat_part;
  repeating_.emplace(closed.group->id, name);
  for (const auto& peer : registered) {
    if (closed.group->rank_of(peer) < closed.group->members.size()) {
      closed.unacknowledged.insert(peer);
      sends_.push_back({peer, formation::Descriptor{*closed.group}});
    } else {
      closed.told_full.insert(peer);
      sends_.push_back({peer, formation::Full{name, false, sweeps_opened()}});
    }
  }
}

void GroupClerk::send_pending(const SeatName& name, const Seat& seat, const Entry& entry) {
  const auto round_ms = static_cast<uint64_t>((round_timeout(seat) + millisecond - 1) / millisecond);
  sends_.push_back({entry.peer, formation::Pending{name, entry.attempt, sweeps_opened(), round_ms}});
}

// To all who registered: a sign of life, or that their layout was replaced meanwhile.
void GroupClerk::sign(Seats::iterator it, Nanos now) {
  const auto& [name, seat] = *it;
  if (const auto* newer = replacement(name)) {
    const formation::StaleLayout stale{name, sweeps_opened(), *newer};
    for (const auto& entry : seat.entries) sends_.push_back({entry.peer, stale});
    ++counters_.given_up;
    open_.erase(it);
    return;
  }
  for (const auto& entry : seat.entries) {
    if (entry.registered) send_pending(name, seat, entry);
  }
  it->second.next_sign = now + options_.times.clerk_timeout / repeat_part;
}

void GroupClerk::repeat_descriptors(const SeatName& name, Nanos now) {
  auto& closed = closed_.at(name);
  if (closed.next_repeat > now) return;
  if (now - closed.at > repeat_timeouts * options_.times.clerk_timeout) {
    closed.unacknowledged.clear();
    return;
  }
  for (const auto& peer : closed.unacknowledged) sends_.push_back({peer, formation::Descriptor{*closed.group}});
  closed.next_repeat = now + options_.times.clerk_timeout / repeat_part;
}

void GroupClerk::woke(Nanos now) {
  give_up_past();
  for (auto it = open_.begin(); it != open_.end();) {
    const auto seat = it++;
    // With each sign it is looked at again, too: a later sweep may have begun, as others tell.
    const bool signs = seat->second.next_sign <= now;
    if ((signs || seat->second.close_at <= now) && settle(seat, now)) continue;
    if (signs) sign(seat, now);
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

Nanos GroupClerk::next_deadline() const {
  Nanos at = closed_order_.empty() ? never : closed_order_.front().first + closed_kept;
  for (const auto& [name, seat] : open_) at = std::min({at, seat.close_at, seat.next_sign});
  for (const auto& [id, name] : repeating_) at = std::min(at, closed_.at(name).next_repeat);
  return at;
}

}  // namespace unisono
