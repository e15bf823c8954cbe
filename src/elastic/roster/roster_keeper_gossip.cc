// Claims about peers, gossip, and healing.
#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "elastic/roster/roster_keeper.h"

namespace unisono {

namespace {

constexpr size_t gossip_targets = 2;
// How many waiting status items a gossip message carries: this many, or 1/gossips_per_queue of a longer queue.
constexpr size_t news_per_gossip = 32;
constexpr size_t gossips_per_queue = 8;
constexpr size_t facts_per_gossip = 4;      // facts, such as finished averaging steps, fill free space; nothing waits for them
constexpr size_t facts_passed_on_max = 64;  // in a larger run each peer gossips only its own facts
// How often a suspicion is sent: suspicions_told_over times more than it takes to reach nearly all peers. At least
// suspicions_told_min, because among few peers messages may be lost. Without losses, one of 1000 peers would miss one suspicion
// in a thousand.
constexpr uint32_t suspicions_told_over = 3;
constexpr uint32_t suspicions_told_min = 11;
// With this many waiting items, comparing rosters afterwards costs less than sending each item to all peers.
constexpr size_t crowd = 64;
constexpr uint32_t sends_of_many = 4;
constexpr size_t few_suspicions = 8;
// For large runs, where each suspicion reaches so many peers that sending it soon keeps all of them busy.
constexpr size_t few_suspicions_of_many = 2;
constexpr Nanos urgent_parts_of_many = 2;  // more suspicions than that are sent together, after half of gossip_period
constexpr Nanos urgent_parts = 5;          // few suspicions wait at most a fifth of gossip_period
// A client that was silent for this many probe periods has no link to this process any more.
constexpr Nanos client_periods = 10;

using Effect = MergeOutcome::Effect;

}  // namespace

std::string RosterKeeper::label_of(const PeerId& id) const {
  const auto* entry = roster_.find(id);
  return entry == nullptr ? std::string("an unknown peer") : label(*entry);
}

// How many times an item must be passed on until nearly all peers have it: log2 of their number, plus one.
uint32_t RosterKeeper::hops() const { return static_cast<uint32_t>(std::bit_width(roster_.present().size())); }

// True if the sender must be told that it is wrong about this process.
bool RosterKeeper::take_claim(const PeerClaim& claim, const PeerId& from, bool spreads, Nanos now) {
  const PeerId id = claim.entry.id;
  if (id == self_) return contradict(claim, now);
  if (suspicions_.covers(claim)) return false;
  if (held_back(claim, now)) {
    auto suspicion = claim;
    suspicion.entry.status = PeerStatus::suspect;
    suspicion.gone_ms = 0;
    return take_claim(suspicion, from, spreads, now);
  }
  const auto outcome = roster_.merge(claim, now);
  if (outcome.effect == Effect::full) ++counters_.full;
  if (!outcome.changed()) return false;
  const bool news = outcome.effect != Effect::facts;
  changed(id, outcome,
          !news        ? std::string()
          : from == id ? "it said so itself"
                       : "reported by " + label_of(from),
          spreads, now);
  return false;
}

// A death reported by silence only, of a peer that is alive here, or has been suspect for a short time only.
bool RosterKeeper::held_back(const PeerClaim& claim, Nanos now) const {
  if (claim.entry.status != PeerStatus::dead || claim.proven) return false;
  const auto* known = roster_.find(claim.entry.id);
  if (known == nullptr || is_gone(known->status) || claim.entry.incarnation < known->incarnation) return false;
  const auto since = suspected_.at(claim.entry.id);
  const bool suspect_here = known->incarnation == claim.entry.incarnation && since != never;
  return !suspect_here || now < since + options_.times.suspect_time / 2;
}

// Applies a status that this process itself has found for a peer, or states about itself.
void RosterKeeper::judge(const PeerId& id, PeerStatus status, bool proven, const std::string& why, Nanos now) {
  auto claim = roster_.claim_of(id, now);
  claim.entry.status = status;
  claim.proven = proven;
  claim.gone_ms = 0;
  const auto outcome = roster_.merge(claim, now);
  if (outcome.changed()) changed(id, outcome, why, true, now);
}

void RosterKeeper::changed(const PeerId& id, const MergeOutcome& outcome, const std::string& why, bool spreads, Nanos now) {
  const bool standing = outcome.effect != Effect::facts;
  if (standing) watch(id, outcome, now);
  const bool added = outcome.effect == Effect::added;
  if (added || outcome.before != outcome.now) {
    if (id != self_) news_.push_back({.peer = id, .before = outcome.before, .now = outcome.now, .added = added, .why = why});
    // A suspect member keeps its position in the layout.
    const auto here = [](PeerStatus status) { return status == PeerStatus::alive || status == PeerStatus::suspect; };
    const bool moved = added || !here(outcome.before) || !here(outcome.now);
    if (moved || !layouts_.has_member(id)) members_changed(now);
    unsettled_ = unsettled_ || moved;
  }
  // A new suspicion or its end must spread fast; a new peer need not.
  const bool suspicion = standing && !added && std::max(outcome.now, outcome.before) >= PeerStatus::suspect;
  if (!spreads) return;
  if (suspicion) spread_suspicion(id, now);
  if (!suspicion || outcome.newer_facts) spread(id, standing && !suspicion ? GossipKind::standing : GossipKind::facts, now);
}

// A claim about this process itself. If it says suspect or gone, or did before it was refuted, the incarnation is raised.
bool RosterKeeper::contradict(const PeerClaim& claim, Nanos now) {
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

// A message came from a peer that is suspect, dead or unknown here. Asks it to say that it is alive.
void RosterKeeper::answer_outsider(const PeerId& from, Nanos now) {
  const auto* entry = roster_.find(from);
  if (entry == nullptr) {
    ++counters_.unauthenticated;
    if (now < unknown_asked_at_ || state_ != JoinState::joined || roster_.full()) return;
    unknown_asked_at_ = now + options_.times.gossip_period;
    sends_.push_back({.to = from, .address = {}, .message = hello(now)});
  } else if (entry->status == PeerStatus::suspect || entry->status == PeerStatus::dead) {
    tell(from, {self_, from}, now);
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
  gossip_items_.add(id, gossip_items_.standing() < crowd ? hops() + 1 : sends_of_many, kind);
  want_gossip(false, now);
}

void RosterKeeper::spread_suspicion(const PeerId& id, Nanos now) {
  if (roster_.find(id) == nullptr) return;  // gone for so long that it was forgotten at once
  suspicions_.add(roster_.brief_claim_of(id, now), std::max(hops() + suspicions_told_over, suspicions_told_min), now);
  want_gossip(true, now);
}

void RosterKeeper::spread_notes(Nanos now) {
  notes_left_ = 3 * hops();
  want_gossip(false, now);
}

void RosterKeeper::want_gossip(bool urgent, Nanos now) {
  if (state_ != JoinState::joined) return;
  const bool few = suspicions_.size() <= (roster_.present().size() > crowd ? few_suspicions_of_many : few_suspicions);
  const auto parts = few ? urgent_parts : urgent_parts_of_many;
  const Nanos at =
      urgent ? gossiped_at_ + options_.times.gossip_period / parts : facts_gossiped_at_ + options_.times.gossip_period;
  gossip_at_ = std::min(gossip_at_, std::max(now, at));
}

void RosterKeeper::gossip(Nanos now) {
  gossip_at_ = never;
  gossiped_at_ = now;
  // Early gossip is not filled up with facts: in a large run some peer is suspect nearly always.
  const bool all = now >= facts_gossiped_at_ + options_.times.gossip_period;
  if (all) facts_gossiped_at_ = now;
  const auto targets = some(roster_.reachable(), gossip_targets, self_, now);
  for (const auto& to : targets) send_gossip(to, RosterGossip{}, all, now);
  if (targets.empty()) {
    // No peer is there to be told. Whichever peer comes later gets the whole roster.
    gossip_items_ = {};
    suspicions_ = {};
    notes_left_ = 0;
  }
  if (has_gossip() || notes_left_ > 0) want_gossip(false, now);
  // When there are many gossip items, some may have missed this process or the peer that it asks, so it compares rosters.
  if (gossip_items_.standing() == 0 && suspicions_.empty() && std::exchange(unsettled_, false)) compare_with_one(now);
}

void RosterKeeper::compare_with_one(Nanos now) {
  for (const auto& to : some(roster_.reachable(), 1, self_, now))
    sends_.push_back({.to = to, .address = {}, .message = hello(now)});
}

RosterMessage RosterKeeper::hello(Nanos now) const {
  auto message = make_message(RosterHello{options_.run_id, roster_.sum(), roster_.parts()});
  message.claims.push_back(roster_.claim_of(self_, now));
  return message;
}

// Goes on for ever, so that a process that was cut off, or a run that was restarted elsewhere, is found again.
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
    return std::min(waiting, std::clamp(waiting / gossips_per_queue, news_per_gossip, roster_claims_max));
  };
  const auto entries = std::max(share(gossip_items_.standing()), facts ? facts_per_gossip : 0);
  message.claims.reserve(std::min(share(suspicions_.size()) + entries, roster_claims_max));
  suspicions_.take(share(suspicions_.size()), message.claims, now);
  for (const auto& id : gossip_items_.take(std::min(entries, roster_claims_max - message.claims.size()))) {
    if (roster_.find(id) != nullptr) message.claims.push_back(roster_.claim_of(id, now));
  }
  if (notes_left_ > 0) --notes_left_;
  sends_.push_back({.to = to, .address = {}, .message = std::move(message)});
}

void RosterKeeper::tell(const PeerId& to, const std::vector<PeerId>& about, Nanos now) {
  auto message = make_message(RosterGossip{.answer = true});
  for (const auto& id : about) message.claims.push_back(roster_.claim_of(id, now));
  sends_.push_back({.to = to, .address = {}, .message = std::move(message)});
}

// Sends the entries that may differ from the receiver's roster, given the parts of its sum.
void RosterKeeper::send_roster(const PeerId& to, bool welcome, const std::vector<uint64_t>& parts, Nanos now) {
  auto claims = roster_.claims_beside(parts, now);
  // A welcome is sent even without entries: the receiver may have entries that are unknown here.
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
  const auto heard = clients_.find(id);
  return heard != clients_.end() && now - heard->second <= client_periods * options_.times.probe_period;
}

// At most `count` reachable peers, chosen at random.
std::vector<PeerId> RosterKeeper::some(const std::vector<PeerId>& among, size_t count, const PeerId& except, Nanos now) {
  std::vector<PeerId> chosen;
  // reachable() needs no check of each peer, which would cost more than the choice itself in a large run.
  const bool all_reachable = &among == &roster_.reachable();
  const auto wanted = [&](const PeerId& id) {
    return id != except && (all_reachable ? id != self_ : can_reach(id, now)) &&
           std::find(chosen.begin(), chosen.end(), id) == chosen.end();
  };
  if (among.size() <= 2 * count) {
    // With few peers each is looked at, from a random position on.
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
