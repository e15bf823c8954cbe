#include "elastic/roster/roster_keeper.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "elastic/roster/roster_keeper_test_support.h"

namespace unisono {
namespace {

using test::about;
using test::address_of;
using test::founder;
using test::from_run;
using test::options;
using test::peer_claim;
using test::peer_entry;
using test::peer_id;
using test::run;
using test::sends_of;
using test::times;

TEST(RosterKeeper, refuses_impossible_options) {
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

TEST(RosterKeeper, a_joiner_asks_every_seed_and_has_joined_once_it_has_the_whole_roster) {
  RosterKeeper keeper(options(false, {address_of(2), address_of(3)}), peer_entry(1));
  ASSERT_TRUE(keeper.start(0).ok());
  EXPECT_EQ(keeper.join_state(), JoinState::joining);
  EXPECT_EQ(keeper.self_entry().status, PeerStatus::joining);
  EXPECT_EQ(sends_of<RosterHello>(keeper).size(), 2u);
  run(keeper, times.probe_period);
  EXPECT_EQ(sends_of<RosterHello>(keeper).size(), 2u) << "asked again";
  keeper.message(peer_id(2), from_run(RosterWelcome{.sum = 0, .last = false, .parts = {}}, {peer_claim(2)}),
                 times.probe_period);
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

TEST(RosterKeeper, joining_fails_if_no_seed_ever_answers) {
  RosterKeeper keeper(options(false, {address_of(2)}), peer_entry(1));
  ASSERT_TRUE(keeper.start(0).ok());
  run(keeper, times.heal_period);
  EXPECT_TRUE(keeper.join_status().message().starts_with("NO_SEED"));
}

TEST(RosterKeeper, asks_a_few_of_many_seeds_at_a_time_until_one_answers) {
  std::vector<std::string> seeds;
  for (uint64_t number = 100; number < 1100; ++number) seeds.push_back(address_of(number));
  RosterKeeper keeper(options(false, seeds), peer_entry(1));
  ASSERT_TRUE(keeper.start(0).ok());
  std::set<std::string> asked;
  std::vector<std::string> waiting;
  const auto look = [&] {
    for (const auto& one : sends_of<RosterHello>(keeper)) {
      asked.insert(one.address);
      EXPECT_EQ(std::ranges::count(waiting, one.address), 0) << "twice at once";
      waiting.push_back(one.address);
    }
    EXPECT_LE(waiting.size(), 32u);
  };
  // Each seed that refuses must be replaced by another seed at once.
  for (look(); asked.size() < 900 && !waiting.empty(); look()) {
    const auto address = waiting.back();
    waiting.pop_back();
    keeper.address_unreachable(address, "refused", false, 1);
  }
  EXPECT_EQ(asked.size(), 900u);
  // From now on all seeds are silent. The remaining 100 seeds must be asked nevertheless.
  for (int i = 1; i <= 4; ++i) {
    waiting.clear();
    run(keeper, i * times.probe_period + 1);
    look();
  }
  EXPECT_EQ(asked.size(), 1000u);
  EXPECT_EQ(keeper.join_state(), JoinState::joining);
  keeper.message(peer_id(2), from_run(RosterWelcome{.sum = 0, .last = true, .parts = {}}, {peer_claim(2)}),
                 4 * times.probe_period + 2);
  EXPECT_EQ(keeper.join_state(), JoinState::joined);
}

TEST(RosterKeeper, asks_the_next_seed_when_one_of_those_asked_fails) {
  for (const size_t count : {32u, 33u, 64u}) {
    std::vector<std::string> seeds;
    for (uint64_t number = 100; number < 100 + count; ++number) seeds.push_back(address_of(number));
    RosterKeeper keeper(options(false, seeds), peer_entry(1));
    ASSERT_TRUE(keeper.start(0).ok());
    std::set<std::string> asked;
    for (const auto& one : sends_of<RosterHello>(keeper)) EXPECT_TRUE(asked.insert(one.address).second);
    EXPECT_EQ(asked.size(), 32u) << count;
    const std::vector<std::string> first(asked.begin(), asked.end());
    for (size_t failed = 0; failed < 32; ++failed) {
      EXPECT_EQ(keeper.join_state(), JoinState::joining) << count;
      keeper.address_unreachable(first[failed], "refused", false, 1);
      const auto next = sends_of<RosterHello>(keeper);
      ASSERT_EQ(next.size(), 32 + failed < count ? 1u : 0u) << count;
      for (const auto& one : next) EXPECT_TRUE(asked.insert(one.address).second) << one.address << " was asked before";
    }
    EXPECT_EQ(asked.size(), count);
    EXPECT_EQ(keeper.join_state() == JoinState::failed, count == 32) << count;
  }
}

TEST(RosterKeeper, an_error_names_some_of_many_seeds) {
  std::vector<std::string> seeds;
  for (uint64_t number = 100; number < 400; ++number) seeds.push_back(address_of(number));
  RosterKeeper keeper(options(false, seeds), peer_entry(1));
  ASSERT_TRUE(keeper.start(0).ok());
  for (const auto& seed : seeds) keeper.address_unreachable(seed, "refused", false, 1);
  EXPECT_EQ(keeper.join_state(), JoinState::failed);
  EXPECT_TRUE(keeper.join_status().message().ends_with(" and 284 more")) << keeper.join_status().message();
}

TEST(RosterKeeper, does_not_ask_itself_as_a_seed) {
  RosterKeeper keeper(options(false, {address_of(1)}), peer_entry(1));
  ASSERT_TRUE(keeper.start(0).ok());
  EXPECT_TRUE(keeper.join_status().message().starts_with("NO_SEED"));
}

TEST(RosterKeeper, two_joiners_do_not_welcome_each_other) {
  RosterKeeper keeper(options(false, {address_of(2)}), peer_entry(1));
  ASSERT_TRUE(keeper.start(0).ok());
  (void)keeper.take_sends();
  keeper.message(peer_id(2), from_run(RosterHello{"demo", 0, {}}, {peer_claim(2, PeerStatus::joining)}), 1);
  const auto sends = keeper.take_sends();
  ASSERT_EQ(sends.size(), 1u);
  EXPECT_EQ(sends[0].to, peer_id(2));
  ASSERT_TRUE(std::holds_alternative<RosterRefused>(sends[0].message.body)) << "it says that it is looking, too";
  EXPECT_EQ(std::get<RosterRefused>(sends[0].message.body).reason, RefusalReason::looking);
  EXPECT_EQ(keeper.roster().size(), 1u);
}

// A joiner with this run id and entry asks the keeper `there`, which must refuse it. Returns the joiner's join_status().
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

TEST(RosterKeeper, refuses_another_run_another_schema_and_a_peer_beyond_max_peers) {
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

TEST(RosterKeeper, ignores_messages_of_another_run) {
  auto keeper = founder(2);
  auto message = from_run(RosterGossip{}, {peer_claim(5)});
  message.run = 1;
  keeper.message(peer_id(2), message, 1);
  EXPECT_EQ(keeper.roster().find(peer_id(5)), nullptr);
  EXPECT_EQ(keeper.counters().foreign, 1u);
}

TEST(RosterKeeper, a_silent_peer_is_probed_through_others_then_suspect_then_dead) {
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
    for (const auto& event : keeper.take_events()) {
      if (event.peer != target) continue;
      if (event.now == PeerStatus::suspect) suspect = now;
      if (event.now == PeerStatus::dead) dead = now;
    }
  }
  EXPECT_EQ(suspect - asked, times.probe_timeout);
  EXPECT_EQ(dead - suspect, times.suspect_time);
}

TEST(RosterKeeper, an_answer_to_an_indirect_probe_counts) {
  auto keeper = founder(5);
  keeper.link_lost(peer_id(3), 10);
  const auto asked = sends_of<RosterProbeRequest>(keeper);
  ASSERT_EQ(asked.size(), 3u) << "at once, three others";
  const auto sequence = std::get<RosterProbeRequest>(asked[0].message.body).sequence;
  keeper.message(asked[0].to, from_run(RosterAck{.origin = peer_id(1), .target = peer_id(3), .sequence = sequence}), 20);
  run(keeper, times.probe_timeout * 3);
  for (const auto& event : keeper.take_events()) EXPECT_FALSE(event.peer == peer_id(3) && event.now == PeerStatus::suspect);
}

TEST(RosterKeeper, a_link_lost_counts_as_a_failed_probe) {
  auto keeper = founder(5);
  keeper.link_lost(peer_id(3), 10);
  run(keeper, 10 + times.probe_timeout);
  EXPECT_EQ(keeper.roster().find(peer_id(3))->status, PeerStatus::suspect);
  EXPECT_FALSE(keeper.gone(peer_id(3)));
}

TEST(RosterKeeper, probes_for_other_peers_and_forwards_the_answer) {
  auto keeper = founder(4);
  keeper.message(peer_id(2), from_run(RosterProbeRequest{peer_id(3), 7}), 1);
  const auto probes = sends_of<RosterProbe>(keeper);
  ASSERT_EQ(probes.size(), 1u);
  EXPECT_EQ(probes[0].to, peer_id(3));
  EXPECT_EQ(std::get<RosterProbe>(probes[0].message.body), (RosterProbe{peer_id(2), 7}));
  const RosterAck ack{.origin = peer_id(2), .target = peer_id(3), .sequence = 7};
  keeper.message(peer_id(4), from_run(ack), 2);  // refused, because peer 4 is not the target
  EXPECT_TRUE(sends_of<RosterAck>(keeper).empty());
  keeper.message(peer_id(3), from_run(ack), 2);
  const auto answers = sends_of<RosterAck>(keeper);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].to, peer_id(2));
}

TEST(RosterKeeper, refutes_claims_that_it_is_suspect_or_dead_and_answers_their_senders) {
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

TEST(RosterKeeper, two_peers_that_disagree_stop_answering_each_other) {
  auto all = options(true);
  all.max_peers = 2;
  auto keeper = founder(2, all);
  keeper.known_dead(peer_id(2), "refused", 1);
  keeper.message(peer_id(3), from_run(RosterGossip{}, {peer_claim(3)}), 2);  // peer 3 takes the free slot in the roster
  (void)keeper.take_sends();
  // Peer 2 is alive, but does not fit into the roster any more. It claims in an answer that it is alive. The keeper must not
  // reply to an answer.
  keeper.message(peer_id(2), from_run(RosterGossip{.answer = true}, {peer_claim(2, PeerStatus::alive, 2)}), 3);
  EXPECT_TRUE(keeper.take_sends().empty());
}

TEST(RosterKeeper, answers_a_peer_that_it_holds_for_dead_with_that_claim) {
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

TEST(RosterKeeper, a_peer_whose_addresses_all_refuse_is_dead_here_and_at_peers_that_get_the_claim) {
  auto keeper = founder(4);
  keeper.known_dead(peer_id(3), "connection refused", 1);
  EXPECT_TRUE(keeper.gone(peer_id(3)));
  const auto events = keeper.take_events();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_NE(events[0].why.find("connection refused"), std::string::npos);
  EXPECT_LE(keeper.next_deadline(), times.gossip_period / 10);
  run(keeper, times.gossip_period / 10);
  const auto sends = sends_of<RosterGossip>(keeper);
  ASSERT_FALSE(sends.empty());
  auto other = founder(4);
  other.message(peer_id(2), sends[0].message, 5);
  EXPECT_TRUE(other.gone(peer_id(3)));
}

TEST(RosterKeeper, a_reported_death_by_silence_first_counts_as_a_suspicion) {
  auto keeper = founder(4);
  const auto claim = peer_claim(3, PeerStatus::dead);
  keeper.message(peer_id(2), from_run(RosterGossip{}, {claim}), 1);
  EXPECT_EQ(keeper.roster().find(peer_id(3))->status, PeerStatus::suspect);
  keeper.message(peer_id(2), from_run(RosterGossip{}, {claim}), times.suspect_time / 2);
  EXPECT_FALSE(keeper.gone(peer_id(3)));
  keeper.message(peer_id(2), from_run(RosterGossip{}, {claim}), 1 + times.suspect_time / 2);
  EXPECT_TRUE(keeper.gone(peer_id(3)));
}

TEST(RosterKeeper, a_late_wakeup_restarts_timeouts_of_other_peers_a_limited_number_of_times) {
  auto keeper = founder(4);
  keeper.link_lost(peer_id(3), 0);
  Nanos now = 60 * second;
  keeper.woke(now);
  EXPECT_EQ(keeper.roster().find(peer_id(3))->status, PeerStatus::alive);
  EXPECT_EQ(keeper.counters().late_wakeups, 1u);
  for (int i = 0; i < 20; ++i) keeper.woke(now = keeper.next_deadline() + times.probe_timeout);
  EXPECT_NE(keeper.roster().find(peer_id(3))->status, PeerStatus::alive) << "always late";
}

TEST(RosterKeeper, tells_up_to_64_peers_that_it_leaves_and_then_sends_nothing) {
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

TEST(RosterKeeper, a_peer_that_left_is_gone_and_is_not_asked_to_return) {
  auto keeper = founder(4);
  keeper.message(peer_id(2), from_run(RosterGossip{}, {peer_claim(2, PeerStatus::left)}), 1);
  EXPECT_TRUE(keeper.gone(peer_id(2)));
  EXPECT_TRUE(keeper.take_sends().empty());
}

TEST(RosterKeeper, heals_with_seeds_and_addresses_of_dead_peers_without_end) {
  auto all = options(true, {address_of(1), address_of(7)});  // the first seed is the keeper's own address
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

TEST(RosterKeeper, heals_with_the_latest_seeds) {
  auto keeper = founder(3, options(true, {address_of(7)}));
  keeper.set_seeds({address_of(8), address_of(9)}, 1);
  keeper.set_seeds({}, 2);  // an empty list changes nothing
  std::vector<RosterSend> sends;
  for (int i = 1; i <= 60; ++i) run(keeper, i * times.heal_period, &sends);
  const auto asked = [&](uint64_t number) { return std::ranges::count(sends, address_of(number), &RosterSend::address); };
  EXPECT_EQ(asked(7), 0);
  EXPECT_GT(asked(8), 10);
  EXPECT_GT(asked(9), 10);
}

TEST(RosterKeeper, a_joiner_asks_new_seeds_at_once_and_still_asks_the_earlier_ones) {
  RosterKeeper keeper(options(false, {address_of(7)}), peer_entry(1));
  ASSERT_TRUE(keeper.start(0).ok());
  (void)keeper.take_sends();
  keeper.set_seeds({address_of(8)}, 1);
  keeper.woke(1);
  ASSERT_EQ(sends_of<RosterHello>(keeper).size(), 1u);
  run(keeper, 1 + times.probe_period);
  ASSERT_EQ(sends_of<RosterHello>(keeper).size(), 2u);
  keeper.address_unreachable(address_of(7), "refused", false, 2);
  EXPECT_EQ(keeper.join_state(), JoinState::joining) << "one is left";
  keeper.address_unreachable(address_of(8), "refused", false, 3);
  EXPECT_TRUE(keeper.join_status().message().starts_with("NO_SEED: none of 2 seeds answers")) << keeper.join_status().message();
}

TEST(RosterKeeper, an_unknown_peer_of_the_run_is_asked_for_its_identity_not_too_often) {
  auto keeper = founder(2);
  for (int i = 0; i < 10; ++i) keeper.message(peer_id(9), from_run(RosterProbe{peer_id(9), 1}), 1);
  EXPECT_EQ(sends_of<RosterHello>(keeper).size(), 1u);
  EXPECT_EQ(keeper.counters().unauthenticated, 10u);
}

TEST(RosterKeeper, a_client_gets_messages_only_while_it_sends_some_and_keeps_no_record) {
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

TEST(RosterKeeper, steps_that_were_opened_spread_with_every_message) {
  auto keeper = founder(3);
  keeper.note_opened(4, 1);
  EXPECT_EQ(keeper.steps_opened(), 5u);
  run(keeper, times.gossip_period + 1);
  auto sends = keeper.take_sends();
  ASSERT_FALSE(sends.empty());
  auto other = founder(3);
  other.message(peer_id(2), sends[0].message, 1);
  EXPECT_EQ(other.steps_opened(), 5u);
  other.note_opened(2, 2);
  EXPECT_EQ(other.steps_opened(), 5u);
}

TEST(RosterKeeper, its_own_facts_are_newer_with_each_change) {
  auto keeper = founder(3);
  keeper.set_registered(3, 1);
  keeper.set_finished(3, 0xD1, 2);
  keeper.set_bandwidth(1e9, 3);
  const auto counter = keeper.self_entry().facts.counter;
  keeper.set_bandwidth(1.05e9, 4);
  EXPECT_EQ(keeper.self_entry().facts.counter, counter) << "as good as the same";
  keeper.set_bandwidth(0.5e9, 5);
  EXPECT_GT(keeper.self_entry().facts.counter, counter);
  EXPECT_EQ(keeper.self_entry().facts.finished_step, 3);
  EXPECT_EQ(keeper.self_entry().facts.state_digest, 0xD1u);
  EXPECT_EQ(keeper.self_entry().facts.bandwidth, 0.5e9);
}

}  // namespace
}  // namespace unisono
