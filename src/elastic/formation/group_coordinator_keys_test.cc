// A coordinator under a layout with keys, which expects no peer by name.

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "elastic/formation/group_coordinator_test_support.h"
#include "elastic/layout/moshpit_key.h"

namespace unisono {
namespace {

using namespace formation;
using test::CoordinatorFixture;

// Sixteen peers with four keys, so that each group has four members. Eight more peers are outside the layout.
struct KeyedCoordinatorFixture : CoordinatorFixture {
  explicit KeyedCoordinatorFixture(uint32_t peers = 16) {
    ids = test::peer_ids(24);
    layout = *make_layout({.run = "run", .version = 1, .grid = GridKind::chunk_keys, .max_group = 4},
                          {ids.begin(), ids.begin() + peers});
    view.layouts.clear();
    view.hold(layout);
    view.reachable = ids;
  }
  Register with_key(uint32_t i, uint32_t key, uint64_t step = 0, uint32_t round = 0) const {
    auto one = request(i, step, round);
    one.cell = one.slot.line = key;
    return one;
  }
  void register_with_key(uint32_t i, uint32_t key = 2, uint64_t step = 0) { deliver(i, with_key(i, key, step)); }
  void pre_register_with_key(uint32_t i, uint32_t key = 2) {
    auto one = with_key(i, key);
    one.pre = true;
    one.attempt = 0;
    deliver(i, one);
  }
  void expect_ignored(uint32_t i, const FormationMessage& message) {
    const auto before = coordinator.counters().ignored;
    deliver(i, message);
    EXPECT_EQ(coordinator.counters().ignored, before + 1);
    EXPECT_EQ(coordinator.open_slots(), 0u);
    EXPECT_TRUE(coordinator.take_sends().empty());
  }
};

std::set<uint32_t> positions_of(const GroupDescriptor& group) {
  std::set<uint32_t> positions;
  for (const auto& member : group.members) positions.insert(member.position);
  return positions;
}

TEST(GroupCoordinatorKeys, closes_as_soon_as_any_m_peers_have_registered) {
  KeyedCoordinatorFixture fixture;
  for (const uint32_t i : {0u, 5u, 9u}) fixture.register_with_key(i);
  EXPECT_TRUE(fixture.take_answers<Descriptor>().empty());
  fixture.register_with_key(12);
  const auto group = fixture.formed();
  EXPECT_EQ(group.members.size(), 4u);
  EXPECT_TRUE(group.line_complete);
  EXPECT_TRUE(group.missing.empty());
  EXPECT_EQ(group.slot.line, 2u);
}

TEST(GroupCoordinatorKeys, gives_the_members_their_slots_in_the_order_of_ranks) {
  KeyedCoordinatorFixture fixture;
  for (const uint32_t i : {0u, 5u, 9u, 12u}) fixture.register_with_key(i);
  const auto group = fixture.formed();
  const auto slots = draw_slots(group.id, 4);
  ASSERT_EQ(group.members.size(), 4u);
  for (uint32_t rank = 0; rank < 4; ++rank) EXPECT_EQ(group.members[rank].position, slots[rank]);
}

TEST(GroupCoordinatorKeys, waits_gather_timeout_for_a_whole_group_and_reports_no_missing_peers) {
  KeyedCoordinatorFixture fixture;
  fixture.register_with_key(0);
  fixture.register_with_key(1);
  fixture.advance(fixture.times.gather_timeout - 1);
  EXPECT_TRUE(fixture.take_answers<Descriptor>().empty());
  fixture.advance(1);
  const auto group = fixture.formed();
  EXPECT_EQ(group.members.size(), 2u);
  EXPECT_FALSE(group.line_complete);
  EXPECT_TRUE(group.missing.empty()) << "under keys no peer is expected by name";
  EXPECT_EQ(positions_of(group).size(), 2u);
}

TEST(GroupCoordinatorKeys, a_peer_without_a_group_gets_alone) {
  KeyedCoordinatorFixture fixture;
  fixture.register_with_key(0);
  fixture.advance(fixture.times.gather_timeout);
  const auto alone = fixture.take_answers<Alone>();
  ASSERT_EQ(alone.size(), 1u);
  EXPECT_TRUE(alone[0].second.missing.empty());
}

TEST(GroupCoordinatorKeys, waits_for_pre_registered_peers_and_limits_the_group_to_m) {
  KeyedCoordinatorFixture fixture;
  for (uint32_t i = 0; i < 6; ++i) fixture.pre_register_with_key(i);
  fixture.coordinator.take_sends();
  for (uint32_t i = 0; i < 5; ++i) fixture.register_with_key(i);
  EXPECT_TRUE(fixture.take_answers<Descriptor>().empty()) << "the sixth is in the round before";
  fixture.register_with_key(5);
  GroupDescriptor group;
  std::vector<PeerId> full;
  for (const auto& send : fixture.coordinator.take_sends()) {
    if (const auto* one = std::get_if<Descriptor>(&send.message)) group = one->group;
    if (const auto* one = std::get_if<Full>(&send.message); one != nullptr && !one->other_schema) full.push_back(send.to);
  }
  EXPECT_EQ(group.members.size(), 4u);
  EXPECT_EQ(positions_of(group), (std::set<uint32_t>{0, 1, 2, 3}));
  EXPECT_TRUE(group.line_complete);
  ASSERT_EQ(full.size(), 2u);
  for (const auto& peer : full) EXPECT_EQ(group.rank_of(peer), 4u);
  // The left-out peer registers again, as if its FULL had been lost, and gets FULL again.
  const auto left_out = static_cast<uint32_t>(std::ranges::find(fixture.ids, full[0]) - fixture.ids.begin());
  fixture.register_with_key(left_out);
  EXPECT_EQ(fixture.take_answers<Full>().size(), 1u);
}

TEST(GroupCoordinatorKeys, chance_decides_which_surplus_peers_are_left_out) {
  KeyedCoordinatorFixture fixture;
  std::vector<int> times(6);
  for (uint64_t step = 0; step < 300; ++step) {
    for (uint32_t i = 0; i < 6; ++i) {
      auto one = fixture.with_key(i, 2, step);
      one.pre = true;
      one.attempt = 0;
      fixture.deliver(i, one);
    }
    for (uint32_t i = 0; i < 6; ++i) fixture.register_with_key(i, 2, step);
    for (const auto& [to, full] : fixture.take_answers<Full>())
      ++times[static_cast<size_t>(std::ranges::find(fixture.ids, to) - fixture.ids.begin())];
  }
  for (const int count : times) EXPECT_NEAR(count, 100, 45);
}

TEST(GroupCoordinatorKeys, descriptors_are_repeated_to_members_only) {
  KeyedCoordinatorFixture fixture;
  for (uint32_t i = 0; i < 6; ++i) fixture.pre_register_with_key(i);
  for (uint32_t i = 0; i < 6; ++i) fixture.register_with_key(i);
  fixture.coordinator.take_sends();
  fixture.advance(fixture.times.coordinator_timeout / 4);
  EXPECT_EQ(fixture.take_answers<Descriptor>().size(), 4u);
}

TEST(GroupCoordinatorKeys, a_group_with_an_unlisted_peer_is_not_complete) {
  KeyedCoordinatorFixture fixture;
  for (const uint32_t i : {0u, 5u, 9u, 20u}) fixture.register_with_key(i);
  const auto group = fixture.formed();
  EXPECT_EQ(group.members.size(), 4u);
  EXPECT_FALSE(group.members[group.rank_of(fixture.ids[20])].in_layout);
  EXPECT_FALSE(group.line_complete);
}

TEST(GroupCoordinatorKeys, a_reducer_is_added_to_a_whole_group) {
  KeyedCoordinatorFixture fixture;
  auto reducer = fixture.with_key(20, 2);
  reducer.role = ElasticRole::reducer;
  reducer.weighted = false;
  fixture.deliver(20, reducer);
  for (const uint32_t i : {0u, 5u, 9u}) fixture.register_with_key(i);
  EXPECT_TRUE(fixture.take_answers<Descriptor>().empty()) << "three have values";
  fixture.register_with_key(12);
  const auto group = fixture.formed();
  EXPECT_EQ(group.members.size(), 5u);
  EXPECT_TRUE(group.line_complete);
  std::set<uint32_t> slots;
  for (const auto& member : group.members) {
    if (member.role != ElasticRole::reducer) slots.insert(member.position);
  }
  EXPECT_EQ(slots.size(), 4u);
}

TEST(GroupCoordinatorKeys, a_peer_that_is_gone_or_withdrew_is_not_in_the_group) {
  KeyedCoordinatorFixture fixture;
  for (uint32_t i = 0; i < 3; ++i) fixture.register_with_key(i);
  fixture.coordinator.peer_gone(fixture.ids[0], fixture.now);
  fixture.deliver(1, Withdraw{fixture.with_key(1, 2).slot, 1});
  for (uint32_t i = 3; i < 6; ++i) fixture.register_with_key(i);
  const auto group = fixture.formed();
  EXPECT_EQ(group.members.size(), 4u);
  EXPECT_EQ(group.rank_of(fixture.ids[0]), 4u);
  EXPECT_EQ(group.rank_of(fixture.ids[1]), 4u);
}

TEST(GroupCoordinatorKeys, m_pre_registrations_open_the_step) {
  KeyedCoordinatorFixture fixture;
  for (uint32_t i = 0; i < 3; ++i) fixture.pre_register_with_key(i);
  EXPECT_EQ(fixture.coordinator.take_opened(), std::nullopt);
  fixture.pre_register_with_key(3);
  EXPECT_EQ(fixture.coordinator.take_opened(), 0u);
}

TEST(GroupCoordinatorKeys, missing_lists_have_no_effect) {
  KeyedCoordinatorFixture fixture;
  auto one = fixture.with_key(0, 2);
  one.missing = {fixture.ids[1], fixture.ids[2]};
  fixture.deliver(0, one);
  for (uint32_t i = 1; i < 4; ++i) fixture.register_with_key(i);
  EXPECT_EQ(fixture.formed().members.size(), 4u);
}

TEST(GroupCoordinatorKeys, a_key_out_of_range_is_refused) {
  KeyedCoordinatorFixture fixture;
  fixture.expect_ignored(0, fixture.with_key(0, 4));
}
TEST(GroupCoordinatorKeys, a_key_for_another_line_is_refused) {
  KeyedCoordinatorFixture fixture;
  auto one = fixture.with_key(0, 2);
  one.cell = 3;
  fixture.expect_ignored(0, one);
}
TEST(GroupCoordinatorKeys, a_slot_that_a_peer_chose_itself_is_refused) {
  KeyedCoordinatorFixture fixture;
  auto one = fixture.with_key(0, 2);
  one.position = 1;
  fixture.expect_ignored(0, one);
}
TEST(GroupCoordinatorKeys, an_unlisted_peer_that_claims_to_be_listed_is_refused) {
  KeyedCoordinatorFixture fixture;
  auto one = fixture.with_key(20, 2);
  one.in_layout = true;
  fixture.expect_ignored(20, one);
}
TEST(GroupCoordinatorKeys, a_late_message_is_ignored) {
  KeyedCoordinatorFixture fixture;
  fixture.expect_ignored(0, Late{fixture.request(0).slot});
}
TEST(GroupCoordinatorKeys, a_withdrawal_without_a_registration_is_ignored) {
  KeyedCoordinatorFixture fixture;
  fixture.expect_ignored(0, Withdraw{fixture.request(0).slot, 1});
}

TEST(GroupCoordinatorKeys, with_a_single_group_peers_are_expected_by_name) {
  KeyedCoordinatorFixture fixture(3);
  for (uint32_t i = 0; i < 2; ++i) fixture.deliver(i, fixture.request(i));
  EXPECT_TRUE(fixture.take_answers<Descriptor>().empty());
  fixture.deliver(2, fixture.request(2));
  const auto group = fixture.formed();
  EXPECT_EQ(group.members.size(), 3u);
  EXPECT_TRUE(group.line_complete);
}

}  // namespace
}  // namespace unisono
