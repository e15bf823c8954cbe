// Which members are lost, for which links this process waits, and whether the survivors may go on.
#include <algorithm>

#include "base/concat.h"
#include "group/lifecycle/reform.h"

namespace unisono {
namespace {

constexpr uint32_t silent_ranks_max = 8;  // An error names at most this many ranks that do not answer.

std::string seconds_text(Nanos time) { return concat(time / second, ".", time % second / (100 * millisecond), " s"); }

}  // namespace

Status Reform::too_few() const {
  const auto world = static_cast<uint32_t>(peers_.size());
  const uint32_t left = world - departed_count_;
  if (left >= request_.min_world) return {};
  std::string lost;
  for (const auto& departure : departures())
    lost += "; " + label(roster_.members[departure.rank]) + ": " + to_string(departure);
  return {Code::unavailable, concat("re-forming after epoch ", name_.epoch, ": ", left, " of ", world,
                                    " ranks remain, at least ", request_.min_world, " are required", lost)};
}

// Two parts of a split group never both have the majority. Each part knows only deaths that have happened, so it counts all
// members of both parts. If both have exactly half, they count the same members.
//
// This assumes that a part learns of no death in the other part after the split. A part may count a member that has agreed with
// it and died then.
bool Reform::lacks_majority() const {
  if (!request_.require_majority) return false;
  const auto counted = static_cast<uint32_t>(peers_.size()) - proven_count_;
  const uint32_t left = static_cast<uint32_t>(peers_.size()) - departed_count_;
  if (2 * left != counted) return 2 * left < counted;
  const auto lowest =
      std::find_if(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.alive || !peer.departure.is_proven(); });
  return !lowest->alive;
}

Status Reform::no_majority(Nanos now) const {
  const auto world = static_cast<uint32_t>(peers_.size());
  std::string silent, others;
  uint32_t count = 0;
  for (const auto& departure : departures()) {
    const auto& member = roster_.members[departure.rank];
    if (departure.cause == Departure::Cause::left) others += concat("; ", label(member), ": ", to_string(departure));
    else if (!departure.is_proven() && ++count <= silent_ranks_max)
      silent += concat(count == 1 ? "" : ", ", "rank ", member.rank, " on host ", member.host);
  }
  if (count > silent_ranks_max) silent += concat(" and ", count - silent_ranks_max, " more");
  const auto died = proven_count_ == 0 ? std::string() : concat(", not counting ", proven_count_, " that have ended");
  return {Code::unavailable,
          concat("re-forming after epoch ", name_.epoch, ": only ", world - departed_count_, " of ", world - proven_count_,
                 " ranks can be reached", died, " (", silent,
                 count == 0 ? "" : concat(": no answer for ", seconds_text(now - began_)), others,
                 "); a majority must go on, so that a split job does not train twice; set require_majority=false to go "
                 "on regardless")};
}

Departure Reform::unreachable(Rank rank, Nanos now) const {
  const auto waited = (now - peers_[rank].link_down_at) / millisecond;
  return {rank, Departure::Cause::unreachable, self_rank_, static_cast<uint32_t>(waited)};
}

void Reform::depart(const PeerId& id, Departure::Cause cause, Nanos now) {
  const auto found = ranks_.find(id);
  if (found == ranks_.end() || phase_ == Phase::ended) return;
  const auto& peer = peers_[found->second];
  Departure departure{found->second, cause, self_rank_, 0};
  if (cause == Departure::Cause::lost && peer.link_until != never) departure = unreachable(found->second, now);
  if (!mark_departed(departure) || phase_ != Phase::running) return;
  set_changed(now);
  check_agreement(now);
}

void Reform::peer_lost(const PeerId& peer, Nanos now) { depart(peer, Departure::Cause::lost, now); }

void Reform::peer_dead(const PeerId& peer, Nanos now) { depart(peer, Departure::Cause::dead, now); }

void Reform::link_down(const PeerId& id, Nanos until, Nanos now) {
  if (!is_waiting_for(id)) return;
  mark_link_down(ranks_.at(id), until, now);
  if (waits_until() > told_until_) propose_again(now);
}

void Reform::mark_link_down(Rank rank, Nanos until, Nanos now) {
  auto& peer = peers_[rank];
  if (peer.link_until == never) peer.link_down_at = now;
  // However often links break, re-forming ends.
  peer.link_until = std::min(until, gives_up_at_);
}

void Reform::link_up(const PeerId& id, Nanos now) {
  if (!is_waiting_for(id)) return;
  auto& peer = peers_[ranks_.at(id)];
  if (peer.link_until == never) return;
  peer.link_until = never;
  peer.link_up_at = now;
  // What was sent before may be lost with the former link.
  propose_again(now);
  check_agreement(now);
}

bool Reform::is_link_down(const PeerId& peer) const {
  const auto found = ranks_.find(peer);
  return found != ranks_.end() && peers_[found->second].link_until != never;
}

bool Reform::is_waiting_for(const PeerId& peer) const {
  const auto found = ranks_.find(peer);
  return running() && found != ranks_.end() && found->second != self_rank_ && peers_[found->second].alive;
}

// Returns until when this process waits for links that are made anew. 0: it waits for none.
Nanos Reform::waits_until() const {
  Nanos until = 0;
  for (const auto& peer : peers_) {
    if (peer.alive && peer.link_until != never) until = std::max(until, peer.link_until);
  }
  return until;
}

}  // namespace unisono
