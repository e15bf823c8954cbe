// How layouts are used: which claims come with a layout, when it takes effect, and which peers coordinate its slots.

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <set>

#include "elastic/roster/roster_keeper_test_support.h"

namespace unisono {
namespace {

using test::about;
using test::founder;
using test::from_run;
using test::peer_claim;
using test::peer_id;
using test::run_answered;
using test::sends_of;
using test::times;

std::shared_ptr<const Layout> layout_of(uint64_t version, const std::vector<uint64_t>& numbers, uint64_t first_step = 0) {
  std::vector<PeerId> ids;
  for (const auto number : numbers) ids.push_back(peer_id(number));
  return std::make_shared<const Layout>(*make_layout({.run = "demo", .version = version, .first_step = first_step}, ids));
}

// Returns the keeper of peer 1. It knows peers 1 … 8, and holds a layout of peers 1, 2 and 3.
RosterKeeper keeper_of_eight() {
  auto keeper = founder(8);
  EXPECT_TRUE(keeper.adopt_layout(*layout_of(1, {1, 2, 3}), 1));
  (void)keeper.take_sends();
  return keeper;
}

SlotName slot_of(const Layout& layout, uint64_t step) {
  return {.layout_version = layout.version, .layout_digest = layout.digest, .step = step, .round = 0, .line = 0};
}

TEST(RosterLayoutUse, a_layout_push_carries_the_entries_of_new_members) {
  auto keeper = keeper_of_eight();
  keeper.message(peer_id(2), from_run(LayoutPush{layout_of(2, {1, 2, 3, 5, 6})}), 2);
  keeper.message(peer_id(4), from_run(LayoutPull{2}), 3);
  const auto pushes = sends_of<LayoutPush>(keeper);
  ASSERT_EQ(pushes.size(), 4u) << "it is handed on to three, and given to one that asked";
  for (const auto& push : pushes) {
    EXPECT_EQ(std::get<LayoutPush>(push.message.body).layout->version, 2u);
    for (const uint64_t number : {5, 6}) {
      ASSERT_NE(about(push, peer_id(number)), nullptr) << number;
      EXPECT_EQ(about(push, peer_id(number))->entry.facts.addresses, peer_claim(number).entry.facts.addresses);
    }
    for (const uint64_t number : {1, 2, 3})
      EXPECT_EQ(about(push, peer_id(number)), nullptr) << "whoever has the layout before it knows " << number;
  }
}

TEST(RosterLayoutUse, a_peer_that_gets_only_the_layout_knows_all_members) {
  auto maker = keeper_of_eight();
  maker.message(peer_id(2), from_run(LayoutPush{layout_of(2, {1, 2, 3, 7, 8})}), 2);
  auto reader = founder(3);
  for (const auto& push : sends_of<LayoutPush>(maker)) reader.message(peer_id(2), push.message, 3);
  EXPECT_EQ(reader.newest_layout()->version, 2u);
  EXPECT_TRUE(reader.settled());
}

TEST(RosterLayoutUse, with_short_steps_the_layout_begins_after_gossip_has_spread_it) {
  struct Case {
    Nanos between;
    uint64_t later;
  };
  for (const auto& [between, later] : {Case{10 * second, 0}, Case{times.gossip_period / 2, 1},
                                       Case{times.gossip_period / 20, 10}, Case{times.gossip_period / 2000, 64}}) {
    auto keeper = founder(3);
    for (uint64_t step = 0; step < 50; ++step) keeper.note_opened(step, static_cast<Nanos>(step) * between);
    const Nanos now = 50 * between;
    ASSERT_TRUE(keeper.adopt_layout(*layout_of(1, {1, 2}), now));
    (void)run_answered(keeper, now, now + 2 * times.relayout_period + 15 * second);
    ASSERT_EQ(keeper.newest_layout()->version, 2u);
    EXPECT_EQ(keeper.newest_layout()->first_step, 49 + 2 + later) << between;
  }
}

TEST(RosterLayoutUse, coordinators_are_peers_of_the_slots_layout_while_one_is_alive) {
  auto keeper = founder(8);
  const auto layout = layout_of(1, {2, 3, 4, 5});
  ASSERT_TRUE(keeper.adopt_layout(*layout, 1));
  std::set<PeerId> named(layout->peers.begin(), layout->peers.end());
  const auto asked = [&] {
    std::set<PeerId> coordinators;
    for (uint64_t step = 0; step < 50; ++step) {
      const auto slot = slot_of(*layout, step);
      const auto holders = keeper.coordinators(slot_key("demo", slot), slot);
      coordinators.insert(holders.begin(), holders.end());
      EXPECT_EQ(holders, record_holders(slot_key("demo", slot), std::vector(named.begin(), named.end())));
    }
    return coordinators;
  };
  EXPECT_EQ(asked(), named);
  for (const uint64_t dead : {4, 3, 5}) {
    keeper.known_dead(peer_id(dead), "refused", 2);
    named.erase(peer_id(dead));
    EXPECT_EQ(asked(), named) << "no unauthenticated peer as long as one is left";
  }
  keeper.known_dead(peer_id(2), "refused", 3);
  named = {peer_id(1), peer_id(6), peer_id(7), peer_id(8)};
  EXPECT_EQ(asked(), named);
}

TEST(RosterLayoutUse, any_peer_may_coordinate_a_slot_of_an_unknown_layout) {
  auto keeper = founder(8);
  const auto layout = layout_of(1, {2, 3, 4});
  const auto slot = slot_of(*layout, 9);
  const auto key = slot_key("demo", slot);
  EXPECT_EQ(keeper.coordinators(key, slot), keeper.holders(key));
  ASSERT_TRUE(keeper.adopt_layout(*layout, 1));
  EXPECT_EQ(keeper.coordinators(key, slot), record_holders(key, layout->peers));
}

TEST(RosterLayoutUse, a_client_in_the_layout_is_not_a_coordinator) {
  auto keeper = founder(4);
  auto client = peer_claim(3);
  client.entry.facts.role = ElasticRole::client;
  client.entry.facts.counter = 1;
  keeper.message(peer_id(2), from_run(RosterGossip{.answer = true}, {client}), 1);
  const auto layout = layout_of(1, {2, 3});
  ASSERT_TRUE(keeper.adopt_layout(*layout, 1));
  const auto slot = slot_of(*layout, 0);
  EXPECT_EQ(keeper.coordinators(slot_key("demo", slot), slot), std::vector{peer_id(2)});
}

}  // namespace
}  // namespace unisono
