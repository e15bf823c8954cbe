#include "group/lifecycle/relinking.h"

#include <algorithm>

#include "group/lifecycle/guarded_state.h"
#include "group/lifecycle/joining.h"
#include "group/lifecycle/reform.h"

namespace unisono {
namespace {

// A host acknowledges within 40 ms, even if it waits for more data first.
constexpr Nanos host_silence = 100 * millisecond;

const Connector* connector_of(const GuardedState& guarded, PeerIndex peer) {
  for (const auto& link : guarded.members.links()) {
    const auto state = link.connector->state(peer);
    if (state == LinkState::connecting || state == LinkState::up) return link.connector;
  }
  return nullptr;
}

// self_peer stands for this process, and for members that it has never known.
std::vector<PeerIndex> peers_by_rank(const GuardedState& guarded) {
  std::map<PeerId, PeerIndex> known;
  const auto& ids = guarded.members.process_ids();
  for (PeerIndex peer = 0; peer < ids.size(); ++peer) known[ids[peer]] = peer;
  std::vector<PeerIndex> peers;
  for (const auto& member : guarded.members.roster().members) {
    const auto found = known.find(member.id);
    peers.push_back(found == known.end() ? self_peer : found->second);
  }
  return peers;
}

bool is_lost(const GuardedState& guarded, PeerIndex peer) { return !guarded.engine.peer_status(peer).ok(); }

// Dials a peer, or lets it dial. Returns false if that is not possible, or if it was tried already: the link to a new member
// that never came up (Code::unavailable).
bool relink(GuardedState& guarded, const MemberRecord& member, PeerIndex peer, Nanos until) {
  if (guarded.engine.peer_status(peer).code() == Code::unavailable) return false;
  guarded.members.relinking().dialled.insert(peer);
  return start_link(guarded, member.rank, peer, until, LinkPurpose::anew).ok();
}

bool is_host_silent(GuardedState& guarded, const Connector& connector, PeerIndex peer, Nanos now) {
  auto& silent_since = guarded.members.relinking().silent_since;
  // The data may have been sent just now, long after the host was heard last.
  const auto limit = std::min(host_silence, guarded.options.reform_timeout.count() * millisecond / 2);
  if (!connector.is_host_silent(peer, limit)) {
    silent_since.erase(peer);
    return false;
  }
  return now - silent_since.try_emplace(peer, now).first->second >= limit;
}

// Looks at a member that the state machine takes for alive.
void step_member(GuardedState& guarded, const MemberRecord& member, PeerIndex peer, Nanos now) {
  auto& reform = *guarded.members.reform();
  if (is_lost(guarded, peer)) {
    if (guarded.members.relinking().dialled.contains(peer)) return;
    const auto until = now + relink_time;
    if (relink(guarded, member, peer, until)) reform.link_down(member.id, until, now);
    else reform.peer_lost(member.id, now);
    return;
  }
  const auto* connector = connector_of(guarded, peer);
  if (connector == nullptr || connector->state(peer) != LinkState::up) return;  // it is being dialled
  if (connector->is_reconnecting(peer) || is_host_silent(guarded, *connector, peer, now)) {
    // The transport itself gives a link up after its link_timeout.
    if (!reform.is_link_down(member.id)) reform.link_down(member.id, never, now);
  } else if (reform.is_link_down(member.id)) {
    reform.link_up(member.id, now);
  }
}

}  // namespace

void begin_relinking(GuardedState& guarded, ReformRequest& request, Nanos now) {
  guarded.members.relinking() = {.peers = peers_by_rank(guarded)};
  const auto& roster = guarded.members.roster();
  for (const auto& member : roster.members) {
    const auto peer = guarded.members.relinking().peers[member.rank];
    if (peer == self_peer) continue;
    if (!is_lost(guarded, peer)) {
      const auto* connector = connector_of(guarded, peer);
      if (connector != nullptr && connector->is_reconnecting(peer)) request.relinking.emplace_back(member.id, never);
    } else if (guarded.engine.peer_fate(peer) == PeerFate::ended) {
      request.dead.push_back(member.id);
    } else if (const auto until = now + relink_time; relink(guarded, member, peer, until)) {
      request.relinking.emplace_back(member.id, until);
    } else {
      request.lost.push_back(member.id);
    }
  }
}

void step_relinking(GuardedState& guarded, Nanos now) {
  const auto& reform = *guarded.members.reform();
  const auto& peers = guarded.members.relinking().peers;
  for (const auto& member : guarded.members.roster().members) {
    if (reform.is_waiting_for(member.id) && peers[member.rank] != self_peer)
      step_member(guarded, member, peers[member.rank], now);
  }
}

void on_link_lost(GuardedState& guarded, PeerIndex peer, PeerFate fate, Nanos now) {
  auto* const reform = guarded.members.reform();
  if (reform == nullptr) return;
  const auto id = guarded.members.process_ids()[peer];
  if (fate == PeerFate::ended) reform->peer_dead(id, now);
  // Another link is dialled when the group re-forms, or in the next step. Once is enough.
  else if (reform->running() && guarded.members.relinking().dialled.contains(peer)) reform->peer_lost(id, now);
}

}  // namespace unisono
