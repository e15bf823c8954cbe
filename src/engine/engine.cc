// The engine's peers, its groups, its poll loop, and the functions that end everything.
#include "engine/engine.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/concat.h"
#include "engine/engine_attempt.h"
#include "executor/absence.h"

namespace unisono {

namespace {

constexpr Nanos report_age_max = 10 * second;  // an older report is not taken for the reason why a member left

// The text is short enough for the string's inline buffer, so no memory is allocated.
Status no_memory_left() { return {Code::unavailable, "out of memory"}; }

// Calls a transport or a lossy group, and ignores bad_alloc. That is safe here because these objects are not polled again.
template <typename F>
void without_memory(F&& call) {
  try {
    call();
  } catch (const std::bad_alloc&) {}
}

}  // namespace

Engine::Engine(const EngineLimits& limits, Compute& compute)
    : limits_(limits),
      pool_(limits.pool_keep_bytes),
      control_(peers_),
      operations_({peers_, transports_, pool_, compute}),
      early_(pool_, limits.unexpected_bytes_max),
      failures_(peers_, control_, counters_),
      recorder_(peers_),
      fast_path_(peers_, compute, counters_),
      lossy_({groups_, peers_, control_, operations_, counters_},
             [this](ActiveOperation& active, const Status& why) {
               attempt(active.operation, [&] { active.operation.fail_and_notify(why, now_); });
             }),
      no_memory_(std::make_shared<Completion>()) {
  no_memory_->done = true;
  no_memory_->status = no_memory_left();
}

void Engine::add_peer(PeerIndex peer, Transport& route, std::string label) {
  if (peers_.size() <= peer) peers_.resize(peer + 1);
  peers_[peer] = Peer{.route = &route, .label = std::move(label), .lost = {}, .waiting = {}};
}

void Engine::remove_peer(PeerIndex peer) {
  if (peer >= peers_.size() || peers_[peer].route == nullptr) return;
  if (peers_[peer].lost.ok()) peers_[peer].lost = Status(Code::peer_lost, peers_[peer].label + " was removed from the group");
}

GroupCore& Engine::make_group(uint32_t number, uint32_t epoch, std::vector<PeerIndex> members,
                              std::vector<uint32_t> host_groups) {
  auto& group = groups_[number];
  group = std::make_unique<GroupCore>();
  group->number = number;
  group->epoch = epoch;
  group->host_groups = std::move(host_groups);
  group->uneven = UnevenLinks::find(group->host_groups, topology_.links);
  group->members = std::move(members);
  recorder_.reserve(*group);
  for (Rank rank = 0; rank < group->world(); ++rank) {
    const auto peer = group->members[rank];
    if (peer == self_peer) {
      group->self = rank;
      continue;
    }
    if (group->rank_of_peer.size() <= peer) group->rank_of_peer.resize(peer + 1, -1);
    group->rank_of_peer[peer] = static_cast<int32_t>(rank);
  }
  lossy_.open(*group);
  // Members may have aborted the group before it was made here.
  early_.take([&](const EarlyFrame& frame) { return frame.header.group == number && frame.header.operation == all_operations; },
              [&](const EarlyFrame& frame) {
                if (const auto rank = failures_.on_abort(*group, frame.from, frame.header, frame.payload()))
                  on_absent(*group, *rank);
                return false;
              });
  return *group;
}

void Engine::abort_group(GroupCore& group, const Status& why, Nanos now) {
  now_ = now;
  group.ended = why;
  // Send the abort message first. It ends those operations of other members that need this rank. If a later event reached them
  // first, they would blame that event.
  failures_.notify_abort(group, group.self, why);
  for (auto* active : operations_.running()) {
    if (active->group == &group) active->operation.fail_and_notify(why, now);
  }
  any_source_.end([&](const AnySourceReceive& receive) { return receive.group == &group ? why : Status(); });
  settle_needed_ = true;
  settle_all();
  if (group.lossy != nullptr) group.lossy->fail_all(why, now);
}

void Engine::end_group(uint32_t number, const Status& why, Nanos now) {
  now_ = now;
  const auto it = groups_.find(number);
  if (it == groups_.end()) return;
  for (auto* active : operations_.running()) {
    if (active->group == it->second.get()) active->operation.fail(why, now);
  }
  any_source_.end([&](const AnySourceReceive& receive) { return receive.group == it->second.get() ? why : Status(); });
  settle_needed_ = true;
  settle_all();
  if (it->second->lossy != nullptr) it->second->lossy->fail_all(why, now);
  if (it->second->record != nullptr) it->second->record->left(why.code(), now);
  early_.drop_if([&](const EarlyFrame& frame) { return frame.header.group == number; });
  groups_.erase(it);
}

void Engine::end_all_groups(const Status& why, Nanos now) {
  epoch_ = 0;
  drain_by_ = never;
  while (!groups_.empty()) end_group(groups_.begin()->first, why, now);
}

void Engine::stop_all_groups(const Status& why, Nanos now) {
  now_ = now;
  for (auto& [number, group] : groups_) {
    group->ended = why;
    if (group->lossy != nullptr) group->lossy->fail_all(why, now);
  }
  for (auto* active : operations_.running()) active->operation.fail(why, now);
  any_source_.end([&](const AnySourceReceive&) { return why; });
  settle_needed_ = true;
}

// Returns `why`. If an earlier failure probably caused the re-forming, the text of that failure comes first. This is the case
// if the last operation that ended here failed on another member.
static Status reason_to_drain(const GroupCore& group, const ActiveOperation* next, const Status& why) {
  if (group.ended.code() == why.code()) return group.ended;  // the group is draining already
  const bool latest = group.failed_elsewhere + 1 == (next == nullptr ? group.numbers.next() : next->number);
  return latest && !group.failed_elsewhere_why.empty() ? Status(why.code(), group.failed_elsewhere_why + "; " + why.message())
                                                       : why;
}

void Engine::drain(PeerIndex from, const Status& why, Nanos by, Nanos now) {
  now_ = now;
  for (auto& [number, group] : groups_) {
    group->ended = reason_to_drain(*group, operations_.next_in_order(*group), why);
    if (group->lossy != nullptr) group->lossy->fail_all(group->ended, now);
  }
  for (auto* active : operations_.running()) {
    const auto rank = active->group->rank_of(from);
    if (rank >= 0 && active->operation.needs(static_cast<Rank>(rank))) active->operation.fail(active->group->ended, now);
  }
  any_source_.end([](const AnySourceReceive& receive) { return receive.group->ended; });
  drain_by_ = std::min(drain_by_, by);
  drain_why_ = why;
  settle_needed_ = true;
}

void Engine::end_drain(Nanos now) {
  drain_by_ = never;
  for (auto* active : operations_.running()) {
    const auto& ended = active->group->ended;  // ok: the group was made after the drain had begun
    active->operation.fail(ended.ok() ? drain_why_ : ended, now);
  }
  settle_needed_ = true;
}

void Engine::set_epoch(uint32_t epoch) {
  epoch_ = epoch;
  early_.drop_if([&](const EarlyFrame& frame) { return frame.header.epoch != epoch; });
}

void Engine::leave(Nanos now) {
  now_ = now;
  // Say for whom the operations wait. Otherwise the other members would take this rank for the cause.
  for (auto* active : operations_.running()) {
    if (active->operation.prepare_last_report(now)) failures_.inquire(*active);
  }
  for (const auto& [number, group] : groups_) {
    if (group->record != nullptr) group->record->left(Code::ok, now);
  }
}

void Engine::record_event(PeerIndex about, EventKind kind, const std::string& text, Nanos now) {
  for (const auto& [number, group] : groups_) {
    const auto rank = about == self_peer ? -1 : group->rank_of(about);
    if (group->record != nullptr && (about == self_peer || rank >= 0)) group->record->event(kind, rank, text, now);
  }
}

void Engine::lost(PeerIndex peer, const Status& why, PeerFate fate) try {
  if (peer >= peers_.size() || !peers_[peer].lost.ok()) return;
  peers_[peer].fate = fate;
  peers_[peer].lost = why.ok() ? Status(Code::peer_lost, peers_[peer].label + ": link closed") : why;
  if (const auto& report = peers_[peer].report; !report.text.empty() && now_ - report.at <= report_age_max)
    peers_[peer].lost = Status(
        peers_[peer].lost.code(),
        concat(peers_[peer].lost.message(), "; ", (now_ - report.at) / millisecond, " ms before, it reported: ", report.text));
  peers_[peer].waiting.clear();
  for (auto& [number, group] : groups_) {
    if (const auto rank = group->rank_of(peer); rank >= 0) on_absent(*group, static_cast<Rank>(rank));
  }
  for (const auto& [number, group] : groups_) {
    const auto rank = group->rank_of(peer);
    if (rank >= 0 && group->record != nullptr) group->record->lost(static_cast<Rank>(rank), now_);
  }
  settle_needed_ = true;
  if (on_lost_) on_lost_(peer, peers_[peer].lost, fate);
} catch (const std::bad_alloc&) {
  note_missing_memory();
}

// Call it when no more messages will come from the rank. Ends the operations that need this rank.
void Engine::on_absent(GroupCore& group, Rank rank) {
  const auto& why = failures_.absence(group, rank);
  for (auto* active : operations_.running()) {
    if (active->group == &group)
      attempt(active->operation,
              [&] { active->operation.peer_lost(rank, why, active->is_message() ? Status() : group.first_abort, now_); });
  }
  if (group.lossy != nullptr)
    group.lossy->peer_lost(rank, group.first_abort.ok() || is_abort(why) ? why : group.first_abort, now_);
  if (!any_source_.empty()) {
    match_any_source(now_);  // messages that the rank sent before it left can still be used
    any_source_.end_late(failures_, now_);
  }
  settle_needed_ = true;
}

// Memory has run out: ends everything for good and closes all links, without allocating. The interrupted event may have left
// the transports in any state, so the process must leave and join again.
void Engine::end_without_memory() {
  memory_ = Memory::ended;
  for (auto& [number, group] : groups_) {
    group->ended = no_memory_left();
    if (auto* lossy = group->lossy.get()) without_memory([&] { lossy->fail_all(no_memory_left(), now_, true); });
  }
  for (auto* active : operations_.running()) {
    active->operation.fail(no_memory_left(), now_);
    for (auto* transport : transports_) without_memory([&] { active->cancel_in(*transport); });
    active->operation.cancelled();
    const auto completion = std::move(active->completion);
    if (completion == nullptr) continue;
    completion->report = active->report(now_);
    completion->status = active->operation.finished_ok() ? Status() : no_memory_left();
    completion->done = true;
  }
  operations_.abandon_all();
  any_source_.end([](const AnySourceReceive&) { return no_memory_left(); });
  for (PeerIndex peer = 0; peer < peers_.size(); ++peer) {
    auto& p = peers_[peer];
    if (p.route == nullptr || !p.lost.ok()) continue;
    p.lost = no_memory_left();
    without_memory([&] { p.route->close(peer); });
  }
}

bool Engine::poll(Nanos now) {
  if (memory_ == Memory::ended) return false;
  try {
    const bool progress = poll_all(now);
    if (memory_ == Memory::enough) return progress;
  } catch (const std::bad_alloc&) {}
  end_without_memory();
  return true;
}

bool Engine::poll_all(Nanos now) {
  now_ = polled_ = now;
  bool progress = false;
  for (auto* transport : transports_) progress |= transport->poll(now, *this);
  for (auto* active : operations_.running()) {
    if (now >= active->operation.becomes_next_at()) {
      attempt(active->operation, [&] { active->operation.becomes_next(now); });
      settle_needed_ = progress = true;
    }
    if (now >= active->operation.deadline_at()) {
      attempt(active->operation, [&] { active->operation.deadline(now); });
      if (active->operation.take_inquiry()) failures_.inquire(*active);
      settle_needed_ = progress = true;
    }
  }
  if (now >= drain_by_) {
    end_drain(now);
    progress = true;
  }
  if (!any_source_.empty()) settle_needed_ |= progress |= match_any_source(now) || any_source_.end_late(failures_, now);
  settle_all();
  progress |= lossy_.step(now);
  if (recorder_.is_due(now)) recorder_.observe(operations_, now);
  return progress;
}

Nanos Engine::next_deadline() const {
  if (memory_ == Memory::ended) return never;
  Nanos next = operations_.empty() ? never : drain_by_;
  next = std::min({next, any_source_.next_deadline(), lossy_.next_deadline()});
  for (const auto* active : operations_.running())
    next = std::min({next, active->operation.deadline_at(), active->operation.becomes_next_at()});
  for (const auto* transport : transports_) next = std::min(next, transport->next_deadline());
  return next;
}

bool Engine::is_needed() const {
  return lossy_.active() > 0 || std::ranges::any_of(operations_.running(), [](const ActiveOperation* active) {
           return active->operation.setup().request.collective != Collective::recv;
         });
}

bool Engine::has_pending() const {
  return lossy_.has_pending() ||
         std::any_of(transports_.begin(), transports_.end(), [](const auto* transport) { return transport->has_pending(); });
}

}  // namespace unisono
