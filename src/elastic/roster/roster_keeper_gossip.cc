// The part of RosterKeeper for claims about peers, gossip, and healing.
#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "elastic/roster/roster_keeper.h"

namespace unisono {

namespace {

constexpr size_t gossip_targets = 2;
// If `waiting` items of one kind (suspicions, or items about status) wait, a gossip message takes waiting / gossips_per_queue
// of them. It takes at least status_items_per_gossip, or all of them if there are fewer.
constexpr size_t status_items_per_gossip = 32;
constexpr size_t gossips_per_queue = 8;
// If a message carries fewer status items than this, items about facts (such as finished averaging steps) fill it up to this
// many.
constexpr size_t facts_per_gossip = 4;
// If the run has more peers than this, a peer gossips only the facts about itself.
constexpr size_t facts_passed_on_max = 64;
// A suspicion is sent hops() + suspicion_sends_over_hops times, but at least suspicion_sends_min times. With the first number,
// about one suspicion in a thousand fails to reach all peers in a run of 1000 peers without losses. In small runs a few lost
// messages matter more, so there is a minimum.
constexpr uint32_t suspicion_sends_over_hops = 3;
constexpr uint32_t suspicion_sends_min = 11;
// If at least this many status items wait, each new item is sent only sends_of_many times. A comparison of rosters follows
// anyway, and costs less than sending each item to all peers. Also, a run counts as large if it has more peers than this.
constexpr size_t large_run_min = 64;
constexpr uint32_t sends_of_many = 4;
constexpr size_t few_suspicions = 8;
// Replaces few_suspicions in large runs, where a suspicion reaches very many peers. If each suspicion were sent soon there, all
// peers would always be busy.
constexpr size_t few_suspicions_of_many = 2;
// A few suspicions wait for gossip_period / urgent_parts. More of them wait for gossip_period / urgent_parts_of_many, and are
// then sent together. "Few" means at most few_suspicions, or at most few_suspicions_of_many in large runs.
constexpr Nanos urgent_parts_of_many = 2;
constexpr Nanos urgent_parts = 5;
// If a client has sent no message for this many probe periods, it is assumed to have no link to this process.
constexpr Nanos client_periods = 10;

using Effect = MergeOutcome::Effect;

}  // namespace

std::string RosterKeeper::label_of(const PeerId& id) const {
  const auto* entry = roster_.find(id);
  return entry == nullptr ? std::string("an unknown peer") : label(*entry);
}

// Returns how many times each peer must pass on an item so that nearly all peers get the item. The number is log2 of the number
// of peers, rounded down, plus one.
uint32_t RosterKeeper::hops() const { return static_cast<uint32_t>(std::bit_width(roster_.present().size())); }

// Merges a claim. Returns true if the claim is about this process and is wrong. The sender of the claim must then get a
// correction.
bool RosterKeeper::take_claim(const PeerClaim& claim, const PeerId& from, bool spreads, Nanos now) {
  const PeerId id = claim.entry.id;
  if (id == self_) return refute(claim, now);
  if (suspicions_.covers(claim)) return false;
  if (counts_as_suspicion(claim, now)) {
    auto suspicion = claim;
    suspicion.entry.status = PeerStatus::suspect;
    suspicion.gone_ms = 0;
    return take_claim(suspicion, from, spreads, now);
  }
  const auto outcome = roster_.merge(claim, now);
  if (outcome.effect == Effect::full) ++counters_.full;
  if (!outcome.changed()) return false;
  const bool status_changed = outcome.effect != Effect::facts;
  changed(id, outcome,
          !status_changed ? std::string()
          : from == id    ? "reported by the peer itself"
                          : "reported by " + label_of(from),
          spreads, now);
  return false;
}

// Returns true if the claim says that a peer is dead because it was silent, but the peer is alive here, or has been suspect
// here for only a short time.
bool RosterKeeper::counts_as_suspicion(const PeerClaim& claim, Nanos now) const {
  if (claim.entry.status != PeerStatus::dead || claim.proven) return false;
  const auto* known = roster_.find(claim.entry.id);
  if (known == nullptr || is_gone(known->status) || claim.entry.incarnation < known->incarnation) return false;
  const auto since = suspected_.at(claim.entry.id);
  const bool suspect_here = known->incarnation == claim.entry.incarnation && since != never;
  return !suspect_here || now < since + options_.times.suspect_time / 2;
}

// Sets the status of a peer, as this process itself has found it out. Also sets this process's own status.
void RosterKeeper::set_status(const PeerId& id, PeerStatus status, bool proven, const std::string& why, Nanos now) {
  auto claim = roster_.claim_of(id, now);
  claim.entry.status = status;
  claim.proven = proven;
  claim.gone_ms = 0;
  const auto outcome = roster_.merge(claim, now);
  if (outcome.changed()) changed(id, outcome, why, true, now);
}

void RosterKeeper::changed(const PeerId& id, const MergeOutcome& outcome, const std::string& why, bool spreads, Nanos now) {
  const bool status_changed = outcome.effect != Effect::facts;
  if (status_changed) set_timers(id, outcome, now);
  const bool added = outcome.effect == Effect::added;
  if (added || outcome.before != outcome.now) {
    if (id != self_) events_.push_back({.peer = id, .before = outcome.before, .now = outcome.now, .added = added, .why = why});
    // A suspect member stays in the layout. Therefore a change between alive and suspect needs no new layout.
    const auto here = [](PeerStatus status) { return status == PeerStatus::alive || status == PeerStatus::suspect; };
    const bool moved = added || !here(outcome.before) || !here(outcome.now);
    if (moved || !layouts_.has_member(id)) members_changed(now);
    unsettled_ = unsettled_ || moved;
  }
  // The beginning and the end of a suspicion must spread fast. The news of a new peer need not.
  const bool suspicion = status_changed && !added && std::max(outcome.now, outcome.before) >= PeerStatus::suspect;
  if (!spreads) return;
  if (suspicion) spread_suspicion(id, now);
  if (!suspicion || outcome.newer_facts) spread(id, status_changed && !suspicion ? GossipKind::status : GossipKind::facts, now);
}

// Handles a claim about this process. The claim is wrong if it says that this process is suspect, left or dead. If the claim
// has a higher incarnation than this process, or if it is wrong and has the same incarnation, this process takes the claim's
// incarnation + 1. Returns true if the claim is wrong.
bool RosterKeeper::refute(const PeerClaim& claim, Nanos now) {
  const auto& mine = self_entry();
  const bool wrong = claim.entry.status >= PeerStatus::suspect;
  if (claim.entry.incarnation > mine.incarnation || (wrong && claim.entry.incarnation == mine.incarnation)) {
    auto raised = roster_.claim_of(self_, now);
    raised.entry.incarnation = std::min(claim.entry.incarnation + 1, incarnation_max);
    (void)roster_.merge(raised, now);
    ++counters_.refutations;
    spread_suspicion(self_, now);
  }
  return wrong;
}

// Handles a message from a peer that is suspect, dead or unknown here. Asks the peer to claim that it is alive.
void RosterKeeper::answer_unknown_peer(const PeerId& from, Nanos now) {
  const auto* entry = roster_.find(from);
  if (entry == nullptr) {
    ++counters_.unauthenticated;
    if (now < unknown_asked_at_ || state_ != JoinState::joined || roster_.full()) return;
    unknown_asked_at_ = now + options_.times.gossip_period;
    sends_.push_back({.to = from, .address = {}, .message = hello(now)});
  } else if (entry->status == PeerStatus::suspect || entry->status == PeerStatus::dead) {
    send_claims(from, {self_, from}, now);
  }
}

void RosterKeeper::change_facts(const PeerFacts& facts, Nanos now) {
  auto claim = roster_.claim_of(self_, now);
  claim.entry.facts = facts;
  ++claim.entry.facts.counter;
  (void)roster_.merge(claim, now);
  spread(self_, GossipKind::facts, now);
}

void RosterKeeper::spread(const PeerId& id, GossipKind kind, Nanos now) {
  if (kind == GossipKind::facts && id != self_ && roster_.present().size() > facts_passed_on_max) return;
  gossip_items_.add(id, gossip_items_.status_count() < large_run_min ? hops() + 1 : sends_of_many, kind);
  want_gossip(false, now);
}

void RosterKeeper::spread_suspicion(const PeerId& id, Nanos now) {
  // The peer may have been gone for so long that its entry was dropped at once.
  if (roster_.find(id) == nullptr) return;
  suspicions_.add(roster_.brief_claim_of(id, now), std::max(hops() + suspicion_sends_over_hops, suspicion_sends_min), now);
  want_gossip(true, now);
}

void RosterKeeper::spread_versions(Nanos now) {
  version_sends_left_ = 3 * hops();
  want_gossip(false, now);
}

void RosterKeeper::want_gossip(bool urgent, Nanos now) {
  if (state_ != JoinState::joined) return;
  const bool few = suspicions_.size() <= (roster_.present().size() > large_run_min ? few_suspicions_of_many : few_suspicions);
  const auto parts = few ? urgent_parts : urgent_parts_of_many;
  const Nanos at =
      urgent ? gossiped_at_ + options_.times.gossip_period / parts : facts_gossiped_at_ + options_.times.gossip_period;
  gossip_at_ = std::min(gossip_at_, std::max(now, at));
}

void RosterKeeper::gossip(Nanos now) {
  gossip_at_ = never;
  gossiped_at_ = now;
  // A suspicion causes early gossip, which carries no facts. In a large run some peer is suspect nearly always, so facts would
  // otherwise be sent far too often.
  const bool all = now >= facts_gossiped_at_ + options_.times.gossip_period;
  if (all) facts_gossiped_at_ = now;
  const auto targets = pick_peers(roster_.reachable(), gossip_targets, self_, now);
  for (const auto& to : targets) send_gossip(to, RosterGossip{}, all, now);
  if (targets.empty()) {
    // There is no other peer, so all gossip is dropped. A peer that comes later gets the whole roster.
    gossip_items_ = {};
    suspicions_ = {};
    version_sends_left_ = 0;
  }
  if (has_gossip() || version_sends_left_ > 0) want_gossip(false, now);
  // Peers have come or gone, and all gossip about this was sent. But some peer, or this process itself, may have missed part of
  // the gossip. Therefore this process compares its roster with that of one peer.
  if (gossip_items_.status_count() == 0 && suspicions_.empty() && std::exchange(unsettled_, false)) compare_with_one(now);
}

void RosterKeeper::compare_with_one(Nanos now) {
  for (const auto& to : pick_peers(roster_.reachable(), 1, self_, now))
    sends_.push_back({.to = to, .address = {}, .message = hello(now)});
}

RosterMessage RosterKeeper::hello(Nanos now) const {
  auto message = make_message(RosterHello{options_.run_id, roster_.sum(), roster_.parts()});
  message.claims.push_back(roster_.claim_of(self_, now));
  return message;
}

// Compares rosters with a random seed, with the process at an address of a dead peer, or with a live peer. This is repeated for
// ever, so it finds peers behind a network cut, and a run that was restarted elsewhere.
void RosterKeeper::heal(Nanos now) {
  heal_at_ = now + options_.times.heal_period;
  const auto& dead = roster_.dead();
  std::string address;
  const auto choice = random_.below(seeds_.size() + dead.size());
  if (choice < seeds_.size()) {
    address = std::next(seeds_.begin(), static_cast<ptrdiff_t>(choice))->first;
  } else if (!dead.empty()) {
    const auto& addresses = roster_.find(dead[choice - seeds_.size()])->facts.addresses;
    if (!addresses.empty()) address = addresses[random_.below(addresses.size())];
  }
  const auto& own = self_entry().facts.addresses;
  if (!address.empty() && std::find(own.begin(), own.end(), address) == own.end()) {
    sends_.push_back({.to = {}, .address = address, .message = hello(now)});
    return;
  }
  compare_with_one(now);
}

RosterMessage RosterKeeper::make_message(RosterBody body) const {
  RosterMessage message{.run = run_, .steps_opened = steps_opened_, .body = std::move(body), .claims = {}};
  if (const auto* layout = newest_layout(); layout != nullptr) {
    message.layout_version = layout->version;
    message.layout_digest = layout->digest;
  }
  return message;
}

void RosterKeeper::send(const PeerId& to, RosterBody body) {
  sends_.push_back({.to = to, .address = {}, .message = make_message(std::move(body))});
}

void RosterKeeper::send_gossip(const PeerId& to, RosterBody body, bool facts, Nanos now) {
  auto message = make_message(std::move(body));
  const auto share = [](size_t waiting) {
    return std::min(waiting, std::clamp(waiting / gossips_per_queue, status_items_per_gossip, roster_claims_max));
  };
  const auto entries = std::max(share(gossip_items_.status_count()), facts ? facts_per_gossip : 0);
  message.claims.reserve(std::min(share(suspicions_.size()) + entries, roster_claims_max));
  suspicions_.take(share(suspicions_.size()), message.claims, now);
  for (const auto& id : gossip_items_.take(std::min(entries, roster_claims_max - message.claims.size()))) {
    if (roster_.find(id) != nullptr) message.claims.push_back(roster_.claim_of(id, now));
  }
  if (version_sends_left_ > 0) --version_sends_left_;
  sends_.push_back({.to = to, .address = {}, .message = std::move(message)});
}

void RosterKeeper::send_claims(const PeerId& to, const std::vector<PeerId>& about, Nanos now) {
  auto message = make_message(RosterGossip{.answer = true});
  for (const auto& id : about) message.claims.push_back(roster_.claim_of(id, now));
  sends_.push_back({.to = to, .address = {}, .message = std::move(message)});
}

// Sends the entries that may differ from those in the receiver's roster. `parts` are the parts of the sum of the receiver's
// roster.
void RosterKeeper::send_roster(const PeerId& to, bool welcome, const std::vector<uint64_t>& parts, Nanos now) {
  auto claims = roster_.claims_beside(parts, now);
  // A welcome is sent even if there are no entries to send, because the receiver may answer it with entries that are unknown
  // here.
  for (size_t at = 0; at < claims.size() || (welcome && at == 0); at += roster_claims_max) {
    const auto end = std::min(at + roster_claims_max, claims.size());
    auto message = make_message(RosterGossip{.answer = true});
    const bool last = end == claims.size();
    if (welcome)
      message.body =
          RosterWelcome{.sum = roster_.sum(), .last = last, .parts = last ? roster_.parts() : std::vector<uint64_t>()};
    message.claims.assign(std::make_move_iterator(claims.begin() + static_cast<ptrdiff_t>(at)),
                          std::make_move_iterator(claims.begin() + static_cast<ptrdiff_t>(end)));
    sends_.push_back({.to = to, .address = {}, .message = std::move(message)});
  }
}

bool RosterKeeper::can_reach(const PeerId& id, Nanos now) const {
  const auto* entry = roster_.find(id);
  if (entry == nullptr || is_gone(entry->status) || id == self_) return false;
  if (entry->facts.role != ElasticRole::client) return true;
  const auto client = clients_.find(id);
  return client != clients_.end() && now - client->second <= client_periods * options_.times.probe_period;
}

// Returns at most `count` different peers, chosen from `among` at random. Skips `except`, and peers that cannot be reached.
std::vector<PeerId> RosterKeeper::pick_peers(const std::vector<PeerId>& among, size_t count, const PeerId& except, Nanos now) {
  std::vector<PeerId> chosen;
  // Peers in reachable() need no further check. In a large run the check would cost more than the choice itself.
  const bool all_reachable = &among == &roster_.reachable();
  const auto wanted = [&](const PeerId& id) {
    return id != except && (all_reachable ? id != self_ : can_reach(id, now)) &&
           std::find(chosen.begin(), chosen.end(), id) == chosen.end();
  };
  if (among.size() <= 2 * count) {
    // There are only a few peers, so it looks at each of them, beginning with a random one.
    const auto first = random_.below(among.size());
    for (size_t i = 0; i < among.size() && chosen.size() < count; ++i) {
      const auto& id = among[(first + i) % among.size()];
      if (wanted(id)) chosen.push_back(id);
    }
    return chosen;
  }
  for (size_t tries = 4 * count + 8; tries > 0 && chosen.size() < count; --tries) {
    const auto& id = among[random_.below(among.size())];
    if (wanted(id)) chosen.push_back(id);
  }
  return chosen;
}

}  // namespace unisono
