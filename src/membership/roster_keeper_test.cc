#include "membership/roster_keeper.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "membership/elastic_test_support.h"

namespace unisono {
namespace {

using test::address_of;
using test::peer_claim;
using test::peer_entry;
using test::peer_id;

const ElasticTimes times;

KeeperOptions options(bool found, std::vector<std::string> seeds = {}) {
  KeeperOptions all;
  all.run_id = "demo";
  all.found = found;
  all.seeds = std::move(seeds);
  return all;
}

RosterMessage from_run(RosterBody body, std::vector<PeerClaim> claims = {}) {
  return {.run = fnv1a64("demo"), .body = std::move(body), .claims = std::move(claims)};
}

template <typename Body>
std::vector<RosterSend> sends_of(RosterKeeper& keeper) {
  auto sends = keeper.take_sends();
  std::erase_if(sends, [](const RosterSend& one) { return !std::holds_alternative<Body>(one.message.body); });
  return sends;
}

// The claim about a peer in a message, or nothing.
const PeerClaim* about(const RosterSend& one, const PeerId& id) {
  for (const auto& claim : one.message.claims) {
    if (claim.entry.id == id) return &claim;
  }
  return nullptr;
}

// A founder, peer 1, that knows peers 2 … count as alive.
RosterKeeper founder(uint64_t count, KeeperOptions all = options(true)) {
  RosterKeeper keeper(std::move(all), peer_entry(1));
  EXPECT_TRUE(keeper.start(0).ok());
  std::vector<PeerClaim> claims;
  for (uint64_t number = 2; number <= count; ++number) claims.push_back(peer_claim(number));
  if (count > 1) keeper.message(peer_id(2), from_run(RosterGossip{}, claims), 0);
  (void)keeper.take_sends();
  (void)keeper.take_news();
  return keeper;
}

// Runs it on time, without any answer, until `end`.
void run(RosterKeeper& keeper, Nanos end, std::vector<RosterSend>* sends = nullptr) {
  while (keeper.next_deadline() <= end) keeper.woke(keeper.next_deadline());
  if (sends == nullptr) return;
  for (auto& one : keeper.take_sends()) sends->push_back(std::move(one));
}

TEST(RosterKeeper, refuses_options_that_cannot_be) {
  const auto bad = [](auto change) {
    auto all = options(true);
    change(all);
    RosterKeeper keeper(all, peer_entry(1));
    return keeper.start(0).code();
  };
  EXPECT_EQ(bad([](auto& all) { all.run_id.clear(); }), Code::invalid);
  EXPECT_EQ(bad([](auto& all) { all.max_peers = 4097; }), Code::invalid);
  EXPECT_EQ(bad([](auto& all) { all.min_peers = 0; }), Code::invalid);
  EXPECT_EQ(bad([](auto& all) { all.max_group = 3; }), Code::invalid);
  EXPECT_EQ(bad([](auto& all) { all.times.probe_period = 0; }), Code::invalid);
  EXPECT_EQ(bad([](auto&) {}), Code::ok);
}

TEST(RosterKeeper, a_joiner_asks_every_seed_and_is_in_when_it_has_the_whole_roster) {
  RosterKeeper keeper(options(false, {address_of(2), address_of(3)}), peer_entry(1));
  ASSERT_TRUE(keeper.start(0).ok());
  EXPECT_EQ(keeper.join_state(), JoinState::joining);
  EXPECT_EQ(keeper.self_entry().status, PeerStatus::joining);
  EXPECT_EQ(sends_of<RosterHello>(keeper).size(), 2u);
  run(keeper, times.probe_period);
  EXPECT_EQ(sends_of<RosterHello>(keeper).size(), 2u) << "asked again";
  keeper.message(peer_id(2), from_run(RosterWelcome{.sum = 0, .last = false, .parts = {}}, {peer_claim(2)}), times.probe_period);
  EXPECT_EQ(keeper.join_state(), JoinState::joining);
  keeper.message(peer_id(2), from_run(RosterWelcome{.sum = 0, .last = true, .parts = {}}, {peer_claim(3)}), times.probe_period);
  EXPECT_EQ(keeper.join_state(), JoinState::joined);
  EXPECT_EQ(keeper.roster().present().size(), 3u);
  keeper.set_alive(times.probe_period);
  EXPECT_EQ(keeper.self_entry().status, PeerStatus::alive);
}

TEST(RosterKeeper, with_every_seed_dead_joining_fails_and_no_run_is_founded) {
  RosterKeeper keeper(options(false, {address_of(2), address_of(3)}), peer_entry(1));
  ASSERT_TRUE(keeper.start(0).ok());
  keeper.address_unreachable(address_of(2), "refused", false, 1);
  EXPECT_EQ(keeper.join_state(), JoinState::joining);
  keeper.address_unreachable(address_of(3), "no route", false, 2);
  EXPECT_EQ(keeper.join_state(), JoinState::failed);
  EXPECT_EQ(keeper.join_status().code(), Code::unavailable);
  EXPECT_TRUE(keeper.join_status().message().starts_with("NO_SEED"));
  EXPECT_NE(keeper.join_status().message().find("no route"), std::string::npos);
  EXPECT_EQ(keeper.next_deadline(), never);
  EXPECT_TRUE(keeper.take_sends().empty());
  EXPECT_EQ(keeper.newest_layout(), nullptr);
  EXPECT_EQ(keeper.roster().size(), 1u);
}

TEST(RosterKeeper, seeds_that_never_answer_are_given_up) {
  RosterKeeper keeper(options(false, {address_of(2)}), peer_entry(1));
  ASSERT_TRUE(keeper.start(0).ok());
  run(keeper, times.heal_period);
  EXPECT_TRUE(keeper.join_status().message().starts_with("NO_SEED"));
}

TEST(RosterKeeper, itself_is_no_seed) {
  RosterKeeper keeper(options(false, {address_of(1)}), peer_entry(1));
  ASSERT_TRUE(keeper.start(0).ok());
  EXPECT_TRUE(keeper.join_status().message().starts_with("NO_SEED"));
}

TEST(RosterKeeper, two_joiners_do_not_welcome_each_other) {
  RosterKeeper keeper(options(false, {address_of(2)}), peer_entry(1));
  ASSERT_TRUE(keeper.start(0).ok());
  (void)keeper.take_sends();
  keeper.message(peer_id(2), from_run(RosterHello{"demo", 0, {}}, {peer_claim(2, PeerStatus::joining)}), 1);
  EXPECT_TRUE(sends_of<RosterWelcome>(keeper).empty());
}

// What a joiner of another run, schema or one too many hears, and what comes of it.
Status refusal(RosterKeeper& there, const std::string& run_id, PeerEntry entry) {
  auto all = options(false, {address_of(1)});
  all.run_id = run_id;
  RosterKeeper joiner(all, entry);
  EXPECT_TRUE(joiner.start(0).ok());
  for (const auto& one : joiner.take_sends()) there.message(entry.id, one.message, 1);
  for (const auto& one : there.take_sends()) {
    EXPECT_EQ(one.to, entry.id);
    joiner.message(peer_id(1), one.message, 2);
  }
  EXPECT_EQ(joiner.join_state(), JoinState::failed);
  EXPECT_EQ(there.roster().find(entry.id), nullptr);
  return joiner.join_status();
}

TEST(RosterKeeper, refuses_another_run_another_schema_and_one_too_many) {
  auto all = options(true);
  all.max_peers = 3;
  auto keeper = founder(3, all);
  EXPECT_TRUE(refusal(keeper, "other", peer_entry(9)).message().starts_with("RUN_ID_MISMATCH"));
  auto entry = peer_entry(9);
  entry.facts.schema_hash = 5;
  EXPECT_TRUE(refusal(keeper, "demo", entry).message().starts_with("SCHEMA_MISMATCH"));
  EXPECT_TRUE(refusal(keeper, "demo", peer_entry(9)).message().starts_with("ROSTER_FULL"));
  EXPECT_EQ(keeper.counters().full, 1u);
}

TEST(RosterKeeper, takes_no_message_of_another_run) {
  auto keeper = founder(2);
  auto message = from_run(RosterGossip{}, {peer_claim(5)});
  message.run = 1;
  keeper.message(peer_id(2), message, 1);
  EXPECT_EQ(keeper.roster().find(peer_id(5)), nullptr);
  EXPECT_EQ(keeper.counters().foreign, 1u);
}

TEST(RosterKeeper, a_silent_peer_is_asked_for_then_suspect_then_dead) {
  auto keeper = founder(5);
  std::vector<RosterSend> sends;
  while (sends.empty()) {
    keeper.woke(keeper.next_deadline());
    sends = sends_of<RosterProbe>(keeper);
  }
  const auto target = sends[0].to;
  Nanos asked = never, suspect = never, dead = never;
  while (dead == never) {
    const Nanos now = keeper.next_deadline();
    keeper.woke(now);
    for (const auto& one : keeper.take_sends()) {
      const auto* request = std::get_if<RosterProbeRequest>(&one.message.body);
      if (request != nullptr && request->target == target && asked == never) asked = now;
    }
    for (const auto& news : keeper.take_news()) {
      if (news.peer != target) continue;
      if (news.now == PeerStatus::suspect) suspect = now;
      if (news.now == PeerStatus::dead) dead = now;
    }
  }
  EXPECT_EQ(suspect - asked, times.probe_timeout);
  EXPECT_EQ(dead - suspect, times.suspect_time);
}

TEST(RosterKeeper, an_answer_through_another_counts) {
  auto keeper = founder(5);
  keeper.link_lost(peer_id(3), 10);
  const auto asked = sends_of<RosterProbeRequest>(keeper);
  ASSERT_EQ(asked.size(), 3u) << "at once, three others";
  const auto sequence = std::get<RosterProbeRequest>(asked[0].message.body).sequence;
  keeper.message(asked[0].to, from_run(RosterAck{.origin = peer_id(1), .target = peer_id(3), .sequence = sequence}), 20);
  run(keeper, times.probe_timeout * 3);
  for (const auto& news : keeper.take_news()) EXPECT_FALSE(news.peer == peer_id(3) && news.now == PeerStatus::suspect);
}

TEST(RosterKeeper, a_link_lost_counts_as_a_failed_probe) {
  auto keeper = founder(5);
  keeper.link_lost(peer_id(3), 10);
  run(keeper, 10 + times.probe_timeout);
  EXPECT_EQ(keeper.roster().find(peer_id(3))->status, PeerStatus::suspect);
  EXPECT_FALSE(keeper.gone(peer_id(3)));
}

TEST(RosterKeeper, probes_for_others_and_hands_the_answer_on) {
  auto keeper = founder(4);
  keeper.message(peer_id(2), from_run(RosterProbeRequest{peer_id(3), 7}), 1);
  const auto probes = sends_of<RosterProbe>(keeper);
  ASSERT_EQ(probes.size(), 1u);
  EXPECT_EQ(probes[0].to, peer_id(3));
  EXPECT_EQ(std::get<RosterProbe>(probes[0].message.body), (RosterProbe{peer_id(2), 7}));
  const RosterAck ack{.origin = peer_id(2), .target = peer_id(3), .sequence = 7};
  keeper.message(peer_id(4), from_run(ack), 2);  // not the target's to say
  EXPECT_TRUE(sends_of<RosterAck>(keeper).empty());
  keeper.message(peer_id(3), from_run(ack), 2);
  const auto answers = sends_of<RosterAck>(keeper);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].to, peer_id(2));
}

TEST(RosterKeeper, contradicts_who_believes_it_suspect_or_dead_and_tells_them_so) {
  for (const auto status : {PeerStatus::suspect, PeerStatus::dead}) {
    auto keeper = founder(3);
    const std::vector<PeerClaim> thrice(3, peer_claim(1, status, 6));
    keeper.message(peer_id(3), from_run(RosterGossip{.answer = true}, thrice), 1);
    EXPECT_EQ(keeper.self_entry().incarnation, 7u);
    EXPECT_EQ(keeper.self_entry().status, PeerStatus::alive);
    const auto sends = sends_of<RosterGossip>(keeper);
    ASSERT_EQ(sends.size(), 1u);
    EXPECT_EQ(sends[0].to, peer_id(3));
    ASSERT_NE(about(sends[0], peer_id(1)), nullptr);
    EXPECT_EQ(about(sends[0], peer_id(1))->entry.incarnation, 7u);
    EXPECT_TRUE(std::get<RosterGossip>(sends[0].message.body).answer) << "or it would be answered";
  }
}

TEST(RosterKeeper, two_who_cannot_agree_stop_talking_about_it) {
  auto all = options(true);
  all.max_peers = 2;
  auto keeper = founder(2, all);
  keeper.known_dead(peer_id(2), "refused", 1);
  keeper.message(peer_id(3), from_run(RosterGossip{}, {peer_claim(3)}), 2);  // takes the free place
  (void)keeper.take_sends();
  // Peer 2 lives, but has no place here any more: it is told, and what it answers is not answered.
  keeper.message(peer_id(2), from_run(RosterGossip{.answer = true}, {peer_claim(2, PeerStatus::alive, 2)}), 3);
  EXPECT_TRUE(keeper.take_sends().empty());
}

TEST(RosterKeeper, answers_one_that_it_believes_dead_with_what_it_believes) {
  auto keeper = founder(4);
  keeper.known_dead(peer_id(2), "refused", 1);
  (void)keeper.take_sends();
  keeper.message(peer_id(2), from_run(RosterProbe{peer_id(2), 1}), 2);
  const auto sends = sends_of<RosterGossip>(keeper);
  ASSERT_EQ(sends.size(), 1u);
  ASSERT_NE(about(sends[0], peer_id(2)), nullptr);
  EXPECT_EQ(about(sends[0], peer_id(2))->entry.status, PeerStatus::dead);
  EXPECT_TRUE(std::get<RosterGossip>(sends[0].message.body).answer) << "or it would be answered";
}

TEST(RosterKeeper, who_is_refused_everywhere_is_dead_at_once_and_so_for_who_hears_of_it) {
  auto keeper = founder(4);
  keeper.known_dead(peer_id(3), "connection refused", 1);
  EXPECT_TRUE(keeper.gone(peer_id(3)));
  const auto news = keeper.take_news();
  ASSERT_EQ(news.size(), 1u);
  EXPECT_NE(news[0].why.find("connection refused"), std::string::npos);
  EXPECT_LE(keeper.next_deadline(), times.gossip_period / 10);
  run(keeper, times.gossip_period / 10);
  const auto sends = sends_of<RosterGossip>(keeper);
  ASSERT_FALSE(sends.empty());
  auto other = founder(4);
  other.message(peer_id(2), sends[0].message, 5);
  EXPECT_TRUE(other.gone(peer_id(3)));
}

TEST(RosterKeeper, a_death_by_silence_is_first_a_suspicion_where_the_peer_was_not_doubted) {
  auto keeper = founder(4);
  const auto claim = peer_claim(3, PeerStatus::dead);
  keeper.message(peer_id(2), from_run(RosterGossip{}, {claim}), 1);
  EXPECT_EQ(keeper.roster().find(peer_id(3))->status, PeerStatus::suspect);
  keeper.message(peer_id(2), from_run(RosterGossip{}, {claim}), times.suspect_time / 2);
  EXPECT_FALSE(keeper.gone(peer_id(3)));
  keeper.message(peer_id(2), from_run(RosterGossip{}, {claim}), 1 + times.suspect_time / 2);
  EXPECT_TRUE(keeper.gone(peer_id(3)));
}

TEST(RosterKeeper, a_process_that_wakes_late_gives_everybody_the_whole_time_again_but_not_for_ever) {
  auto keeper = founder(4);
  keeper.link_lost(peer_id(3), 0);
  Nanos now = 60 * second;
  keeper.woke(now);
  EXPECT_EQ(keeper.roster().find(peer_id(3))->status, PeerStatus::alive);
  EXPECT_EQ(keeper.counters().naps, 1u);
  for (int i = 0; i < 20; ++i) keeper.woke(now = keeper.next_deadline() + times.probe_timeout);
  EXPECT_NE(keeper.roster().find(peer_id(3))->status, PeerStatus::alive) << "always late";
}

TEST(RosterKeeper, tells_up_to_64_that_it_leaves_and_is_silent_then) {
  auto keeper = founder(200);
  keeper.leave(5);
  const auto sends = keeper.take_sends();
  EXPECT_EQ(sends.size(), 64u);
  for (const auto& one : sends) {
    ASSERT_NE(about(one, peer_id(1)), nullptr);
    EXPECT_EQ(about(one, peer_id(1))->entry.status, PeerStatus::left);
  }
  EXPECT_EQ(keeper.join_state(), JoinState::left);
  EXPECT_EQ(keeper.next_deadline(), never);
  keeper.message(peer_id(2), from_run(RosterProbe{peer_id(2), 1}, {peer_claim(1, PeerStatus::dead)}), 6);
  EXPECT_TRUE(keeper.take_sends().empty());
}

TEST(RosterKeeper, who_left_is_gone_and_not_asked_back) {
  auto keeper = founder(4);
  keeper.message(peer_id(2), from_run(RosterGossip{}, {peer_claim(2, PeerStatus::left)}), 1);
  EXPECT_TRUE(keeper.gone(peer_id(2)));
  EXPECT_TRUE(keeper.take_sends().empty());
}

TEST(RosterKeeper, heals_with_seeds_and_with_where_the_dead_lived_for_ever) {
  auto all = options(true, {address_of(1), address_of(7)});  // its own address among them
  auto keeper = founder(3, all);
  keeper.known_dead(peer_id(3), "refused", 1);
  std::vector<RosterSend> sends;
  for (int i = 1; i <= 60; ++i) run(keeper, i * times.heal_period, &sends);
  uint64_t seed = 0, dead = 0;
  for (const auto& one : sends) {
    if (!std::holds_alternative<RosterHello>(one.message.body)) continue;
    EXPECT_NE(one.address, address_of(1));
    seed += one.address == address_of(7);
    dead += one.address == address_of(3);
  }
  EXPECT_GT(seed, 10u);
  EXPECT_GT(dead, 10u);
}

TEST(RosterKeeper, heals_with_the_seeds_that_it_was_told_last) {
  auto keeper = founder(3, options(true, {address_of(7)}));
  keeper.set_seeds({address_of(8), address_of(9)}, 1);
  keeper.set_seeds({}, 2);  // nobody is named now: no change
  std::vector<RosterSend> sends;
  for (int i = 1; i <= 60; ++i) run(keeper, i * times.heal_period, &sends);
  const auto asked = [&](uint64_t number) { return std::ranges::count(sends, address_of(number), &RosterSend::address); };
  EXPECT_EQ(asked(7), 0);
  EXPECT_GT(asked(8), 10);
  EXPECT_GT(asked(9), 10);
}

TEST(RosterKeeper, a_joiner_asks_seeds_that_it_is_told_later_at_once_and_goes_on_asking_the_others) {
  RosterKeeper keeper(options(false, {address_of(7)}), peer_entry(1));
  ASSERT_TRUE(keeper.start(0).ok());
  (void)keeper.take_sends();
  keeper.set_seeds({address_of(8)}, 1);
  keeper.woke(1);
  const auto hellos = sends_of<RosterHello>(keeper);
  ASSERT_EQ(hellos.size(), 2u);
  keeper.address_unreachable(address_of(7), "refused", false, 2);
  EXPECT_EQ(keeper.join_state(), JoinState::joining) << "one is left";
  keeper.address_unreachable(address_of(8), "refused", false, 3);
  EXPECT_TRUE(keeper.join_status().message().starts_with("NO_SEED: none of 2 seeds answers")) << keeper.join_status().message();
}

TEST(RosterKeeper, a_hello_with_an_equal_roster_is_not_answered_with_a_whole_one) {
  auto keeper = founder(300);
  keeper.message(peer_id(2), from_run(RosterHello{"demo", keeper.roster().sum(), {}}, {peer_claim(2)}), 1);
  auto sends = sends_of<RosterWelcome>(keeper);
  ASSERT_EQ(sends.size(), 1u);
  EXPECT_LT(sends[0].message.claims.size(), 64u) << "news only";
  keeper.message(peer_id(2), from_run(RosterHello{"demo", 1, {}}, {peer_claim(2)}), 1);
  sends = sends_of<RosterWelcome>(keeper);
  ASSERT_EQ(sends.size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(std::get<RosterWelcome>(sends[i].message.body).last, i == 2);
}

TEST(RosterKeeper, a_hello_with_a_sum_in_parts_is_answered_with_what_differs) {
  auto keeper = founder(300);
  PeerRoster other(4096, 3600 * second);
  for (const auto& claim : keeper.roster().claims(1)) (void)other.merge(claim, 1);
  (void)other.merge(peer_claim(40, PeerStatus::suspect), 1);
  keeper.message(peer_id(2), from_run(RosterHello{"demo", other.sum(), other.parts()}, {peer_claim(2)}), 1);
  auto sends = sends_of<RosterWelcome>(keeper);
  ASSERT_EQ(sends.size(), 1u);
  EXPECT_NE(about(sends[0], peer_id(40)), nullptr);
  EXPECT_LT(sends[0].message.claims.size(), 30u);
  const auto& welcome = std::get<RosterWelcome>(sends[0].message.body);
  EXPECT_TRUE(welcome.last);
  EXPECT_EQ(welcome.parts, keeper.roster().parts());
}

TEST(RosterKeeper, a_hello_of_one_that_knows_more_is_answered_though_there_is_nothing_to_tell) {
  auto keeper = founder(8);
  const auto known = keeper.roster().claims(1);
  const auto here = [&](size_t part) { return std::ranges::any_of(known, [&](const PeerClaim& claim) { return claim.entry.id.low % 2 == part; }); };
  ASSERT_TRUE(here(0) && here(1));
  auto parts = keeper.roster().parts();
  ASSERT_EQ(parts.size(), 2u);
  parts.resize(256);  // so many that most are empty; as whoever knows more peers has it
  std::ranges::fill(parts, 0);
  PeerRoster one(4096, 3600 * second);
  for (const auto& claim : known) {
    PeerRoster alone(4096, 3600 * second);
    (void)alone.merge(claim, 1);
    parts[claim.entry.id.low % 256] += alone.sum();
  }
  const auto empty = std::ranges::find(parts, uint64_t{0});
  ASSERT_NE(empty, parts.end());
  *empty = 5;
  keeper.message(peer_id(2), from_run(RosterHello{"demo", keeper.roster().sum() + 5, parts}, {peer_claim(2)}), 1);
  const auto sends = sends_of<RosterWelcome>(keeper);
  ASSERT_EQ(sends.size(), 1u) << "or who asks would never tell of it";
  EXPECT_TRUE(sends[0].message.claims.empty());
  EXPECT_TRUE(std::get<RosterWelcome>(sends[0].message.body).last);
}

TEST(RosterKeeper, what_matters_is_told_early_and_alone) {
  auto keeper = founder(5);
  std::vector<RosterSend> sends;
  run(keeper, 100 * times.gossip_period, &sends);  // nobody answers, but what was to be told is told
  keeper = founder(5);
  run(keeper, 2 * times.gossip_period + 1, &sends);
  (void)keeper.take_sends();
  Nanos now = 3 * times.gossip_period;
  while (keeper.next_deadline() <= now) keeper.woke(keeper.next_deadline());
  (void)keeper.take_sends();
  keeper.set_finished(7, 1, now);
  keeper.message(peer_id(2), from_run(RosterGossip{}, {peer_claim(3, PeerStatus::suspect, 1)}), now);
  const Nanos soon = now + times.gossip_period / 5;
  while (keeper.next_deadline() <= soon) keeper.woke(keeper.next_deadline());
  size_t told = 0, facts = 0;
  for (const auto& one : sends_of<RosterGossip>(keeper)) {
    if (std::get<RosterGossip>(one.message.body).answer) continue;
    const auto* claim = about(one, peer_id(3));
    told += claim != nullptr && claim->brief && claim->entry.status == PeerStatus::suspect;
    facts += about(one, peer_id(1)) != nullptr;
  }
  EXPECT_GE(told, 2u);
  EXPECT_EQ(facts, 0u);
  const Nanos later = now + 2 * times.gossip_period;
  while (keeper.next_deadline() <= later) keeper.woke(keeper.next_deadline());
  for (const auto& one : sends_of<RosterGossip>(keeper)) facts += about(one, peer_id(1)) != nullptr && about(one, peer_id(1))->entry.facts.finished_sweep == 7;
  EXPECT_GE(facts, 2u) << "with the regular one";
}

// Runs it to `end` with all its probes answered; what it sends meanwhile.
std::vector<RosterSend> run_answered(RosterKeeper& keeper, Nanos begin, Nanos end) {
  std::vector<RosterSend> sends;
  for (Nanos at = begin; at <= end; at += times.probe_timeout / 16) {
    run(keeper, at);
    for (auto& one : keeper.take_sends()) {
      if (const auto* probe = std::get_if<RosterProbe>(&one.message.body)) keeper.message(one.to, from_run(RosterAck{peer_id(1), one.to, probe->sequence}), at);
      sends.push_back(std::move(one));
    }
  }
  return sends;
}

size_t comparisons(const std::vector<RosterSend>& sends) {
  return static_cast<size_t>(std::ranges::count_if(sends, [](const RosterSend& one) { return std::holds_alternative<RosterHello>(one.message.body); }));
}

TEST(RosterKeeper, compares_rosters_after_somebody_came_or_went_and_not_for_every_doubt) {
  auto all = options(true);
  auto keeper = founder(12, all);
  Nanos now = 4 * second;
  EXPECT_GE(comparisons(run_answered(keeper, 0, now)), 1u) << "eleven came";
  const auto during = [&](const PeerClaim& claim) {
    keeper.message(peer_id(2), from_run(RosterGossip{.answer = true}, {claim}), now);
    const auto sends = run_answered(keeper, now, now + 2500 * millisecond);
    now += 2500 * millisecond;
    return comparisons(sends);
  };
  // Healing compares, too, at a time that only chance decides: of four doubts one may fall together with it.
  size_t doubts = 0, deaths = 0;
  for (uint32_t i = 0; i < 2; ++i) {
    doubts += during(peer_claim(3, PeerStatus::suspect, 1 + i));
    doubts += during(peer_claim(3, PeerStatus::alive, 2 + i));
  }
  for (uint64_t number = 5; number < 9; ++number) {
    auto death = peer_claim(number, PeerStatus::dead);
    death.proven = true;
    deaths += during(death);
  }
  EXPECT_LE(doubts, 1u);
  EXPECT_GE(deaths, 4u);
}

TEST(RosterKeeper, where_many_are_in_doubt_they_are_told_of_together) {
  const auto gossips = [](uint64_t doubts) {
    auto keeper = founder(40);
    Nanos now = 10 * second;
    (void)run_answered(keeper, 0, now);
    size_t sent = 0;
    const Nanos end = now + second;
    for (uint64_t i = 0; now < end; ++i, now += times.gossip_period / 20) {
      keeper.message(peer_id(2), from_run(RosterGossip{.answer = true}, {peer_claim(3 + i % doubts, i / doubts % 2 == 0 ? PeerStatus::suspect : PeerStatus::alive, static_cast<uint32_t>(1 + (i / doubts + 1) / 2))}), now);
      run(keeper, now);
      sent += sends_of<RosterGossip>(keeper).size();
    }
    return sent;
  };
  const auto few = gossips(2), many = gossips(30);
  EXPECT_GE(few, 16u) << "two, every tenth of a second";
  EXPECT_LE(many, few / 2 + 4);
  EXPECT_GE(many, 6u);
}

TEST(RosterKeeper, facts_that_come_with_a_doubt_are_told_on) {
  auto keeper = founder(12);
  (void)run_answered(keeper, 0, 4 * second);
  auto claim = peer_claim(3, PeerStatus::suspect);
  claim.entry.facts.counter = 9;
  keeper.message(peer_id(2), from_run(RosterGossip{.answer = true}, {claim}), 4 * second);
  size_t brief = 0, whole = 0;
  for (const auto& one : run_answered(keeper, 4 * second, 6 * second)) {
    for (const auto& told : one.message.claims) {
      if (told.entry.id != peer_id(3)) continue;
      ++(told.brief ? brief : whole);
    }
  }
  EXPECT_GE(brief, 4u);
  EXPECT_GE(whole, 2u);
}

// How often the keeper tells the peer's facts by gossip until `end`.
size_t times_facts_told(RosterKeeper& keeper, uint64_t number, Nanos end) {
  size_t told = 0;
  while (keeper.next_deadline() <= end) {
    keeper.woke(keeper.next_deadline());
    for (const auto& one : sends_of<RosterGossip>(keeper)) told += about(one, peer_id(number)) != nullptr && !about(one, peer_id(number))->brief;
  }
  return told;
}

TEST(RosterKeeper, in_a_large_run_each_tells_its_own_facts_only) {
  for (const uint64_t count : {64, 65}) {
    auto keeper = founder(count);
    Nanos now = 20 * times.gossip_period;  // until the newcomers are told
    for (Nanos at = 0; at < now; at += times.probe_timeout / 4) {
      run(keeper, at);
      for (const auto& one : sends_of<RosterProbe>(keeper)) keeper.message(one.to, from_run(RosterAck{peer_id(1), one.to, std::get<RosterProbe>(one.message.body).sequence}), at);
    }
    ASSERT_EQ(keeper.counters().suspicions, 0u);
    auto claim = peer_claim(9);
    claim.entry.facts.counter = 4;
    keeper.message(peer_id(9), from_run(RosterGossip{.answer = true}, {claim}), now);
    const auto told = times_facts_told(keeper, 9, now + times.gossip_period);
    EXPECT_EQ(told > 0, count == 64) << count;
  }
}

TEST(RosterKeeper, a_stranger_of_the_run_is_asked_who_it_is_not_too_often) {
  auto keeper = founder(2);
  for (int i = 0; i < 10; ++i) keeper.message(peer_id(9), from_run(RosterProbe{peer_id(9), 1}), 1);
  EXPECT_EQ(sends_of<RosterHello>(keeper).size(), 1u);
  EXPECT_EQ(keeper.counters().strangers, 10u);
}

TEST(RosterKeeper, a_client_is_sent_to_only_while_it_is_heard_and_keeps_no_record) {
  auto keeper = founder(2);
  auto client = peer_claim(3);
  client.entry.facts.role = ElasticRole::client;
  keeper.message(peer_id(2), from_run(RosterGossip{}, {client}), 1);
  keeper.message(peer_id(2), from_run(RosterProbeRequest{peer_id(3), 1}), 1);
  EXPECT_TRUE(sends_of<RosterProbe>(keeper).empty());
  keeper.message(peer_id(3), from_run(RosterProbe{peer_id(3), 1}), 2);
  keeper.message(peer_id(2), from_run(RosterProbeRequest{peer_id(3), 2}), 2);
  EXPECT_EQ(sends_of<RosterProbe>(keeper).size(), 1u);
  for (const auto& id : keeper.holders("some/key")) EXPECT_NE(id, peer_id(3));
}

TEST(RosterKeeper, sweeps_that_were_opened_spread_with_every_message) {
  auto keeper = founder(3);
  keeper.note_opened(4, 1);
  EXPECT_EQ(keeper.sweeps_opened(), 5u);
  run(keeper, times.gossip_period + 1);
  auto sends = keeper.take_sends();
  ASSERT_FALSE(sends.empty());
  auto other = founder(3);
  other.message(peer_id(2), sends[0].message, 1);
  EXPECT_EQ(other.sweeps_opened(), 5u);
  other.note_opened(2, 2);
  EXPECT_EQ(other.sweeps_opened(), 5u);
}

TEST(RosterKeeper, what_it_says_of_itself_is_newer_each_time) {
  auto keeper = founder(3);
  keeper.set_registered(3, 1);
  keeper.set_finished(3, 0xD1, 2);
  keeper.set_bandwidth(1e9, 3);
  const auto counter = keeper.self_entry().facts.counter;
  keeper.set_bandwidth(1.05e9, 4);
  EXPECT_EQ(keeper.self_entry().facts.counter, counter) << "as good as the same";
  keeper.set_bandwidth(0.5e9, 5);
  EXPECT_GT(keeper.self_entry().facts.counter, counter);
  EXPECT_EQ(keeper.self_entry().facts.finished_sweep, 3);
  EXPECT_EQ(keeper.self_entry().facts.state_digest, 0xD1u);
  EXPECT_EQ(keeper.self_entry().facts.bandwidth, 0.5e9);
}

}  // namespace
}  // namespace unisono
