// The groups of a peer. These are the group of the current round, and earlier groups, whose other members may still ask for
// results. This file also holds messages that arrive before the descriptor of their group.
#include <algorithm>
#include <iterator>
#include <utility>

#include "elastic/formation/line_slot.h"
#include "elastic/peer/averaging_step.h"
#include "elastic/peer/moshpit_group.h"
#include "elastic/peer/moshpit_peer.h"
#include "elastic/round/round_messages.h"

namespace unisono {

namespace {

// Returns how many bytes a member must send in a round at least. It sends its values to the owners of the chunks. It also sends
// the results of its own chunks to every other member that has values.
uint64_t model_bytes(const GroupDescriptor& group, uint32_t self, const ChunkTable& table) {
  uint64_t chunks = 0, own = group.chunk_counts[self];
  for (const auto count : group.chunk_counts) chunks += count;
  if (chunks == 0) return 0;
  const auto bytes = static_cast<double>(table.elements()) * sizeof(float);
  const bool contributes = group.members[self].role != ElasticRole::reducer;
  uint64_t receivers = 0;
  for (const auto& member : group.members) receivers += member.role != ElasticRole::reducer ? 1 : 0;
  const auto contributed = contributes ? bytes * static_cast<double>(chunks - own) / static_cast<double>(chunks) : 0;
  return static_cast<uint64_t>(contributed + bytes * static_cast<double>(own) / static_cast<double>(chunks) *
                                                 static_cast<double>(receivers - (contributes ? 1 : 0)));
}

}  // namespace

void MoshpitPeer::on_round(const PeerId& from, SharedBuffer message, Nanos now) {
  const auto id = round_group(message.view());
  if (!id) return refuse(from, {Code::corrupt, "a message of a round that is too short to name its group"});
  MoshpitGroup* group = group_ != nullptr && group_->id() == *id ? group_.get() : nullptr;
  for (auto one = groups_.rbegin(); group == nullptr && one != groups_.rend(); ++one) {
    if ((*one)->id() == *id) group = one->get();
  }
  if (group == nullptr) {
    if (std::ranges::find(forgotten_, *id) == forgotten_.end()) hold_early_message(*id, from, std::move(message), now);
    return;
  }
  const auto rank = group->descriptor().rank_of(from);
  if (rank >= group->descriptor().members.size())
    return refuse(from, {Code::corrupt, "a message of a group that does not list the sender"});
  group->round().message(rank, message, now);
}

// Keeps a message of a group whose descriptor has not arrived here. Other members may get the descriptor earlier, and then send
// at once. They do not repeat these messages, so the messages are kept for up to stall_timeout. The limit of bytes leaves room
// for all contributions to one owner, with their heads.
void MoshpitPeer::hold_early_message(const GroupId& id, const PeerId& from, SharedBuffer message, Nanos now) {
  const size_t limit = 2 * (settings_.elements * sizeof(float) + (size_t{1} << 20));
  seeker_.unknown_group(id, from, now);
  if (early_bytes_ + message.size() > limit || (early_.size() >= early_groups_max && !early_.contains(id))) {
    return refuse(from, {Code::corrupt, "too many messages of groups that are unknown here"});
  }
  auto [found, fresh] = early_.try_emplace(id);
  if (fresh) found->second.since = now;
  early_bytes_ += message.size();
  found->second.messages.emplace_back(from, std::move(message));
  drop_at_ = std::min(drop_at_, found->second.since + settings_.times.stall_timeout);
}

// Drops early messages if the descriptor of their group did not arrive in time. Also drops ended groups about which no member
// will ask any more.
void MoshpitPeer::drop_groups(Nanos now) {
  drop_at_ = never;
  for (auto one = early_.begin(); one != early_.end();) {
    const auto until = one->second.since + settings_.times.stall_timeout;
    if (now < until) {
      drop_at_ = std::min(drop_at_, until);
      ++one;
      continue;
    }
    for (const auto& [from, message] : one->second.messages) early_bytes_ -= message.size();
    one = early_.erase(one);
  }
  while (!groups_.empty() && (groups_.size() > groups_kept_max || groups_.front()->round().over(now))) {
    forgotten_.push_back(groups_.front()->id());
    if (forgotten_.size() > groups_forgotten_max) forgotten_.pop_front();
    groups_.pop_front();
  }
  if (!groups_.empty()) drop_at_ = std::min(drop_at_, std::max(now + millisecond, groups_.front()->round().next_deadline()));
}

bool MoshpitPeer::begin_round(const GroupDescriptor& descriptor, Nanos now) {
  auto& step = *step_;
  RoundRequest request{.id = descriptor.id,
                       .self = descriptor.rank_of(settings_.self),
                       .members = {},
                       .chunk_counts = descriptor.chunk_counts,
                       .table = table_,
                       .times = settings_.times,
                       .commit = settings_.commit,
                       .contribute_codec = wire_codec(settings_.contribute, DType::f32, DType::f32, false),
                       .result_codec = wire_codec(settings_.result, DType::f32, DType::f32, false),
                       .line_complete = descriptor.line_complete,
                       .values = settings_.role == ElasticRole::reducer ? nullptr : &step.values,
                       .states = step.states};
  double slowest = 0;
  for (const auto& member : descriptor.members) {
    request.members.push_back({.position = member.position, .role = member.role, .in_layout = member.in_layout});
    if (member.bandwidth > 0 && (slowest == 0 || member.bandwidth < slowest)) slowest = member.bandwidth;
  }
  request.contribute_timeout =
      settings_.times.contribute_timeout_for(static_cast<double>(settings_.elements) * sizeof(float), slowest);
  request.round_timeout = settings_.times.round_timeout_for(request.contribute_timeout);
  auto group = std::make_unique<MoshpitGroup>(descriptor, port_);
  if (const auto status = group->open(std::move(request)); !status.ok()) {
    step.report.note = status.message();
    return false;
  }
  group_ = std::move(group);
  if (settings_.watch != nullptr)
    settings_.watch->began({.self = settings_.self, .group = descriptor, .values = step.values, .states = step.states});
  group_->round().start(now);
  for (uint32_t rank = 0; rank < descriptor.members.size(); ++rank) {
    if (keeper_.gone(descriptor.members[rank].id)) group_->round().member_gone(rank, MemberLoss::dead, now);
  }
  if (auto early = early_.extract(descriptor.id); !early.empty()) {
    for (auto& [from, message] : early.mapped().messages) {
      early_bytes_ -= message.size();
      const auto rank = descriptor.rank_of(from);
      if (rank < descriptor.members.size()) group_->round().message(rank, message, now);
    }
  }
  return true;
}

// If the current round has ended, does what its end requires, and returns true.
bool MoshpitPeer::act_groups(Nanos now) {
  if (group_ == nullptr || !group_->round().ended()) return false;
  if (settings_.watch != nullptr && step_ != nullptr) {
    settings_.watch->ended(
        {.self = settings_.self, .group = group_->descriptor(), .values = step_->values, .states = step_->states},
        group_->round());
  }
  for (auto& one : groups_) one->round().release_results();
  const auto absent = absent_from(*group_);
  auto summary = summary_of(*group_, absent);
  if (step_ != nullptr) {
    // Peers that were known to be gone before the group formed do not count. The step did not wait for them.
    const auto missing = group_->descriptor().missing.size();
    step_->members_expected += group_->descriptor().members.size() + missing;
    step_->members_absent += group_->round().report().absent.size() + missing;
  }
  groups_.push_back(std::move(group_));
  drop_groups(now);
  end_round(std::move(summary), absent, now);
  return true;
}

void MoshpitPeer::member_gone(const PeerId& peer, MemberLoss why, Nanos now) {
  const auto notify = [&](MoshpitGroup& group) {
    const auto rank = group.descriptor().rank_of(peer);
    if (rank < group.descriptor().members.size()) group.round().member_gone(rank, why, now);
  };
  if (group_ != nullptr) notify(*group_);
  for (auto& group : groups_) notify(*group);
}

// Returns the peers that the layout puts on the slot's line, but that are not in `present`. Without this, a peer that was known
// to be gone before the group formed would be in no list. `missing` are the peers for which the coordinator has waited.
std::vector<AbsentPeer> MoshpitPeer::absent_from_line(const SlotName& slot, const std::vector<PeerId>& present,
                                                      const std::vector<PeerId>& missing) const {
  const auto* layout = keeper_.find_layout(slot.layout_version, slot.layout_digest);
  std::vector<AbsentPeer> absent;
  for (const auto& peer : layout == nullptr ? missing : line_of(*layout, slot.round, slot.line)) {
    if (std::ranges::find(present, peer) != present.end()) continue;
    const bool waited_for = std::ranges::find(missing, peer) != missing.end();
    absent.push_back({peer, keeper_.gone(peer) ? name(keeper_.roster().find(peer)->status)
                            : waited_for       ? "did not register"
                                               : "did not take part"});
  }
  return absent;
}

std::vector<AbsentPeer> MoshpitPeer::absent_from(const MoshpitGroup& group) const {
  const auto& descriptor = group.descriptor();
  std::vector<AbsentPeer> absent;
  for (const auto& one : group.round().report().absent) absent.push_back({descriptor.members[one.rank].id, one.reason});
  std::vector<PeerId> present;
  for (const auto& member : descriptor.members) present.push_back(member.id);
  std::ranges::move(absent_from_line(descriptor.slot, present, descriptor.missing), std::back_inserter(absent));
  return absent;
}

std::string MoshpitPeer::label_of(const AbsentPeer& absent) const { return label_of(absent.id) + " (" + absent.reason + ')'; }

RoundSummary MoshpitPeer::summary_of(const MoshpitGroup& group, const std::vector<AbsentPeer>& absent) const {
  const auto& report = group.round().report();
  RoundSummary summary{.round = group.descriptor().slot.round,
                       .group = static_cast<uint32_t>(group.descriptor().members.size()),
                       .contributors_min = report.contributors_min,
                       .contributors_max = report.contributors_max,
                       .contributors_mean = report.contributors_mean,
                       .committed = report.committed,
                       .kept_local = report.kept_local,
                       .voided = report.voided,
                       .undecided = report.undecided,
                       .lost = report.lost,
                       .refused = report.refused,
                       .contribute_s = seconds_of(report.contribute),
                       .result_s = seconds_of(report.result),
                       .verdict_s = seconds_of(report.verdict),
                       .sent_bytes = report.sent_bytes,
                       .received_bytes = report.received_bytes,
                       .model_bytes = model_bytes(group.descriptor(), group.descriptor().rank_of(settings_.self), table_),
                       .variance = report.variance,
                       .total_weight = report.total_weight};
  summary.outcome = !report.problem.empty()                                            ? report.problem
                    : report.undecided > 0                                             ? "undecided"
                    : report.committed + report.kept_local == 0 && table_.chunks() > 0 ? "void"
                                                                                       : "averaged";
  for (const auto& one : absent) summary.absent.push_back(label_of(one));
  return summary;
}

}  // namespace unisono
