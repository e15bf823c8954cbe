// The messages that a keeper gossips, when and how often, and with which peers it compares rosters.
#include <gtest/gtest.h>

#include <algorithm>

#include "elastic/roster/roster_keeper_test_support.h"

namespace unisono {
namespace {

using test::about;
using test::founder;
using test::from_run;
using test::options;
using test::peer_claim;
using test::peer_id;
using test::run;
using test::run_answered;
using test::sends_of;
using test::times;

TEST(RosterKeeperGossip, a_hello_with_an_equal_roster_is_not_answered_with_a_whole_one) {
  auto keeper = founder(300);
  keeper.message(peer_id(2), from_run(RosterHello{"demo", keeper.roster().sum(), {}}, {peer_claim(2)}), 1);
  auto sends = sends_of<RosterWelcome>(keeper);
  ASSERT_EQ(sends.size(), 1u);
  EXPECT_LT(sends[0].message.claims.size(), 64u) << "only entries that changed";
  keeper.message(peer_id(2), from_run(RosterHello{"demo", 1, {}}, {peer_claim(2)}), 1);
  sends = sends_of<RosterWelcome>(keeper);
  ASSERT_EQ(sends.size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(std::get<RosterWelcome>(sends[i].message.body).last, i == 2);
}

TEST(RosterKeeperGossip, a_hello_with_a_sum_in_parts_is_answered_with_what_differs) {
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

TEST(RosterKeeperGossip, a_hello_of_a_peer_that_knows_more_is_answered_even_without_entries) {
  auto keeper = founder(8);
  const auto known = keeper.roster().claims(1);
  const auto here = [&](size_t part) {
    return std::ranges::any_of(known, [&](const PeerClaim& claim) { return claim.entry.id.low % 2 == part; });
  };
  ASSERT_TRUE(here(0) && here(1));
  auto parts = keeper.roster().parts();
  ASSERT_EQ(parts.size(), 2u);
  parts.resize(256);  // 256 parts, most of them empty, as from a peer with a larger roster
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
  ASSERT_EQ(sends.size(), 1u) << "otherwise the sender would never send its own entries";
  EXPECT_TRUE(sends[0].message.claims.empty());
  EXPECT_TRUE(std::get<RosterWelcome>(sends[0].message.body).last);
}

TEST(RosterKeeperGossip, suspicions_are_sent_early_and_without_facts) {
  auto keeper = founder(5);
  std::vector<RosterSend> sends;
  run(keeper, 100 * times.gossip_period, &sends);  // no peer answers, and all pending gossip is sent
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
  size_t sent = 0, facts = 0;
  for (const auto& one : sends_of<RosterGossip>(keeper)) {
    if (std::get<RosterGossip>(one.message.body).answer) continue;
    const auto* claim = about(one, peer_id(3));
    sent += claim != nullptr && claim->brief && claim->entry.status == PeerStatus::suspect;
    facts += about(one, peer_id(1)) != nullptr;
  }
  EXPECT_GE(sent, 2u);
  EXPECT_EQ(facts, 0u);
  const Nanos later = now + 2 * times.gossip_period;
  while (keeper.next_deadline() <= later) keeper.woke(keeper.next_deadline());
  for (const auto& one : sends_of<RosterGossip>(keeper))
    facts += about(one, peer_id(1)) != nullptr && about(one, peer_id(1))->entry.facts.finished_step == 7;
  EXPECT_GE(facts, 2u) << "with the regular one";
}

size_t comparisons(const std::vector<RosterSend>& sends) {
  return static_cast<size_t>(std::ranges::count_if(
      sends, [](const RosterSend& one) { return std::holds_alternative<RosterHello>(one.message.body); }));
}

TEST(RosterKeeperGossip, compares_rosters_after_peers_came_or_went_but_not_after_each_suspicion) {
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
  // Healing compares rosters too, at random times. One healing may fall into the time of the four suspicions, so one comparison
  // is allowed.
  size_t suspicions = 0, deaths = 0;
  for (uint32_t i = 0; i < 2; ++i) {
    suspicions += during(peer_claim(3, PeerStatus::suspect, 1 + i));
    suspicions += during(peer_claim(3, PeerStatus::alive, 2 + i));
  }
  for (uint64_t number = 5; number < 9; ++number) {
    auto death = peer_claim(number, PeerStatus::dead);
    death.proven = true;
    deaths += during(death);
  }
  EXPECT_LE(suspicions, 1u);
  EXPECT_GE(deaths, 4u);
}

TEST(RosterKeeperGossip, each_of_many_simultaneous_joiners_is_gossiped_less_often) {
  const auto sends_about_last = [](uint64_t count) {
    auto keeper = founder(count);
    size_t sent = 0;
    for (const auto& one : run_answered(keeper, 0, 40 * second)) {
      if (const auto* gossip = std::get_if<RosterGossip>(&one.message.body); gossip == nullptr || gossip->answer) continue;
      sent += about(one, peer_id(count)) != nullptr;  // counts messages about the peer that joined last
    }
    return sent;
  };
  EXPECT_GE(sends_about_last(60), 5u);
  EXPECT_LE(sends_about_last(300), 4u);
  EXPECT_GE(sends_about_last(300), 1u);
}

TEST(RosterKeeperGossip, a_peer_that_was_suspect_when_it_came_is_in_a_layout_once_it_is_alive) {
  auto keeper = founder(2);
  (void)run_answered(keeper, 0, 20 * second);
  ASSERT_NE(keeper.newest_layout(), nullptr);
  ASSERT_EQ(keeper.newest_layout()->peers.size(), 2u);
  keeper.message(peer_id(2), from_run(RosterGossip{.answer = true}, {peer_claim(3, PeerStatus::suspect, 1)}), 20 * second);
  (void)run_answered(keeper, 20 * second, 21 * second);
  ASSERT_EQ(keeper.newest_layout()->peers.size(), 2u);
  keeper.message(peer_id(2), from_run(RosterGossip{.answer = true}, {peer_claim(3, PeerStatus::alive, 2)}), 21 * second);
  (void)run_answered(keeper, 21 * second, 40 * second);
  EXPECT_EQ(keeper.newest_layout()->peers.size(), 3u);
}

TEST(RosterKeeperGossip, many_suspicions_are_sent_together) {
  const auto gossips = [](uint64_t suspicions) {
    auto keeper = founder(40);
    Nanos now = 10 * second;
    (void)run_answered(keeper, 0, now);
    size_t sent = 0;
    const Nanos end = now + second;
    for (uint64_t i = 0; now < end; ++i, now += times.gossip_period / 20) {
      keeper.message(peer_id(2),
                     from_run(RosterGossip{.answer = true},
                              {peer_claim(3 + i % suspicions, i / suspicions % 2 == 0 ? PeerStatus::suspect : PeerStatus::alive,
                                          static_cast<uint32_t>(1 + (i / suspicions + 1) / 2))}),
                     now);
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

TEST(RosterKeeperGossip, facts_that_come_with_a_suspicion_are_passed_on) {
  auto keeper = founder(12);
  (void)run_answered(keeper, 0, 4 * second);
  auto claim = peer_claim(3, PeerStatus::suspect);
  claim.entry.facts.counter = 9;
  keeper.message(peer_id(2), from_run(RosterGossip{.answer = true}, {claim}), 4 * second);
  size_t brief = 0, whole = 0;
  for (const auto& one : run_answered(keeper, 4 * second, 6 * second)) {
    for (const auto& claim : one.message.claims) {
      if (claim.entry.id != peer_id(3)) continue;
      ++(claim.brief ? brief : whole);
    }
  }
  EXPECT_GE(brief, 4u);
  EXPECT_GE(whole, 2u);
}

// Returns how many messages with the peer's facts the keeper sends until `end`.
size_t count_facts_sent(RosterKeeper& keeper, uint64_t number, Nanos end) {
  size_t sent = 0;
  while (keeper.next_deadline() <= end) {
    keeper.woke(keeper.next_deadline());
    for (const auto& one : sends_of<RosterGossip>(keeper))
      sent += about(one, peer_id(number)) != nullptr && !about(one, peer_id(number))->brief;
  }
  return sent;
}

TEST(RosterKeeperGossip, in_a_large_run_each_peer_gossips_only_its_own_facts) {
  for (const uint64_t count : {64, 65}) {
    auto keeper = founder(count);
    Nanos now = 20 * times.gossip_period;  // long enough that all newcomers have been gossiped
    for (Nanos at = 0; at < now; at += times.probe_timeout / 4) {
      run(keeper, at);
      for (const auto& one : sends_of<RosterProbe>(keeper))
        keeper.message(one.to, from_run(RosterAck{peer_id(1), one.to, std::get<RosterProbe>(one.message.body).sequence}), at);
    }
    ASSERT_EQ(keeper.counters().suspicions, 0u);
    auto claim = peer_claim(9);
    claim.entry.facts.counter = 4;
    keeper.message(peer_id(9), from_run(RosterGossip{.answer = true}, {claim}), now);
    const auto sent = count_facts_sent(keeper, 9, now + times.gossip_period);
    EXPECT_EQ(sent > 0, count == 64) << count;
  }
}

}  // namespace
}  // namespace unisono
