#include "elastic/roster/roster_keeper.h"

#include <algorithm>

#include "base/check.h"
#include "base/concat.h"

namespace unisono {

namespace {

constexpr size_t goodbyes_max = 64;  // a leaving process tells at most this many others directly
constexpr uint32_t max_group_min = 4;
constexpr size_t seeds_at_once = 32;
constexpr size_t seeds_named_max = 16;  // an error text lists at most this many seeds
// set_seeds() adds no further seeds once there are this many.
constexpr size_t seeds_kept_max = 2048;

}  // namespace

RosterKeeper::RosterKeeper(KeeperOptions options, PeerEntry self)
    : options_(std::move(options)),
      self_(self.id),
      run_(fnv1a64(options_.run_id)),
      first_entry_(std::move(self)),
      random_(options_.seed),
      roster_(options_.max_peers, options_.times.forget_dead) {
  first_entry_.status = options_.found ? PeerStatus::alive : PeerStatus::joining;
  for (const auto& seed : options_.seeds) seeds_[seed];
}

Status RosterKeeper::check_options() const {
  if (options_.run_id.empty() || options_.run_id.size() > run_id_bytes_max)
    return {Code::invalid, concat("the run's id has ", options_.run_id.size(), " bytes: 1 to ", run_id_bytes_max)};
  if (options_.max_peers < 1 || options_.max_peers > roster_peers_max)
    return {Code::invalid, concat("max_peers is ", options_.max_peers, ": 1 to ", roster_peers_max)};
  if (options_.min_peers < 1 || options_.min_peers > options_.max_peers)
    return {Code::invalid, concat("min_peers is ", options_.min_peers, ": 1 to max_peers")};
  if (options_.max_group < max_group_min)
    return {Code::invalid, concat("max_group is ", options_.max_group, ": at least ", max_group_min)};
  if (auto status = options_.times.check(); !status.ok()) return status;
  return check_entry(first_entry_);
}

Status RosterKeeper::start(Nanos now) {
  if (state_ != JoinState::idle) return {Code::invalid, "the roster keeper was started before"};
  if (auto status = check_options(); !status.ok()) return status;
  // Nothing has been sent or received yet. With these times, gossip and a new layout are allowed at once, whatever the clock
  // shows.
  gossiped_at_ = facts_gossiped_at_ = considered_at_ = now - options_.times.gossip_period;
  unknown_asked_at_ = pull_until_ = adopted_at_ = reported_at_ = now;
  (void)roster_.merge({.entry = first_entry_}, now);
  state_ = JoinState::joining;
  if (options_.found) {
    joined(now);
    return {};
  }
  if (options_.join_timeout <= 0) options_.join_timeout = options_.times.heal_period;
  join_until_ = now + options_.join_timeout;
  const auto& own = first_entry_.facts.addresses;
  for (auto& [address, seed] : seeds_) {
    if (std::find(own.begin(), own.end(), address) != own.end()) seed = {.failed = true, .why = "this process itself"};
  }
  fail_joining();
  if (running()) send_hello(now);
  return {};
}

// Asks seeds, at most seeds_at_once at a time, because a file may list every process that ever existed. If a seed fails,
// another seed is asked at once in its place. If a seed is silent, another seed is asked after a probe_period. Seeds that were
// never asked come first, then those that were asked longest ago.
void RosterKeeper::send_hello(Nanos now) {
  hello_at_ = now + options_.times.probe_period;
  std::vector<std::pair<Nanos, const std::string*>> due;
  size_t asked = 0;
  for (const auto& [address, seed] : seeds_) {
    if (seed.failed) continue;
    const bool waits = seed.asked_at != never && now < seed.asked_at + options_.times.probe_period;
    if (waits) ++asked;
    else due.emplace_back(seed.asked_at == never ? -never : seed.asked_at, &address);
  }
  std::ranges::stable_sort(due, {}, &std::pair<Nanos, const std::string*>::first);
  for (size_t i = 0; i < due.size() && asked < seeds_at_once; ++i, ++asked) {
    seeds_.at(*due[i].second).asked_at = now;
    sends_.push_back({.to = {}, .address = *due[i].second, .message = hello(now)});
  }
}

void RosterKeeper::set_seeds(const std::vector<std::string>& addresses, Nanos now) {
  if (!running() || addresses.empty()) return;
  if (state_ == JoinState::joined) seeds_.clear();
  for (const auto& address : addresses) {
    if (seeds_.size() < seeds_kept_max && seeds_.try_emplace(address).second && state_ == JoinState::joining) hello_at_ = now;
  }
}

void RosterKeeper::address_unreachable(const std::string& address, const std::string& why, bool other_run, Nanos now) {
  if (state_ == JoinState::joining) seed_failed(address, why, other_run, now);
}

void RosterKeeper::seed_failed(const std::string& address, const std::string& why, bool other_run, Nanos now) {
  const auto found = seeds_.find(address);
  if (found == seeds_.end() || found->second.failed) return;
  found->second = {.failed = true, .other_run = other_run, .why = why};
  fail_joining();
  if (running()) send_hello(now);
}

// If every seed has failed, joining fails. This process must not found the run in this case, because then there could be two
// runs.
void RosterKeeper::fail_joining() {
  if (std::any_of(seeds_.begin(), seeds_.end(), [](const auto& seed) { return !seed.second.failed; })) return;
  std::string list;
  size_t named = 0;
  for (const auto& [address, seed] : seeds_) {
    if (++named <= seeds_named_max) list += (list.empty() ? ": " : ", ") + address + " (" + seed.why + ')';
  }
  if (named > seeds_named_max) list += concat(" and ", named - seeds_named_max, " more");
  if (std::any_of(seeds_.begin(), seeds_.end(), [](const auto& seed) { return seed.second.other_run; }))
    return fail(Code::invalid, "RUN_ID_MISMATCH: no seed belongs to run \"" + options_.run_id + "\" and has its key" + list);
  if (lookers_.empty()) return fail(Code::unavailable, concat("NO_SEED: none of ", seeds_.size(), " seeds answers", list));
  std::vector<std::string> addresses;
  for (const auto& [address, seed] : seeds_) addresses.push_back(address);
  if (const auto elsewhere = lookers_.not_at(addresses); !elsewhere.empty()) list += "; also looking for it: " + elsewhere;
  fail(Code::unavailable, concat("NO_SEED: none of ", seeds_.size(), " seeds is in run \"", options_.run_id, "\" yet", list,
                                 ". Has anybody begun the run? One process must begin it, with the option found"));
}

void RosterKeeper::fail(Code code, const std::string& why) {
  state_ = JoinState::failed;
  join_status_ = {code, why};
  sends_.clear();
}

void RosterKeeper::joined(Nanos now) {
  const auto& times = options_.times;
  state_ = JoinState::joined;
  hello_at_ = join_until_ = never;
  // The first probe and the first healing come at random times. Otherwise, processes that were started together would always
  // probe and heal at the same moments.
  probe_at_ = now + static_cast<Nanos>(random_.below(static_cast<uint64_t>(times.probe_period)));
  heal_at_ = now + static_cast<Nanos>(random_.below(static_cast<uint64_t>(times.heal_period)));
  members_changed(now);
  if (has_gossip()) want_gossip(false, now);
}

void RosterKeeper::message(const PeerId& from, const RosterMessage& message, Nanos now) {
  if (!running() || from == self_ || from == PeerId{}) return;
  if (const auto* refused = std::get_if<RosterRefused>(&message.body)) {
    if (refused->reason == RefusalReason::looking) return lookers_.add(from, message.claims);
    return on_body(from, *refused, now);
  }
  if (const auto* hello = std::get_if<RosterHello>(&message.body)) {
    if (!admit(from, *hello, message, now)) return;
  } else if (message.run != run_) {
    ++counters_.foreign;
    return;
  }
  take_message(from, message, now);
}

void RosterKeeper::take_message(const PeerId& from, const RosterMessage& message, Nanos now) {
  // A joiner does not gossip the entries that it gets with its first roster, because all other peers know them.
  const bool first_roster = state_ == JoinState::joining && std::holds_alternative<RosterWelcome>(message.body);
  bool must_refute = false;
  for (const auto& claim : message.claims) must_refute = take_claim(claim, from, !first_roster, now) || must_refute;
  if (must_refute) send_claims(from, {self_}, now);
  const auto* sender = roster_.find(from);
  if (sender != nullptr && sender->facts.role == ElasticRole::client && !is_gone(sender->status)) clients_[from] = now;
  take_steps_opened(message.steps_opened, now);
  std::visit([&](const auto& body) { on_body(from, body, now); }, message.body);
  if (!running()) return;
  if (seek_at_ != never && knows_all_of_layout()) seek_at_ = never;
  note_layout(from, message.layout_version, message.layout_digest, now);
  const auto* gossip = std::get_if<RosterGossip>(&message.body);
  if (gossip == nullptr || !gossip->answer) answer_unknown_peer(from, now);
}

// Returns true if the sender of the hello may take part in the run. Otherwise tells the sender why it may not, or that this
// process is itself still looking for the run.
bool RosterKeeper::admit(const PeerId& from, const RosterHello& hello, const RosterMessage& message, Nanos now) {
  const auto refuse = [&](RefusalReason reason, const std::string& text) {
    send(from, RosterRefused{reason, text});
    return false;
  };
  if (hello.run_id != options_.run_id) {
    ++counters_.foreign;
    return refuse(RefusalReason::run_id, "this is run \"" + options_.run_id + "\", not \"" + hello.run_id + '"');
  }
  if (message.claims.empty() || message.claims.front().entry.id != from) return false;
  if (state_ != JoinState::joined) {
    // Without this answer, processes that look for each other would take each other for silent. The own entry goes along,
    // because the other process knows this one by an address only.
    auto answer = make_message(RosterRefused{RefusalReason::looking, "it is itself still looking for the run"});
    answer.claims.push_back(roster_.claim_of(self_, now));
    sends_.push_back({.to = from, .address = {}, .message = std::move(answer)});
    return false;
  }
  const auto& entry = message.claims.front().entry;
  if (entry.facts.schema_hash != self_entry().facts.schema_hash)
    return refuse(RefusalReason::schema,
                  "the tensors of " + label(self_entry()) + " have another schema than those of " + label(entry));
  const auto* known = roster_.find(from);
  if (roster_.full() && (known == nullptr || is_gone(known->status))) {
    ++counters_.full;
    return refuse(RefusalReason::full,
                  concat("the run has ", roster_.present().size(), " peers, and max_peers allows no more"));
  }
  return true;
}

void RosterKeeper::on_body(const PeerId& from, const RosterHello& hello, Nanos now) {
  if (hello.sum == roster_.sum()) {
    send_gossip(from, RosterWelcome{.sum = roster_.sum(), .last = true, .parts = {}}, true, now);
  } else {
    send_roster(from, true, hello.parts, now);
  }
}

void RosterKeeper::on_body(const PeerId& from, const RosterWelcome& welcome, Nanos now) {
  if (!welcome.last) return;
  if (state_ == JoinState::joining) joined(now);
  if (welcome.sum != roster_.sum()) send_roster(from, false, welcome.parts, now);
}

void RosterKeeper::on_body(const PeerId&, const RosterRefused& refused, Nanos) {
  // such an answer may come from another run, which now listens at a dead peer's address
  if (state_ != JoinState::joining) return;
  switch (refused.reason) {
    case RefusalReason::run_id: return fail(Code::invalid, "RUN_ID_MISMATCH: " + refused.text);
    case RefusalReason::schema: return fail(Code::invalid, "SCHEMA_MISMATCH: " + refused.text);
    case RefusalReason::full: return fail(Code::unavailable, "ROSTER_FULL: " + refused.text);
    case RefusalReason::looking: return;  // lookers_ has it
  }
}

void RosterKeeper::on_body(const PeerId& from, const RosterProbe& probe, Nanos now) {
  send_gossip(from, RosterAck{.origin = probe.origin, .target = self_, .sequence = probe.sequence}, true, now);
}

void RosterKeeper::on_body(const PeerId& from, const RosterAck& ack, Nanos now) {
  if (ack.origin != self_) {
    // This process has made the probe on behalf of ack.origin. Only the probed peer itself may answer the probe.
    if (ack.target == from && roster_.find(ack.origin) != nullptr) send(ack.origin, ack);
    return;
  }
  const auto found = probes_.find(ack.target);
  if (found != probes_.end() && found->second.sequence == ack.sequence) end_probe(ack.target);
}

void RosterKeeper::on_body(const PeerId& from, const RosterProbeRequest& request, Nanos now) {
  if (can_reach(request.target, now)) send(request.target, RosterProbe{.origin = from, .sequence = request.sequence});
}

void RosterKeeper::on_body(const PeerId& from, const RosterGossip& gossip, Nanos now) {
  // A client cannot be dialled, so only peers to which it keeps a link can send to it. This process is such a peer. It
  // therefore answers the client's gossip with its own gossip.
  if (!gossip.answer && clients_.contains(from) && has_gossip()) send_gossip(from, RosterGossip{.answer = true}, true, now);
}

void RosterKeeper::on_body(const PeerId& from, const LayoutPull&, Nanos now) {
  if (layouts_.newest() != nullptr) send_layout(from, now);
}

void RosterKeeper::on_body(const PeerId& from, const LayoutPush& push, Nanos now) {
  constexpr size_t forward_count = 3;
  if (plausible(*push.layout)) (void)take_layout(push.layout, from, forward_count, now);
}

void RosterKeeper::woke(Nanos now) {
  if (!running()) return;
  excuse_late_wakeup(now);
  roster_.forget(now);
  if (join_until_ <= now) {
    const auto waited = concat("no answer in ", options_.join_timeout / millisecond, " ms");
    for (const auto& [address, seed] : seeds_) {
      const auto looker = lookers_.name_at(address);
      seed_failed(address, looker.empty() ? waited : looker + " is itself still looking for the run", false, now);
    }
    return;
  }
  if (hello_at_ <= now) send_hello(now);
  PeerId due;
  while (probe_deadlines_.take_due(now, due)) probe_expired(due, now);
  while (suspects_.take_due(now, due)) {
    set_status(due, PeerStatus::dead, false,
               concat("suspect for ", options_.times.suspect_time / millisecond, " ms without a sign of life"), now);
  }
  if (probe_at_ <= now) probe_one(now);
  if (heal_at_ <= now) heal(now);
  if (layout_at_ <= now) consider_layout(now);
  if (seek_at_ <= now) seek_members({}, now);
  if (gossip_at_ <= now) gossip(now);
}

Nanos RosterKeeper::next_deadline() const {
  if (!running()) return never;
  return std::min({join_until_, hello_at_, probe_deadlines_.next(), suspects_.next(), probe_at_, heal_at_, layout_at_, seek_at_,
                   gossip_at_, roster_.next_forget()});
}

void RosterKeeper::set_alive(Nanos now) {
  if (state_ == JoinState::joined && self_entry().status == PeerStatus::joining)
    set_status(self_, PeerStatus::alive, false, "its state is loaded", now);
}

void RosterKeeper::leave(Nanos now) {
  if (!running()) {
    if (state_ == JoinState::idle) state_ = JoinState::left;
    return;
  }
  set_status(self_, PeerStatus::left, false, "it left", now);
  for (const auto& id : pick_peers(roster_.present(), goodbyes_max, self_, now)) send_claims(id, {self_}, now);
  state_ = JoinState::left;
}

void RosterKeeper::set_bandwidth(double bytes_per_second, Nanos now) {
  if (!running()) return;
  auto facts = self_entry().facts;
  const double change = bytes_per_second - facts.bandwidth;
  if (!(change > 0.1 * facts.bandwidth || change < -0.1 * facts.bandwidth)) return;
  facts.bandwidth = std::clamp(bytes_per_second, -1.0, 1e18);
  change_facts(facts, now);
}

void RosterKeeper::add_address(const std::string& address, Nanos now) {
  if (!running() || address.size() > peer_address_bytes_max) return;
  auto facts = self_entry().facts;
  if (facts.addresses.size() >= peer_addresses_max ||
      std::find(facts.addresses.begin(), facts.addresses.end(), address) != facts.addresses.end())
    return;
  facts.addresses.push_back(address);
  change_facts(facts, now);
  spread(self_, GossipKind::status, now);
  want_gossip(true, now);
}

void RosterKeeper::set_registered(uint64_t step, Nanos now) {
  if (!running()) return;
  auto facts = self_entry().facts;
  facts.registered_step = static_cast<int64_t>(std::min(step, step_number_max));
  change_facts(facts, now);
}

void RosterKeeper::set_finished(int64_t step, uint64_t state_digest, Nanos now) {
  if (!running()) return;
  auto facts = self_entry().facts;
  facts.finished_step = std::clamp<int64_t>(step, -1, step_number_max);
  facts.state_digest = state_digest;
  change_facts(facts, now);
}

}  // namespace unisono
