// The part of RosterKeeper for failure detection: probes and suspicions. If this process itself was stopped for a while, it
// must not suspect others.
#include <algorithm>

#include "base/concat.h"
#include "elastic/roster/roster_keeper.h"

namespace unisono {

namespace {

constexpr size_t helpers = 3;  // if a peer does not answer, this many others are asked to probe it
constexpr Nanos late_wakeup_min = 5 * millisecond;
// At most this many late wake-ups in a row are excused. Without this limit, a host that is always slow would never detect a
// failure.
constexpr uint32_t late_wakeups_max = 4;

}  // namespace

void RosterKeeper::probe_one(Nanos now) {
  probe_at_ = now + options_.times.probe_period;
  const bool client = self_entry().facts.role == ElasticRole::client;
  for (const auto& target : pick_peers(client ? roster_.reachable() : roster_.present(), 1, self_, now))
    start_probe(target, now);
}

void RosterKeeper::start_probe(const PeerId& target, Nanos now) {
  if (probes_.contains(target)) return;
  probes_[target] = {.sequence = ++sequence_, .relayed = false, .began = now};
  probe_deadlines_.set(target, now + options_.times.probe_timeout);
  send_gossip(target, RosterProbe{.origin = self_, .sequence = sequence_}, true, now);
}

// Asks other peers to probe the target. Returns false if there is no peer to ask.
bool RosterKeeper::request_indirect_probes(const PeerId& target, Nanos now) {
  auto& probe = probes_.at(target);
  probe.relayed = true;
  const auto asked = pick_peers(roster_.reachable(), helpers, target, now);
  for (const auto& helper : asked) send(helper, RosterProbeRequest{.target = target, .sequence = probe.sequence});
  if (!asked.empty()) probe_deadlines_.set(target, now + options_.times.probe_timeout);
  return !asked.empty();
}

void RosterKeeper::probe_expired(const PeerId& target, Nanos now) {
  if (!probes_.at(target).relayed && request_indirect_probes(target, now)) return;
  const auto waited = (now - probes_.at(target).began) / millisecond;
  end_probe(target);
  const auto* entry = roster_.find(target);
  if (entry == nullptr || entry->status == PeerStatus::suspect || is_gone(entry->status)) return;
  ++counters_.suspicions;
  set_status(target, PeerStatus::suspect, false, concat("it did not answer ", label(self_entry()), " for ", waited, " ms"),
             now);
  send_claims(target, {target}, now);
}

void RosterKeeper::end_probe(const PeerId& target) {
  probes_.erase(target);
  probe_deadlines_.erase(target);
}

void RosterKeeper::link_lost(const PeerId& peer, Nanos now) {
  const auto* entry = roster_.find(peer);
  if (!running() || entry == nullptr || is_gone(entry->status) || peer == self_) return;
  start_probe(peer, now);
  if (!probes_.at(peer).relayed) (void)request_indirect_probes(peer, now);
}

void RosterKeeper::known_dead(const PeerId& peer, const std::string& why, Nanos now) {
  const auto* entry = roster_.find(peer);
  if (!running() || entry == nullptr || is_gone(entry->status) || peer == self_) return;
  set_status(peer, PeerStatus::dead, true, "no process listens at its addresses any more: " + why, now);
}

// Sets or removes the peer's timers according to its new status.
void RosterKeeper::set_timers(const PeerId& id, const MergeOutcome& outcome, Nanos now) {
  if (outcome.now == PeerStatus::suspect) {
    suspects_.set(id, now + options_.times.suspect_time);
    suspected_.set(id, now);
  } else {
    suspects_.erase(id);
    suspected_.erase(id);
  }
  if (is_gone(outcome.now)) {
    end_probe(id);
    clients_.erase(id);
  }
}

// If woke() is called much too late, this process was probably stopped. In that case the silence of other peers proves nothing,
// so all deadlines are postponed.
void RosterKeeper::excuse_late_wakeup(Nanos now) {
  const Nanos wanted = next_deadline();
  if (wanted > now || now - wanted <= std::max(late_wakeup_min, options_.times.probe_timeout / 2)) {
    late_wakeups_ = 0;
    return;
  }
  if (++late_wakeups_ > late_wakeups_max) return;
  ++counters_.late_wakeups;
  probe_deadlines_.postpone(now + options_.times.probe_timeout);
  suspects_.postpone(now + options_.times.suspect_time);
  for (const auto& [target, probe] : probes_) send(target, RosterProbe{.origin = self_, .sequence = probe.sequence});
}

}  // namespace unisono
