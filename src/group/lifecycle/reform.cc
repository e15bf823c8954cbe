#include "group/lifecycle/reform.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "base/concat.h"

namespace unisono {

namespace {

// If woke() is called late_wakeup_min or more after the deadline, this process was stopped, or it got no CPU time. The other
// members then only seem silent, because their messages may be here unread. Such a delay is forgiven at most late_wakeups_max
// times, so re-forming ends even on a host that is always late.
constexpr Nanos late_wakeup_min = 5 * millisecond;
constexpr uint32_t late_wakeups_max = 4;
constexpr size_t early_max = 4;        // So many messages are kept for each member: one or two proposals, a commit, a removal.
constexpr size_t removals_max = 4096;  // So many removed processes are remembered.

template <typename T>
const T* body_as(const ReformMessage& message) {
  return std::get_if<T>(&message.body);
}

std::string list(const std::vector<Rank>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) text += concat(i == 0 ? "" : ", ", ranks[i]);
  return text;
}

}  // namespace

Reform::Reform(Roster roster, PeerId self)
    : roster_(std::move(roster)), name_(name_of(roster_)), self_(self), peers_(roster_.members.size()) {
  const auto rank = roster_.rank_of(self);
  UNISONO_CHECK(rank.has_value());
  self_rank_ = *rank;
  for (const auto& member : roster_.members) ranks_[member.id] = member.rank;
}

Status Reform::start(const ReformRequest& request, Nanos now) {
  if (phase_ == Phase::running) return {Code::invalid, "the group is being re-formed already"};
  if (phase_ == Phase::ended) return ended_;
  phase_ = Phase::running;
  requested_ = false;
  request_ = request;
  request_.timeout = std::max(request.timeout, millisecond);
  began_ = started_ = changed_ = now;
  gives_up_at_ = now + request_.link_timeout;
  agreed_ = never;
  round_ = 1;
  late_wakeups_ = 0;
  was_stopped_ = false;
  add_joiners(request.joiners);
  for (const auto& id : request.dead) {
    const auto found = ranks_.find(id);
    if (found != ranks_.end()) mark_departed({found->second, Departure::Cause::dead, self_rank_, 0});
  }
  for (const auto& id : request.lost) {
    const auto found = ranks_.find(id);
    if (found != ranks_.end()) mark_departed({found->second, Departure::Cause::lost, self_rank_, 0});
  }
  for (const auto& [id, until] : request.relinking) {
    const auto found = ranks_.find(id);
    if (found != ranks_.end() && peers_[found->second].alive) mark_link_down(found->second, until, now);
  }
  // Handle the proposals that arrived before this member started, as if they arrived now.
  std::vector<std::pair<PeerId, Bytes>> early;
  for (Rank rank = 0; rank < peers_.size(); ++rank) {
    for (auto& bytes : peers_[rank].early) early.emplace_back(roster_.members[rank].id, std::move(bytes));
    peers_[rank].early.clear();
  }
  broadcast_proposal(now);
  for (const auto& [from, bytes] : early) (void)message(from, bytes, now);
  if (running()) check_agreement(now);
  return {};
}

Status Reform::message(const PeerId& from, ByteView bytes, Nanos now) {
  if (phase_ == Phase::ended) return {};
  auto decoded = decode_reform(bytes);
  Status status = decoded.ok() ? dispatch(from, *decoded, bytes, now) : decoded.status();
  if (!status.ok()) ++counters_.malformed;
  return status;
}

Status Reform::dispatch(const PeerId& from, ReformMessage& message, ByteView bytes, Nanos now) {
  const auto found = ranks_.find(from);
  if (!(message.base == name_)) {
    // The sender already has the next roster, and this member does not. Keep the message until this member has that roster,
    // too.
    if (found != ranks_.end() && message.base.epoch == name_.epoch + 1) {
      keep_early(found->second, bytes);
    } else {
      on_other_epoch(from, message, now);
    }
    return {};
  }
  if (found == ranks_.end()) {
    ++counters_.unauthenticated;
    return {};
  }
  const Rank rank = found->second;
  if (rank == self_rank_) return {Code::corrupt, "re-forming message: from this process itself"};
  if (const auto* removed = body_as<Removed>(message)) {
    on_removed(rank, *removed, now);
    return {};
  }
  const auto* propose = body_as<Propose>(message);
  if (propose != nullptr &&
      std::any_of(propose->departures.begin(), propose->departures.end(),
                  [&](const Departure& departure) { return departure.rank >= peers_.size() || departure.rank == rank; })) {
    return {Code::corrupt, "re-forming message: propose: departure of a rank that does not exist, or of its sender"};
  }
  if (phase_ == Phase::idle) {
    requested_ = requested_ || propose != nullptr;
    keep_early(rank, bytes);
    return {};
  }
  if (propose == nullptr) return on_commit(rank, *body_as<Commit>(message), bytes, now);
  on_propose(rank, *propose, now);
  return {};
}

void Reform::keep_early(Rank from, ByteView bytes) {
  auto& early = peers_[from].early;
  // Drop the oldest message, because the newest one has the most information.
  if (early.size() >= early_max) early.erase(early.begin());
  early.emplace_back(bytes.begin(), bytes.end());
}

void Reform::on_propose(Rank from, const Propose& propose, Nanos now) {
  auto& peer = peers_[from];
  if (!peer.alive || propose.round <= peer.round) return;
  peer.has_proposed = true;
  peer.round = propose.round;
  peer.departed_count = static_cast<uint32_t>(propose.departures.size());
  peer.proven_count = static_cast<uint32_t>(
      std::count_if(propose.departures.begin(), propose.departures.end(), [](const auto& each) { return each.is_proven(); }));
  // It needs its own timeout to judge, and its next proposal some time to arrive.
  const Nanos waits = std::min(propose.waits_ms * millisecond, request_.link_timeout);
  peer.waits_until = waits == 0 ? 0 : now + waits + request_.timeout + request_.timeout / 4;
  add_joiners(propose.joiners);
  bool changed = false;
  for (const auto& departure : propose.departures) {
    // If a sender says that this process is gone, it will never agree with this process again. So this process must end.
    if (departure.rank == self_rank_) return end_removed({name_.epoch + 1, departure, {from}, 0, 0});
    changed = mark_departed(departure) || changed;
  }
  if (changed) set_changed(now);
  check_agreement(now);
}

void Reform::end_removed(const Removed& removed) {
  end({Code::peer_lost, concat("this process, ", label(roster_.members[self_rank_]), ", was removed from the group at epoch ",
                               removed.epoch, " by ", list(removed.removers), ": ", to_string(removed.departure))});
}

// The member `from` says that it and others went on without this process. Returns true if this process must therefore end. The
// process need not end if all of these conditions hold:
// - It has been re-forming for at least one timeout.
// - It was not stopped meanwhile.
// - More members are on its side than on the side of the others.
//
// If they hold, the others judged too early: one of them was stopped, and when it ran again, it took all members for dead.
bool Reform::accepts_removal(Rank from, const Removed& removed, Nanos now) const {
  if (phase_ != Phase::running || was_stopped_ || now - began_ < request_.timeout) return true;
  uint32_t left = 0;
  for (Rank rank = 0; rank < peers_.size(); ++rank) {
    const bool theirs =
        rank == from || std::find(removed.removers.begin(), removed.removers.end(), rank) != removed.removers.end();
    if (peers_[rank].alive && !theirs) ++left;
  }
  return left <= removed.survivors;
}

void Reform::on_removed(Rank from, const Removed& removed, Nanos now) {
  if (accepts_removal(from, removed, now)) return end_removed(removed);
  bool changed = mark_departed({from, Departure::Cause::left, self_rank_, 0});
  for (const Rank rank : removed.removers) {
    if (rank < peers_.size()) changed = mark_departed({rank, Departure::Cause::left, self_rank_, 0}) || changed;
  }
  if (changed) set_changed(now);
  check_agreement(now);
}

// Handles a message that belongs to another roster. Its sender is in an older epoch, was removed, or has removed this process.
void Reform::on_other_epoch(const PeerId& from, ReformMessage& message, Nanos now) {
  if (body_as<Propose>(message) != nullptr) return answer_old_proposal(from, message.base, now);
  const auto* removed = body_as<Removed>(message);
  if (removed == nullptr || message.base != previous_ || previous_commit_.empty() || removed->removers.empty()) return;
  // The last epoch ended with two different rosters: that of this process and that of the sender. If this process's roster
  // contains the sender, it can never be complete, so this process ends. Otherwise, if both rosters are new, one of them must
  // be given up. Both sides keep the larger one. If both have the same size, they keep the one with the lowest rank.
  const Nanos recent = 2 * request_.timeout;
  const bool both_new = now - adopted_ <= recent && removed->age_ms <= recent / millisecond;
  const bool theirs_has_precedence =
      removed->survivors > survivors_ || (removed->survivors == survivors_ && removed->removers[0] < lowest_survivor_);
  if (ranks_.contains(from) || (both_new && theirs_has_precedence)) return end_removed(*removed);
  if (both_new) answer_old_proposal(from, message.base, now);
}

// Answers a proposal that belongs to an epoch which has already ended for this process.
void Reform::answer_old_proposal(const PeerId& from, const EpochName& base, Nanos now) {
  if (ranks_.contains(from)) {
    if (base == previous_ && !previous_commit_.empty()) sends_.push_back({from, previous_commit_});
    return;
  }
  const auto note = removals_.find(from);
  if (note == removals_.end()) {
    ++counters_.unauthenticated;
    return;
  }
  Removed removed = note->second.removed;
  removed.age_ms =
      static_cast<uint32_t>(std::clamp<Nanos>((now - note->second.at) / millisecond, 0, std::numeric_limits<uint32_t>::max()));
  sends_.push_back({from, encode(ReformMessage{base, std::move(removed)})});
}

Status Reform::check_commit(const Commit& commit) const {
  const auto& members = commit.roster.members;
  if (commit.roster.epoch != name_.epoch + 1)
    return {Code::corrupt, concat("re-forming message: commit: epoch ", commit.roster.epoch)};
  if (commit.roster.key != roster_.key) return {Code::corrupt, "re-forming message: commit: another job's key"};
  for (const auto& departure : commit.departures) {
    if (departure.rank >= peers_.size())
      return {Code::corrupt, "re-forming message: commit: departure of a rank that does not exist"};
  }
  if (commit.departures.size() >= peers_.size() || members.size() < peers_.size() - commit.departures.size()) {
    return {Code::corrupt, "re-forming message: commit: too few members"};
  }
  size_t next = 0;  // Survivors come first, in their old order. Only their ranks change.
  auto departure = commit.departures.begin();
  for (const auto& old : roster_.members) {
    if (departure != commit.departures.end() && departure->rank == old.rank) {
      ++departure;
      continue;
    }
    MemberRecord expected = old;
    expected.rank = static_cast<Rank>(next);
    if (members[next++] != expected) return {Code::corrupt, "re-forming message: commit: survivors changed"};
  }
  for (size_t i = next; i < members.size(); ++i) {
    if (ranks_.contains(members[i].id)) return {Code::corrupt, "re-forming message: commit: a member joins again"};
  }
  return {};
}

Status Reform::on_commit(Rank from, const Commit& commit, ByteView bytes, Nanos now) {
  if (!peers_[from].alive) return {};  // This process has proposed a set of survivors without the sender.
  if (auto status = check_commit(commit); !status.ok()) return status;
  for (const auto& departure : commit.departures) {
    if (departure.rank == self_rank_) {
      end_removed({commit.roster.epoch, departure, {from}, 0, 0});
      return {};
    }
  }
  adopt(commit, bytes, now);
  return {};
}

bool Reform::handle_late_wakeup(Nanos now) {
  const Nanos late = now - next_deadline();
  if (late < late_wakeup_min || late_wakeups_ >= late_wakeups_max) return false;
  ++late_wakeups_;
  gives_up_at_ += late;
  for (auto& peer : peers_) {
    if (peer.link_until != never) peer.link_until += late;
    if (peer.waits_until != 0) peer.waits_until += late;
  }
  was_stopped_ = was_stopped_ || late >= request_.timeout / 2;
  // Propose again. A member that has gone on without this process will answer with REMOVED. All other members will answer with
  // their own proposals.
  set_changed(now);
  check_agreement(now);
  // A member that is awake answers at once, so wait only for a quarter of the usual timeout.
  started_ = changed_ = now - request_.timeout * 3 / 4;
  if (agreed_ != never) agreed_ = started_;
  return true;
}

void Reform::woke(Nanos now) {
  if (!running() || now < next_deadline() || handle_late_wakeup(now)) return;
  // Collect the ranks before any of them is marked, because each departure changes the deadlines of the other ranks.
  std::vector<Rank> silent;
  for (Rank rank = 0; rank < peers_.size(); ++rank) {
    if (rank != self_rank_ && peers_[rank].alive && deadline_of(rank) <= now) silent.push_back(rank);
  }
  const auto waited_ms = static_cast<uint32_t>(request_.timeout / millisecond);
  for (const Rank rank : silent) {
    const bool has_link = peers_[rank].link_until == never;
    mark_departed(has_link ? Departure{rank, Departure::Cause::silent, self_rank_, waited_ms} : unreachable(rank, now));
  }
  if (!silent.empty()) set_changed(now);
  check_agreement(now);
}

// Returns the time from which on a silent member counts as gone.
Nanos Reform::deadline_of(Rank rank) const {
  const auto& peer = peers_[rank];
  if (peer.link_until != never) return peer.link_until;
  if (!peer.has_proposed) return std::max(started_, peer.link_up_at) + request_.timeout;
  if (peer.departed_count != departed_count_ || peer.proven_count != proven_count_)
    return std::max(changed_, peer.link_up_at) + request_.timeout;
  if (peer.waits_until != 0) return peer.waits_until;
  // All members agree, and only the roster from the lowest rank is missing. The lowest rank may itself wait for a member that
  // has already answered this process. After its timeout, it drops that member and proposes again. This process waits a quarter
  // longer, so that the new proposal arrives before it drops the lowest rank.
  if (rank == leader() && agreed_ != never && !in_doubt()) return agreed_ + request_.timeout + request_.timeout / 4;
  return never;
}

Nanos Reform::next_deadline() const {
  if (!running()) return never;
  Nanos deadline = never;
  for (Rank rank = 0; rank < peers_.size(); ++rank) {
    if (rank != self_rank_ && peers_[rank].alive) deadline = std::min(deadline, deadline_of(rank));
  }
  if (in_doubt()) deadline = std::min(deadline, gives_up_at_);
  return deadline;
}

Rank Reform::leader() const {
  for (Rank rank = 0; rank < peers_.size(); ++rank) {
    if (peers_[rank].alive) return rank;
  }
  return self_rank_;
}

bool Reform::all_agree() const {
  for (Rank rank = 0; rank < peers_.size(); ++rank) {
    const auto& peer = peers_[rank];
    if (rank == self_rank_ || !peer.alive) continue;
    const bool same = peer.departed_count == departed_count_ && peer.proven_count == proven_count_;
    if (!peer.has_proposed || !same || peer.waits_until != 0 || peer.link_until != never) return false;
  }
  return true;
}

// Marks a rank as gone, or as dead if only that is new. Returns true if that changes anything.
bool Reform::mark_departed(const Departure& departure) {
  auto& peer = peers_[departure.rank];
  const bool proof = departure.is_proven() && (peer.alive || !peer.departure.is_proven());
  if (departure.rank == self_rank_ || (!peer.alive && !proof)) return false;
  if (peer.alive) ++departed_count_;
  if (proof) ++proven_count_;
  peer.alive = false;
  peer.departure = departure;
  return true;
}

void Reform::add_joiners(const std::vector<MemberRecord>& joiners) {
  for (const auto& joiner : joiners) {
    const bool known = ranks_.contains(joiner.id) ||
                       std::any_of(joiners_.begin(), joiners_.end(), [&](const auto& other) { return other.id == joiner.id; });
    if (!known && joiners_.size() < reform_joiners_max && check_member(joiner).ok()) joiners_.push_back(joiner);
  }
}

void Reform::set_changed(Nanos now) {
  changed_ = now;
  propose_again(now);
}

void Reform::propose_again(Nanos now) {
  agreed_ = never;
  ++round_;
  broadcast_proposal(now);
}

void Reform::broadcast_proposal(Nanos now) {
  told_until_ = waits_until();
  const Nanos waits = told_until_ == 0 ? 0 : std::max(told_until_ - now, millisecond);
  const auto waits_ms = static_cast<uint32_t>((waits + millisecond - 1) / millisecond);
  const Bytes bytes = encode(ReformMessage{name_, Propose{round_, waits_ms, departures(), joiners_}});
  for (Rank rank = 0; rank < peers_.size(); ++rank) {
    if (rank != self_rank_ && peers_[rank].alive) sends_.push_back({roster_.members[rank].id, bytes});
  }
}

// Does everything that can be done with the current set of survivors and the proposals so far.
void Reform::check_agreement(Nanos now) {
  if (!running()) return;
  if (auto why = too_few(); !why.ok()) return end(std::move(why));
  if (!all_agree()) return;
  if (agreed_ == never) agreed_ = now;
  // A death may be proven later than the others fall silent.
  if (lacks_majority()) {
    if (now >= gives_up_at_) end(no_majority(now));
    return;
  }
  if (leader() == self_rank_) commit(now);
}

std::vector<Departure> Reform::departures() const {
  std::vector<Departure> list;
  for (const auto& peer : peers_) {
    if (!peer.alive) list.push_back(peer.departure);
  }
  return list;
}

std::vector<Rank> Reform::living() const {
  std::vector<Rank> list;
  for (Rank rank = 0; rank < peers_.size(); ++rank) {
    if (peers_[rank].alive) list.push_back(rank);
  }
  return list;
}

void Reform::commit(Nanos now) {
  Commit commit{.roster = {.epoch = name_.epoch + 1, .key = roster_.key, .members = {}}, .departures = departures()};
  auto& members = commit.roster.members;
  for (const Rank rank : living()) members.push_back(roster_.members[rank]);
  for (const auto& joiner : joiners_) {
    if (members.size() < world_size_max) members.push_back(joiner);
  }
  for (size_t i = 0; i < members.size(); ++i) members[i].rank = static_cast<Rank>(i);
  const Bytes bytes = encode(ReformMessage{name_, commit});
  for (const Rank rank : living()) {
    if (rank != self_rank_) sends_.push_back({roster_.members[rank].id, bytes});
  }
  const auto removed_now = departures();
  const auto old = roster_;
  const auto base = name_;
  adopt(std::move(commit), bytes, now);
  for (const auto& departure : removed_now) answer_old_proposal(old.members[departure.rank].id, base, now);
}

void Reform::adopt(Commit commit, ByteView bytes, Nanos now) {
  ReformResult result;
  std::vector<Rank> removers;
  std::vector<bool> gone(peers_.size(), false);
  for (const auto& departure : commit.departures) {
    gone[departure.rank] = true;
    result.lost.push_back(roster_.members[departure.rank]);
    result.lost_reasons.push_back(to_string(departure));
  }
  for (Rank rank = 0; rank < peers_.size(); ++rank) {
    if (!gone[rank]) removers.push_back(rank);
  }
  for (const auto& departure : commit.departures) {
    if (removals_.size() >= removals_max) removals_.clear();
    Removed removed{commit.roster.epoch, departure, removers, static_cast<uint32_t>(removers.size()), 0};
    removals_[roster_.members[departure.rank].id] = {std::move(removed), now};
  }
  for (const auto& member : commit.roster.members) {
    if (!ranks_.contains(member.id)) result.joined.push_back(member);
  }
  std::vector<std::pair<PeerId, Bytes>> early;
  // Members of the new roster whose links to this process were lost during the re-forming.
  std::vector<std::pair<PeerId, Departure::Cause>> lost_since;
  for (Rank rank = 0; rank < peers_.size(); ++rank) {
    for (auto& message : peers_[rank].early) early.emplace_back(roster_.members[rank].id, std::move(message));
    const auto& departure = peers_[rank].departure;
    const bool link_lost = departure.cause == Departure::Cause::lost || departure.cause == Departure::Cause::dead;
    if (!peers_[rank].alive && !gone[rank] && link_lost && departure.reporter == self_rank_)
      lost_since.emplace_back(roster_.members[rank].id, departure.cause);
  }
  previous_ = name_;
  previous_commit_.assign(bytes.begin(), bytes.end());
  adopted_ = now;
  survivors_ = static_cast<uint32_t>(removers.size());
  lowest_survivor_ = removers.front();
  roster_ = std::move(commit.roster);
  name_ = name_of(roster_);
  self_rank_ = *roster_.rank_of(self_);
  peers_.assign(roster_.members.size(), {});
  ranks_.clear();
  for (const auto& member : roster_.members) ranks_[member.id] = member.rank;
  departed_count_ = proven_count_ = 0;
  joiners_.clear();
  phase_ = Phase::idle;
  result.roster = roster_;
  result.digest = name_.digest;
  result.self = self_rank_;
  result_ = std::move(result);
  for (const auto& [id, cause] : lost_since) depart(id, cause, now);
  for (const auto& [from, message] : early) (void)Reform::message(from, message, now);
}

void Reform::end(Status why) {
  phase_ = Phase::ended;
  ended_ = why;
  result_ = std::move(why);
}

}  // namespace unisono
