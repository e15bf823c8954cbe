// Failure detection: probes, suspicions, and how a process that was itself stopped avoids false ones.
#include <algorithm>

#include "elastic/roster/roster_keeper.h"

namespace unisono {

namespace {

constexpr size_t helpers = 3;  // peers asked to probe a peer that does not answer
constexpr Nanos late_wakeup_min = 5 * millisecond;
constexpr uint32_t late_wakeups_max = 4;  // excused in a row; so a host that is always late still makes progress

}  // namespace

void RosterKeeper::probe_one(Nanos now) {
  probe_at_ = now + options_.times.probe_period;
  const bool client = self_entry().facts.role == ElasticRole::client;
  for (const auto& target : some(client ? roster_.reachable() : roster_.present(), 1, self_, now)) start_probe(target, now);
}

void RosterKeeper::start_probe(const PeerId& target, Nanos now) {
  if (probes_.contains(target)) return;
  probes_[target] = {.sequence = ++sequence_, .relayed = false, .began = now};
  probe_ends_.set(target, now + options_.times.probe_timeout);
  send_gossip(target, RosterProbe{.origin = self_, .sequence = sequence_}, true, now);
}

// False if there is no peer to ask.
bool RosterKeeper::ask_others(const PeerId& target, Nanos now) {
  auto& probe = probes_.at(target);
  probe.relayed = true;
  const auto asked = some(roster_.reachable(), helpers, target, now);
  for (const auto& helper : asked) send(helper, RosterProbeRequest{.target = target, .sequence = probe.sequence});
  if (!asked.empty()) probe_ends_.set(target, now + options_.times.probe_timeout);
  return !asked.empty();
}

void RosterKeeper::probe_expired(const PeerId& target, Nanos now) {
  if (!probes_.at(target).relayed && ask_others(target, now)) return;
  const auto waited = (now - probes_.at(target).began) / millisecond;
  end_probe(target);
  const auto* entry = roster_.find(target);
  if (entry == nullptr || entry->status == PeerStatus::suspect || is_gone(entry->status)) return;
  ++counters_.suspicions;
  judge(target, PeerStatus::suspect, false,
        "it did not answer " + label(self_entry()) + " for " + std::to_string(waited) + " ms", now);
  tell(target, {target}, now);
}

void RosterKeeper::end_probe(const PeerId& target) {
  probes_.erase(target);
  probe_ends_.erase(target);
}

void RosterKeeper::link_lost(const PeerId& peer, Nanos now) {
  const auto* entry = roster_.find(peer);
  if (!running() || entry == nullptr || is_gone(entry->status) || peer == self_) return;
  start_probe(peer, now);
  if (!probes_.at(peer).relayed) (void)ask_others(peer, now);
}

void RosterKeeper::known_dead(const PeerId& peer, const std::string& why, Nanos now) {
  const auto* entry = roster_.find(peer);
  if (!running() || entry == nullptr || is_gone(entry->status) || peer == self_) return;
  judge(peer, PeerStatus::dead, true, "no process listens at its addresses any more: " + why, now);
}

// Keeps the local timers of a peer in step with its status.
void RosterKeeper::watch(const PeerId& id, const MergeOutcome& outcome, Nanos now) {
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

// After a wake-up that came much too late, silence proves nothing: all deadlines start anew.
void RosterKeeper::excuse_late_wakeup(Nanos now) {
  const Nanos wanted = next_deadline();
  if (wanted > now || now - wanted <= std::max(late_wakeup_min, options_.times.probe_timeout / 2)) {
    late_wakeups_ = 0;
    return;
  }
  if (++late_wakeups_ > late_wakeups_max) return;
  ++counters_.naps;
  probe_ends_.put_off(now + options_.times.probe_timeout);
  suspects_.put_off(now + options_.times.suspect_time);
  for (const auto& [target, probe] : probes_) send(target, RosterProbe{.origin = self_, .sequence = probe.sequence});
}

}  // namespace unisono
