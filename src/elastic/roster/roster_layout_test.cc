// How keepers make and spread layouts, and how many layouts they hold.

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "elastic/layout/layout_book.h"
#include "elastic/roster/elastic_test_support.h"
#include "elastic/roster/gossip_queue.h"
#include "elastic/roster/roster_keeper_test_support.h"

namespace unisono {
namespace {

using test::KeeperNetwork;
using test::options;
using test::peer_claim;
using test::peer_entry;
using test::peer_id;
using test::times;

std::shared_ptr<const Layout> layout(uint64_t version, uint64_t first_step, uint64_t peers = 3) {
  std::vector<PeerId> ids;
  for (uint64_t number = 1; number <= peers; ++number) ids.push_back(peer_id(number));
  return std::make_shared<const Layout>(*make_layout({.run = "demo", .version = version, .first_step = first_step}, ids));
}

void set_all_alive(KeeperNetwork& net) {
  for (auto& [number, node] : net.nodes) {
    if (node.up) net.with(number, [](RosterKeeper& keeper, Nanos now) { keeper.set_alive(now); });
  }
}

bool all_hold(const KeeperNetwork& net, uint64_t version) {
  std::optional<uint64_t> digest;
  for (const auto& [number, node] : net.nodes) {
    if (!node.up) continue;
    const auto* newest = node.keeper->newest_layout();
    if (newest == nullptr || newest->version != version || (digest && *digest != newest->digest)) return false;
    digest = newest->digest;
  }
  return true;
}

void form(KeeperNetwork& net, uint64_t count, uint32_t min_peers) {
  auto first = options(true), other = options(false);
  first.min_peers = other.min_peers = min_peers;
  net.start(1, first, {});
  for (uint64_t number = 2; number <= count; ++number) net.start(number, other, {1});
  net.run_until(net.now + 1 * second);
  set_all_alive(net);
}

TEST(LayoutBook, holds_the_last_four_and_knows_which_is_in_effect) {
  LayoutBook book;
  EXPECT_EQ(book.in_effect(5), nullptr);
  for (const uint64_t version : {1, 2, 3, 4, 5}) EXPECT_TRUE(book.add(layout(version, 10 * version - 10)));
  EXPECT_FALSE(book.add(layout(5, 40))) << "held";
  EXPECT_FALSE(book.add(layout(1, 0))) << "too old";
  EXPECT_EQ(book.in_effect(9), nullptr) << "its layout is no longer held";
  EXPECT_EQ(book.in_effect(10)->version, 2u);
  EXPECT_EQ(book.in_effect(39)->version, 4u);
  EXPECT_EQ(book.in_effect(1000)->version, 5u);
  EXPECT_EQ(book.find(3, layout(3, 20)->digest)->version, 3u);
  EXPECT_EQ(book.find(3, 1), nullptr);
}

TEST(LayoutBook, keeps_the_smaller_digest_of_one_version_in_any_order) {
  const auto a = layout(1, 0, 3), b = layout(1, 0, 4);
  const auto smaller = std::min(a->digest, b->digest);
  LayoutBook first, second;
  (void)first.add(a);
  (void)first.add(b);
  (void)second.add(b);
  (void)second.add(a);
  EXPECT_EQ(first.newest()->digest, smaller);
  EXPECT_EQ(second.newest()->digest, smaller);
  EXPECT_EQ(first.members().size(), first.newest()->peers.size());
}

TEST(LayoutBook, orders_a_late_layout_by_its_version) {
  LayoutBook book;
  (void)book.add(layout(4, 30));
  EXPECT_TRUE(book.add(layout(3, 20)));
  EXPECT_EQ(book.newest()->version, 4u);
  EXPECT_EQ(book.in_effect(25)->version, 3u);
}

TEST(GossipQueue, sends_each_item_the_requested_number_of_times) {
  GossipQueue gossip_items;
  gossip_items.add(peer_id(1), 3, GossipKind::facts);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(gossip_items.take(10).size(), 1u);
  EXPECT_TRUE(gossip_items.empty());
  EXPECT_TRUE(gossip_items.take(10).empty());
}

TEST(GossipQueue, sends_status_before_facts_and_new_items_before_repeated_ones) {
  GossipQueue gossip_items;
  for (uint64_t number = 1; number <= 10; ++number) gossip_items.add(peer_id(number), 5, GossipKind::facts);
  gossip_items.add(peer_id(7), 5, GossipKind::status);
  EXPECT_EQ(gossip_items.take(1), std::vector{peer_id(7)});
  gossip_items.add(peer_id(8), 5, GossipKind::status);
  EXPECT_EQ(gossip_items.take(1), std::vector{peer_id(8)});
  gossip_items.add(peer_id(9), 5, GossipKind::status);
  EXPECT_EQ(gossip_items.status_count(), 3u);
  EXPECT_EQ(gossip_items.size(), 10u);
  EXPECT_EQ(gossip_items.take(1), std::vector{peer_id(9)}) << "7 and 8 were sent before";
  for (int i = 0; i < 12; ++i)
    EXPECT_TRUE(std::ranges::all_of(gossip_items.take(1),
                                    [](const PeerId& id) { return id == peer_id(7) || id == peer_id(8) || id == peer_id(9); }));
  EXPECT_EQ(gossip_items.status_count(), 0u);
  EXPECT_EQ(gossip_items.take(8).size(), 7u);
}

TEST(GossipQueue, repeated_updates_do_not_grow_the_queue) {
  GossipQueue gossip_items;
  for (uint64_t turn = 0; turn < 20'000; ++turn) {
    gossip_items.add(peer_id(1 + turn % 50), 10, GossipKind::facts);
    if (turn % 3 == 0) (void)gossip_items.take(1);
    ASSERT_LE(gossip_items.positions(), 2 * gossip_items.size() + 64);
  }
  std::set<PeerId> taken;
  for (const auto& id : gossip_items.take(100)) EXPECT_TRUE(taken.insert(id).second);
  EXPECT_EQ(taken.size(), 50u);
}

TEST(RosterLayout, the_first_is_made_when_min_peers_are_alive_and_begins_with_step_0) {
  KeeperNetwork net(1);
  form(net, 5, 6);
  net.run_until(net.now + 30 * second);
  for (const auto& [number, node] : net.nodes) EXPECT_EQ(node.keeper->newest_layout(), nullptr);
  auto sixth = options(false);
  sixth.min_peers = 6;
  net.start(6, sixth, {1});
  net.run_until(net.now + 1 * second);
  EXPECT_EQ(net.keeper(1).newest_layout(), nullptr) << "one that loads its state does not count";
  set_all_alive(net);
  const Nanos there = net.now;
  ASSERT_NE(net.run_until(there + 3 * second, [&] { return all_hold(net, 1); }), never);
  EXPECT_EQ(net.keeper(3).newest_layout()->peers.size(), 6u);
  EXPECT_EQ(net.keeper(3).newest_layout()->first_step, 0u);
  EXPECT_EQ(net.keeper(3).layout_for(0), net.keeper(3).newest_layout());
  EXPECT_TRUE(net.keeper(3).take_layout_change());
  EXPECT_FALSE(net.keeper(3).take_layout_change());
}

TEST(RosterLayout, the_next_layout_lists_new_peers_after_relayout_period_and_two_steps) {
  KeeperNetwork net(2);
  form(net, 4, 4);
  ASSERT_NE(net.run_until(net.now + 5 * second, [&] { return all_hold(net, 1); }), never);
  const Nanos first = net.now;
  net.with(2, [](RosterKeeper& keeper, Nanos now) { keeper.note_opened(7, now); });
  net.start(5, options(false), {1});
  net.run_until(net.now + 1 * second);
  set_all_alive(net);
  net.run_until(first + times.relayout_period - 1 * second);
  EXPECT_TRUE(all_hold(net, 1));
  ASSERT_NE(net.run_until(first + times.relayout_period + 2 * second, [&] { return all_hold(net, 2); }), never);
  EXPECT_EQ(net.keeper(1).newest_layout()->peers.size(), 5u);
  EXPECT_EQ(net.keeper(1).newest_layout()->first_step, 9u);
  EXPECT_EQ(net.keeper(1).layout_for(8)->version, 1u);
}

TEST(RosterLayout, the_next_layout_is_made_at_once_if_new_peers_are_as_many_as_listed_ones) {
  KeeperNetwork net(5);
  form(net, 4, 4);
  ASSERT_NE(net.run_until(net.now + 5 * second, [&] { return all_hold(net, 1); }), never);
  for (uint64_t number = 5; number <= 8; ++number) net.start(number, options(false), {1});
  net.run_until(net.now + 1 * second);
  set_all_alive(net);
  ASSERT_NE(net.run_until(net.now + 3 * second, [&] { return all_hold(net, 2); }), never);
  EXPECT_EQ(net.keeper(1).newest_layout()->peers.size(), 8u);
}

TEST(RosterLayout, dead_peers_stay_in_the_layout_until_the_next_one) {
  KeeperNetwork net(3);
  form(net, 5, 5);
  ASSERT_NE(net.run_until(net.now + 5 * second, [&] { return all_hold(net, 1); }), never);
  net.crash(4);
  net.with(2, [](RosterKeeper& keeper, Nanos now) { keeper.known_dead(peer_id(4), "refused", now); });
  net.run_until(net.now + 2 * second);
  EXPECT_TRUE(net.keeper(1).gone(peer_id(4)));
  EXPECT_EQ(net.keeper(1).newest_layout()->peers.size(), 5u);
  ASSERT_NE(net.run_until(net.now + times.relayout_period + 2 * second, [&] { return all_hold(net, 2); }), never);
  EXPECT_EQ(net.keeper(1).newest_layout()->peers.size(), 4u);
}

TEST(RosterLayout, the_second_holder_makes_it_when_the_first_does_not) {
  // Each of three keepers runs alone, and believes the other two peers alive. The layout's key decides how long a keeper waits
  // before it makes the layout.
  for (uint64_t number = 1; number <= 3; ++number) {
    RosterKeeper keeper(options(true), peer_entry(number));
    auto all = options(true);
    all.min_peers = 3;
    RosterKeeper one(all, peer_entry(number));
    ASSERT_TRUE(one.start(0).ok());
    std::vector<PeerClaim> claims;
    for (uint64_t other = 1; other <= 3; ++other) {
      if (other != number) claims.push_back(peer_claim(other));
    }
    one.message(claims[0].entry.id, {.run = fnv1a64("demo"), .body = RosterGossip{}, .claims = claims}, 0);
    const auto makers = one.holders(layout_key("demo", 1));
    const auto maker_index = std::find(makers.begin(), makers.end(), peer_id(number)) - makers.begin();
    // The other two peers answer probes. Otherwise they would soon count as dead, and would no longer hold the layout's key.
    Nanos made = never;
    while (made == never && one.next_deadline() < 20 * second) {
      const Nanos now = one.next_deadline();
      one.woke(now);
      if (one.newest_layout() != nullptr) made = now;
      for (const auto& send : one.take_sends()) {
        const auto* probe = std::get_if<RosterProbe>(&send.message.body);
        if (probe != nullptr)
          one.message(send.to,
                      {.run = fnv1a64("demo"), .body = RosterAck{probe->origin, send.to, probe->sequence}, .claims = {}}, now);
      }
    }
    EXPECT_EQ(made / second, 5 * maker_index);
  }
}

TEST(RosterLayout, a_smaller_digest_of_an_equal_version_is_pulled_and_replaces_the_layout) {
  RosterKeeper keeper(options(true), peer_entry(1));
  ASSERT_TRUE(keeper.start(0).ok());
  keeper.woke(keeper.next_deadline());
  ASSERT_NE(keeper.newest_layout(), nullptr);
  (void)keeper.take_sends();
  RosterMessage message{.run = fnv1a64("demo"),
                        .layout_version = 1,
                        .layout_digest = keeper.newest_layout()->digest - 1,
                        .body = RosterGossip{.answer = true},
                        .claims = {peer_claim(2)}};
  for (int i = 0; i < 5; ++i) keeper.message(peer_id(2), message, 1);
  const auto sends = keeper.take_sends();
  EXPECT_EQ(std::count_if(sends.begin(), sends.end(),
                          [](const auto& one) { return std::holds_alternative<LayoutPull>(one.message.body); }),
            1)
      << "asked once";
  auto lesser = *layout(1, 0, 5);
  lesser.digest = keeper.newest_layout()->digest - 1;
  EXPECT_TRUE(keeper.adopt_layout(lesser, 2));
  EXPECT_EQ(keeper.newest_layout()->digest, lesser.digest);
  EXPECT_FALSE(keeper.adopt_layout(*layout(1, 0, 1), 2) && keeper.newest_layout()->digest > lesser.digest);
}

TEST(RosterLayout, unknown_members_are_requested_from_the_layouts_sender) {
  for (const bool answered : {true, false}) {
    auto all = options(false);
    all.seeds = {"seed"};
    RosterKeeper keeper(all, peer_entry(1));
    ASSERT_TRUE(keeper.start(0).ok());
    const auto run = fnv1a64("demo");
    keeper.message(peer_id(2),
                   {.run = run, .body = RosterWelcome{.sum = 0, .last = true, .parts = {}}, .claims = {peer_claim(2)}}, 0);
    ASSERT_TRUE(keeper.settled());
    (void)keeper.take_sends();
    keeper.message(peer_id(2), {.run = run, .body = LayoutPush{layout(1, 0, 5)}, .claims = {}}, 1);
    EXPECT_FALSE(keeper.settled());
    const auto sends = keeper.take_sends();
    EXPECT_TRUE(std::ranges::any_of(
        sends, [](const auto& one) { return one.to == peer_id(2) && std::holds_alternative<RosterHello>(one.message.body); }));
    if (answered) {
      keeper.message(peer_id(2), {.run = run, .body = RosterGossip{.answer = true}, .claims = {peer_claim(3), peer_claim(4)}},
                     2);
      EXPECT_FALSE(keeper.settled()) << "one is unknown still";
      keeper.message(peer_id(2), {.run = run, .body = RosterGossip{.answer = true}, .claims = {peer_claim(5)}}, 3);
      EXPECT_TRUE(keeper.settled());
      continue;
    }
    const Nanos until = 10 * times.gossip_period;
    for (Nanos now = 1; now < until && !keeper.settled(); now = keeper.next_deadline()) {
      // This message of peer 2 shows that peer 2 is alive, but has no entry of the missing members.
      keeper.message(peer_id(2), {.run = run, .body = RosterGossip{.answer = true}, .claims = {}}, now);
      keeper.woke(now);
    }
    EXPECT_TRUE(keeper.settled()) << "no peer knows the missing members";
  }
}

TEST(RosterLayout, a_layout_with_an_impossible_version_is_ignored) {
  RosterKeeper keeper(options(true), peer_entry(1));
  ASSERT_TRUE(keeper.start(0).ok());
  auto bad = *layout(1, 0);
  bad.version = ~uint64_t{0};
  EXPECT_FALSE(keeper.adopt_layout(bad, 1));
  bad.version = 0;
  EXPECT_FALSE(keeper.adopt_layout(bad, 1));
}

TEST(RosterLayout, a_reported_version_that_is_lost_does_not_block_the_next) {
  RosterKeeper keeper(options(true), peer_entry(1));
  ASSERT_TRUE(keeper.start(0).ok());
  keeper.message(peer_id(2),
                 {.run = fnv1a64("demo"),
                  .layout_version = 6,
                  .layout_digest = 1,
                  .body = RosterGossip{.answer = true},
                  .claims = {peer_claim(2, PeerStatus::left)}},
                 0);
  while (keeper.newest_layout() == nullptr && keeper.next_deadline() < 20 * second) keeper.woke(keeper.next_deadline());
  ASSERT_NE(keeper.newest_layout(), nullptr);
  EXPECT_EQ(keeper.newest_layout()->version, 7u);
}

TEST(RosterLayout, waits_for_a_reported_layout_while_its_holder_is_present) {
  for (const bool leaves : {false, true}) {
    RosterKeeper keeper(options(true), peer_entry(1));
    ASSERT_TRUE(keeper.start(0).ok());
    RosterMessage message{.run = fnv1a64("demo"),
                          .layout_version = 6,
                          .layout_digest = 1,
                          .body = RosterGossip{.answer = true},
                          .claims = {peer_claim(2, PeerStatus::joining)}};
    keeper.message(peer_id(2), message, 0);
    message.layout_version = 0;
    if (leaves) message.claims = {peer_claim(2, PeerStatus::left)};
    while (keeper.newest_layout() == nullptr && keeper.next_deadline() < 4 * second) {
      const Nanos now = keeper.next_deadline();
      keeper.message(peer_id(2), message, now);
      keeper.woke(now);
    }
    EXPECT_EQ(keeper.newest_layout() != nullptr, leaves);
  }
}

TEST(RosterLayout, given_dimensions_are_used_where_they_fit) {
  for (const bool fits : {true, false}) {
    auto all = options(true);
    all.min_peers = 6;
    all.dims = fits ? std::vector<uint32_t>{2, 3} : std::vector<uint32_t>{9, 9};
    RosterKeeper keeper(all, peer_entry(1));
    ASSERT_TRUE(keeper.start(0).ok());
    std::vector<PeerClaim> claims;
    for (uint64_t number = 2; number <= 6; ++number) claims.push_back(peer_claim(number));
    keeper.message(peer_id(2), {.run = fnv1a64("demo"), .body = RosterGossip{}, .claims = claims}, 0);
    const auto makers = keeper.holders(layout_key("demo", 1));
    while (keeper.newest_layout() == nullptr && keeper.next_deadline() < 60 * second) keeper.woke(keeper.next_deadline());
    ASSERT_NE(keeper.newest_layout(), nullptr);
    EXPECT_EQ(keeper.newest_layout()->dims == all.dims, fits && keeper.newest_layout()->peers.size() == 6);
  }
}

TEST(RosterLayout, a_reducer_is_in_no_layout_and_a_client_is) {
  KeeperNetwork net(4);
  auto all = options(true);
  all.min_peers = 3;
  net.start(1, all, {});
  all.found = false;
  auto client = peer_entry(2), reducer = peer_entry(3);
  client.facts.role = ElasticRole::client;
  reducer.facts.role = ElasticRole::reducer;
  net.start(2, all, {1}, client);
  net.start(3, all, {1}, reducer);
  net.start(4, all, {1});
  net.run_until(1 * second);
  set_all_alive(net);
  ASSERT_NE(net.run_until(10 * second, [&] { return all_hold(net, 1); }), never);
  const auto& newest = *net.keeper(1).newest_layout();
  EXPECT_LT(newest.rank_of(peer_id(2)), newest.peers.size());
  EXPECT_EQ(newest.rank_of(peer_id(3)), newest.peers.size());
  EXPECT_EQ(newest.peers.size(), 3u);
}

}  // namespace
}  // namespace unisono
