#include "elastic/formation/group_seeker.h"

#include <algorithm>
#include <type_traits>

#include "base/check.h"
#include "base/concat.h"
#include "elastic/formation/line_slot.h"
#include "elastic/layout/moshpit_key.h"

namespace unisono {

namespace {

constexpr uint32_t repeats = 4;  // a REGISTER without an answer is sent this often per coordinator_timeout
// This many descriptors are kept. Members may still send messages of their groups for one or two round_timeouts.
constexpr size_t recent_max = 32;
constexpr size_t early_declines_max = 256;  // a group has no more members than this
constexpr size_t asked_groups_max = 64;
// If woke() comes more than coordinator_timeout / late_wakeup_part too late, this process itself was stopped. The silence of
// the coordinator then proves nothing, so the seeker waits once more. It does this at most late_wakeups_max times per request,
// because it must make progress even on a host that is always slow.
constexpr uint32_t late_wakeup_part = 4;
constexpr uint32_t late_wakeups_max = 4;

}  // namespace

SeekRequest seek_request(const Layout& layout, const PeerId& self, uint64_t step, uint32_t round) {
  const auto line_position = position_in(layout, self, round);
  SeekRequest request;
  request.slot = {layout.version, layout.digest, step, round, line_position.line};
  request.cell = line_position.cell;
  request.position = line_position.position;
  request.in_layout = line_position.in_layout;
  return request;
}

GroupSeeker::GroupSeeker(SeekerOptions options, const FormationView& view) : options_(std::move(options)), view_(view) {}

void GroupSeeker::seek(const SeekRequest& request, Nanos now) {
  const bool continues = phase_ == Phase::pre && request.slot == request_.slot;
  if (!continues) begin(request);
  outcome_.reset();
  late_wakeups_ = 0;
  phase_ = Phase::seeking;
  request_ = request;
  ask_holder(now);
}

void GroupSeeker::pre_register(const SeekRequest& request, Nanos now) {
  UNISONO_CHECK(phase_ != Phase::seeking);
  if (phase_ == Phase::pre && request.slot == request_.slot) return;
  begin(request);
  phase_ = Phase::pre;
  ask_holder(now);
}

void GroupSeeker::stop(Nanos) {
  withdraw_from_holder();
  phase_ = Phase::idle;
  outcome_.reset();
}

void GroupSeeker::skip(const SlotName& slot) {
  for (const auto& holder : view_.coordinators(slot_key(options_.run, slot), slot))
    sends_.push_back({holder, formation::Withdraw{slot, attempt_}});
}

void GroupSeeker::begin(const SeekRequest& request) {
  withdraw_from_holder();
  request_ = request;
  holders_ = view_.coordinators(slot_key(options_.run, request.slot), request.slot);
  holder_ = 0;
}

// Registers at the current holder of the slot's key. Holders that are known to be gone are skipped.
void GroupSeeker::ask_holder(Nanos now) {
  while (holder_ < holders_.size() && view_.gone(holders_[holder_])) ++holder_;
  acknowledged_ = false;
  asked_at_ = answered_at_ = now;
  const auto& times = options_.times;
  round_timeout_ = times.round_timeout_for(times.contribute_timeout_for(options_.vector_bytes, request_.bandwidth));
  layout_sent_ = never;
  if (holder_ < holders_.size()) {
    ++attempt_;
    return send_register(now);
  }
  if (phase_ == Phase::seeking) {
    std::string who = "no reachable peer can coordinate it";
    if (!holders_.empty()) who = concat("none of its ", holders_.size(), " coordinators named a group in time");
    return end(SeekNoCoordinator{"NO_COORDINATOR: " + to_string(request_.slot) + ": " + who});
  }
  // No holder has answered the pre-registration. Nothing is lost, because seek() begins with the first holder again.
  holder_ = 0;
  acknowledged_ = true;
}

void GroupSeeker::next_holder(Nanos now) {
  withdraw_from_holder();
  ++counters_.holders_abandoned;
  ++holder_;
  ask_holder(now);
}

void GroupSeeker::send_register(Nanos now) {
  sends_.push_back({holders_[holder_], formation::Register{.slot = request_.slot,
                                                           .cell = request_.cell,
                                                           .position = request_.position,
                                                           .weighted = request_.weighted,
                                                           .pre = phase_ == Phase::pre,
                                                           .in_layout = request_.in_layout,
                                                           .role = request_.role,
                                                           .bandwidth = request_.bandwidth,
                                                           .schema = request_.schema,
                                                           .attempt = attempt_,
                                                           .missing = request_.missing}});
  repeat_at_ = now + options_.times.coordinator_timeout / repeats;
}

void GroupSeeker::withdraw_from_holder() {
  if (phase_ == Phase::idle || holder_ >= holders_.size() || view_.gone(holders_[holder_])) return;
  sends_.push_back({holders_[holder_], formation::Withdraw{request_.slot, attempt_}});
}

void GroupSeeker::end(SeekOutcome outcome) {
  phase_ = Phase::idle;
  outcome_ = std::move(outcome);
}

void GroupSeeker::peer_gone(const PeerId& peer, Nanos now) {
  if (phase_ != Phase::idle && holder_ < holders_.size() && holders_[holder_] == peer) next_holder(now);
}

Nanos GroupSeeker::silence_deadline() const { return answered_at_ + options_.times.coordinator_timeout; }

Nanos GroupSeeker::holder_deadline() const {
  return asked_at_ + options_.times.coordinator_timeout + options_.times.gather_timeout + round_timeout_;
}

Nanos GroupSeeker::next_deadline() const {
  if (phase_ == Phase::idle) return never;
  if (phase_ == Phase::pre) return acknowledged_ ? never : std::min(repeat_at_, silence_deadline());
  return std::min({repeat_at_, silence_deadline(), holder_deadline()});
}

const PeerId* GroupSeeker::silent_coordinator(Nanos now) const {
  if (phase_ == Phase::idle || holder_ >= holders_.size() || (phase_ == Phase::pre && acknowledged_)) return nullptr;
  return now >= silence_deadline() ? &holders_[holder_] : nullptr;
}

void GroupSeeker::excuse_silence(Nanos now) {
  answered_at_ = now - options_.times.coordinator_timeout + options_.times.coordinator_timeout / repeats;
  send_register(now);
}

void GroupSeeker::woke(Nanos now) {
  if (next_deadline() > now) return;
  const auto abandon_at = std::min(silence_deadline(), holder_deadline());
  if (abandon_at > now) return send_register(now);
  if (now - abandon_at >= options_.times.coordinator_timeout / late_wakeup_part && late_wakeups_ < late_wakeups_max) {
    ++late_wakeups_;
    asked_at_ = answered_at_ = now;
    return send_register(now);
  }
  next_holder(now);
}

void GroupSeeker::message(const PeerId& from, const FormationMessage& message, Nanos now) {
  std::visit(
      [&](const auto& body) {
        if constexpr (requires { take(from, body, now); }) {
          take(from, body, now);
        } else {
          ++counters_.ignored;  // the GroupCoordinator handles this kind of message
        }
      },
      message);
}

bool GroupSeeker::is_coordinator(const PeerId& from, const SlotName& slot) const {
  return phase_ != Phase::idle && slot == request_.slot && holder_ < holders_.size() && from == holders_[holder_];
}

bool GroupSeeker::from_coordinator(const PeerId& from, const SlotName& slot) {
  if (is_coordinator(from, slot)) return true;
  ++counters_.ignored;
  return false;
}

// Returns true if the answer ends the request. An answer to a pre-registration does not end it: the coordinator repeats the
// answer after the registration.
bool GroupSeeker::is_answer(const PeerId& from, const SlotName& slot, uint64_t steps_opened, Nanos now) {
  note_opened(steps_opened);
  if (!from_coordinator(from, slot)) return false;
  on_answer(now);
  return phase_ == Phase::seeking;
}

void GroupSeeker::on_answer(Nanos now) {
  acknowledged_ = true;
  answered_at_ = now;
  // From now on the coordinator sends signs of life. REGISTER is repeated only if these stop.
  repeat_at_ = now + options_.times.coordinator_timeout / 2;
}

void GroupSeeker::note_opened(uint64_t steps_opened) {
  if (steps_opened <= highest_opened_) return;
  highest_opened_ = steps_opened;
  if (steps_opened > view_.steps_opened()) opened_ = steps_opened - 1;
}

void GroupSeeker::take(const PeerId& from, const formation::Pending& pending, Nanos now) {
  note_opened(pending.steps_opened);
  if (!from_coordinator(from, pending.slot)) return;
  if (pending.attempt != attempt_) {
    ++counters_.ignored;
    return;
  }
  on_answer(now);
  const auto round_ms = std::min<uint64_t>(pending.round_ms, timeout_max / millisecond);
  round_timeout_ = std::max(round_timeout_, static_cast<Nanos>(round_ms) * millisecond);
}

void GroupSeeker::take(const PeerId& from, const formation::Alone& alone, Nanos now) {
  if (is_answer(from, alone.slot, alone.steps_opened, now)) end(SeekAlone{alone.no_reducer, alone.missing});
}

void GroupSeeker::take(const PeerId& from, const formation::Full& full, Nanos now) {
  if (is_answer(from, full.slot, full.steps_opened, now)) end(SeekFull{full.other_schema});
}

void GroupSeeker::take(const PeerId& from, const formation::StaleLayout& stale, Nanos now) {
  if (is_answer(from, stale.slot, stale.steps_opened, now)) end(SeekStale{stale.newer});
}

void GroupSeeker::take(const PeerId& from, const formation::Closed& closed, Nanos now) {
  if (!is_answer(from, closed.slot, closed.steps_opened, now)) return;
  send_late();
  end(SeekClosed{closed.since_ms, closed.steps_opened});
}

// Sends LATE to all holders of the slot, because any holder may become the slot's coordinator.
void GroupSeeker::send_late() {
  if (!request_.in_layout) return;  // coordinators do not wait for a particular newcomer, so a newcomer sends no LATE
  auto slot = request_.slot;
  ++slot.step;
  const auto* layout = view_.layout_for(slot.step);
  if (layout != nullptr && key_count(*layout) > 0) return;
  if (layout != nullptr) slot = slot_in(*layout, options_.self, slot.step, slot.round);
  for (const auto& holder : view_.coordinators(slot_key(options_.run, slot), slot))
    sends_.push_back({holder, formation::Late{slot}});
}

void GroupSeeker::take(const PeerId& from, const formation::NeedLayout& need, Nanos now) {
  if (!from_coordinator(from, need.slot)) return;
  // NEED_LAYOUT does not count as a sign of life. If it did, a coordinator that cannot store the layout could ask for the
  // layout for ever.
  const auto* layout = view_.find_layout(need.slot.layout_version, need.slot.layout_digest);
  if (layout == nullptr || (layout_sent_ != never && now - layout_sent_ < options_.times.coordinator_timeout / repeats)) return;
  layout_sent_ = now;
  sends_.push_back({from, formation::LayoutReply{*layout}});
  send_register(now);
}

bool GroupSeeker::acceptable(const GroupDescriptor& group) const {
  return phase_ == Phase::seeking && group.slot == request_.slot && group.schema == request_.schema;
}

void GroupSeeker::take(const PeerId& from, const formation::Descriptor& descriptor, Nanos now) {
  const auto& group = descriptor.group;
  note_opened(group.highest_opened);
  if (group.rank_of(options_.self) == group.members.size()) {
    ++counters_.ignored;
    return;
  }
  sends_.push_back({from, formation::DescriptorAck{group.id}});
  const auto* recent = find_recent(group.id);
  if (recent == nullptr && acceptable(group)) return accept(from, group);
  if (recent == nullptr || !recent->accepted) {
    if (recent == nullptr) remember(group, false);
    ++counters_.declined;
    decline(group);
  }
  // This process has declined the group before, or its round of this group is over. It cannot accept the group again, and the
  // coordinator has closed the slot.
  if (recent != nullptr && phase_ == Phase::seeking && is_coordinator(from, group.slot))
    end(SeekClosed{0, group.highest_opened});
}

void GroupSeeker::accept(const PeerId& from, const GroupDescriptor& group) {
  if (holders_[holder_] != from) withdraw_from_holder();
  remember(group, true);
  const auto belongs = [&](const DeclineEvent& event) { return event.id == group.id; };
  for (const auto& event : early_declines_) {
    if (belongs(event) && group.rank_of(event.peer) < group.members.size()) declines_.push_back(event);
  }
  std::erase_if(early_declines_, belongs);
  end(group);
}

void GroupSeeker::decline(const GroupDescriptor& group) {
  for (const auto& member : group.members) {
    if (member.id != options_.self) sends_.push_back({member.id, formation::Decline{group.id, group.slot}});
  }
}

void GroupSeeker::take(const PeerId& from, const formation::Decline& decline, Nanos) {
  const auto* recent = find_recent(decline.id);
  if (recent == nullptr) {
    if (early_declines_.size() >= early_declines_max) early_declines_.pop_front();
    early_declines_.push_back({decline.id, from});
  } else if (recent->accepted && recent->group->rank_of(from) < recent->group->members.size()) {
    declines_.push_back({decline.id, from});
  }
}

void GroupSeeker::take(const PeerId& from, const formation::GetDescriptor& get, Nanos) {
  const auto* recent = find_recent(get.id);
  if (recent == nullptr || recent->group->rank_of(from) == recent->group->members.size()) {
    ++counters_.ignored;
    return;
  }
  sends_.push_back({from, formation::Descriptor{*recent->group}});
}

void GroupSeeker::unknown_group(const GroupId& id, const PeerId& from, Nanos now) {
  if (const auto* recent = find_recent(id)) {
    if (!recent->accepted) sends_.push_back({from, formation::Decline{id, recent->group->slot}});
    return;
  }
  const auto again = options_.times.coordinator_timeout / repeats;
  const auto known = asked_groups_.find(id);
  if (known != asked_groups_.end() && now - known->second < again) return;
  if (known == asked_groups_.end() && asked_groups_.size() >= asked_groups_max) {
    std::erase_if(asked_groups_, [&](const auto& asked) { return now - asked.second >= again; });
    if (asked_groups_.size() >= asked_groups_max) return;
  }
  asked_groups_[id] = now;
  sends_.push_back({from, formation::GetDescriptor{id}});
}

const GroupSeeker::Recent* GroupSeeker::find_recent(const GroupId& id) const {
  const auto found = std::find_if(recent_.begin(), recent_.end(), [&](const Recent& recent) { return recent.group->id == id; });
  return found == recent_.end() ? nullptr : &*found;
}

void GroupSeeker::remember(const GroupDescriptor& group, bool accepted) {
  if (recent_.size() >= recent_max) recent_.pop_front();
  recent_.push_back({std::make_shared<const GroupDescriptor>(group), accepted});
}

}  // namespace unisono
