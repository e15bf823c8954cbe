// A coordinator under a layout with keys: no peer is expected by name.

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "elastic/formation/group_coordinator_test_support.h"
#include "elastic/layout/moshpit_key.h"

namespace unisono {
namespace {

using namespace formation;
using test::Desk;

// Sixteen peers with four keys, groups of four, and eight peers that are not in the layout.
struct KeyDesk : Desk {
  explicit KeyDesk(uint32_t peers = 16) {
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
  void come(uint32_t i, uint32_t key = 2, uint64_t step = 0) { say(i, with_key(i, key, step)); }
  void announce_key(uint32_t i, uint32_t key = 2) {
    auto one = with_key(i, key);
    one.pre = true;
    one.attempt = 0;
    say(i, one);
  }
  void expect_ignored(uint32_t i, const FormationMessage& message) {
    const auto before = coordinator.counters().ignored;
    say(i, message);
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

TEST(GroupCoordinatorKeys, closes_as_soon_as_a_whole_group_has_registered_whoever_it_is) {
  KeyDesk desk;
  for (const uint32_t i : {0u, 5u, 9u}) desk.come(i);
  EXPECT_TRUE(desk.got<Descriptor>().empty());
  desk.come(12);
  const auto group = desk.formed();
  EXPECT_EQ(group.members.size(), 4u);
  EXPECT_TRUE(group.line_complete);
  EXPECT_TRUE(group.missing.empty());
  EXPECT_EQ(group.slot.line, 2u);
}

TEST(GroupCoordinatorKeys, gives_the_members_their_slots_in_the_order_of_ranks) {
  KeyDesk desk;
  for (const uint32_t i : {0u, 5u, 9u, 12u}) desk.come(i);
  const auto group = desk.formed();
  const auto slots = draw_slots(group.id, 4);
  ASSERT_EQ(group.members.size(), 4u);
  for (uint32_t rank = 0; rank < 4; ++rank) EXPECT_EQ(group.members[rank].position, slots[rank]);
}

TEST(GroupCoordinatorKeys, waits_gather_timeout_for_a_whole_group_and_misses_nobody) {
  KeyDesk desk;
  desk.come(0);
  desk.come(1);
  desk.pass(desk.times.gather_timeout - 1);
  EXPECT_TRUE(desk.got<Descriptor>().empty());
  desk.pass(1);
  const auto group = desk.formed();
  EXPECT_EQ(group.members.size(), 2u);
  EXPECT_FALSE(group.line_complete);
  EXPECT_TRUE(group.missing.empty()) << "nobody can know who was to come";
  EXPECT_EQ(positions_of(group).size(), 2u);
}

TEST(GroupCoordinatorKeys, who_comes_alone_is_told_so) {
  KeyDesk desk;
  desk.come(0);
  desk.pass(desk.times.gather_timeout);
  const auto alone = desk.got<Alone>();
  ASSERT_EQ(alone.size(), 1u);
  EXPECT_TRUE(alone[0].second.missing.empty());
}

TEST(GroupCoordinatorKeys, waits_for_those_who_announced_themselves_and_cuts_the_group_at_its_size) {
  KeyDesk desk;
  for (uint32_t i = 0; i < 6; ++i) desk.announce_key(i);
  desk.coordinator.take_sends();
  for (uint32_t i = 0; i < 5; ++i) desk.come(i);
  EXPECT_TRUE(desk.got<Descriptor>().empty()) << "the sixth is in the round before";
  desk.come(5);
  GroupDescriptor group;
  std::vector<PeerId> full;
  for (const auto& send : desk.coordinator.take_sends()) {
    if (const auto* one = std::get_if<Descriptor>(&send.message)) group = one->group;
    if (const auto* one = std::get_if<Full>(&send.message); one != nullptr && !one->other_schema) full.push_back(send.to);
  }
  EXPECT_EQ(group.members.size(), 4u);
  EXPECT_EQ(positions_of(group), (std::set<uint32_t>{0, 1, 2, 3}));
  EXPECT_TRUE(group.line_complete);
  ASSERT_EQ(full.size(), 2u);
  for (const auto& peer : full) EXPECT_EQ(group.rank_of(peer), 4u);
  // A peer that lost the answer asks again.
  const auto left_out = static_cast<uint32_t>(std::ranges::find(desk.ids, full[0]) - desk.ids.begin());
  desk.come(left_out);
  EXPECT_EQ(desk.got<Full>().size(), 1u);
}

TEST(GroupCoordinatorKeys, whom_a_group_has_no_room_for_is_left_to_chance) {
  KeyDesk desk;
  std::vector<int> times(6);
  for (uint64_t step = 0; step < 300; ++step) {
    for (uint32_t i = 0; i < 6; ++i) {
      auto one = desk.with_key(i, 2, step);
      one.pre = true;
      one.attempt = 0;
      desk.say(i, one);
    }
    for (uint32_t i = 0; i < 6; ++i) desk.come(i, 2, step);
    for (const auto& [to, full] : desk.got<Full>())
      ++times[static_cast<size_t>(std::ranges::find(desk.ids, to) - desk.ids.begin())];
  }
  for (const int count : times) EXPECT_NEAR(count, 100, 45);
}

TEST(GroupCoordinatorKeys, descriptors_are_repeated_to_members_only) {
  KeyDesk desk;
  for (uint32_t i = 0; i < 6; ++i) desk.announce_key(i);
  for (uint32_t i = 0; i < 6; ++i) desk.come(i);
  desk.coordinator.take_sends();
  desk.pass(desk.times.coordinator_timeout / 4);
  EXPECT_EQ(desk.got<Descriptor>().size(), 4u);
}

TEST(GroupCoordinatorKeys, a_group_with_one_that_the_layout_does_not_name_is_not_complete) {
  KeyDesk desk;
  for (const uint32_t i : {0u, 5u, 9u, 20u}) desk.come(i);
  const auto group = desk.formed();
  EXPECT_EQ(group.members.size(), 4u);
  EXPECT_FALSE(group.members[group.rank_of(desk.ids[20])].in_layout);
  EXPECT_FALSE(group.line_complete);
}

TEST(GroupCoordinatorKeys, a_reducer_sits_beside_a_whole_group) {
  KeyDesk desk;
  auto reducer = desk.with_key(20, 2);
  reducer.role = ElasticRole::reducer;
  reducer.weighted = false;
  desk.say(20, reducer);
  for (const uint32_t i : {0u, 5u, 9u}) desk.come(i);
  EXPECT_TRUE(desk.got<Descriptor>().empty()) << "three have values";
  desk.come(12);
  const auto group = desk.formed();
  EXPECT_EQ(group.members.size(), 5u);
  EXPECT_TRUE(group.line_complete);
  std::set<uint32_t> slots;
  for (const auto& member : group.members) {
    if (member.role != ElasticRole::reducer) slots.insert(member.position);
  }
  EXPECT_EQ(slots.size(), 4u);
}

TEST(GroupCoordinatorKeys, who_is_gone_or_does_not_want_the_slot_any_more_is_not_in_the_group) {
  KeyDesk desk;
  for (uint32_t i = 0; i < 3; ++i) desk.come(i);
  desk.coordinator.peer_gone(desk.ids[0], desk.now);
  desk.say(1, Withdraw{desk.with_key(1, 2).slot, 1});
  for (uint32_t i = 3; i < 6; ++i) desk.come(i);
  const auto group = desk.formed();
  EXPECT_EQ(group.members.size(), 4u);
  EXPECT_EQ(group.rank_of(desk.ids[0]), 4u);
  EXPECT_EQ(group.rank_of(desk.ids[1]), 4u);
}

TEST(GroupCoordinatorKeys, of_those_who_only_announce_themselves_a_whole_group_opens_the_step) {
  KeyDesk desk;
  for (uint32_t i = 0; i < 3; ++i) desk.announce_key(i);
  EXPECT_EQ(desk.coordinator.take_opened(), std::nullopt);
  desk.announce_key(3);
  EXPECT_EQ(desk.coordinator.take_opened(), 0u);
}

TEST(GroupCoordinatorKeys, lists_of_the_missing_name_nobody_here) {
  KeyDesk desk;
  auto one = desk.with_key(0, 2);
  one.missing = {desk.ids[1], desk.ids[2]};
  desk.say(0, one);
  for (uint32_t i = 1; i < 4; ++i) desk.come(i);
  EXPECT_EQ(desk.formed().members.size(), 4u);
}

TEST(GroupCoordinatorKeys, a_key_that_there_is_not_is_refused) {
  KeyDesk desk;
  desk.expect_ignored(0, desk.with_key(0, 4));
}
TEST(GroupCoordinatorKeys, a_key_for_another_line_is_refused) {
  KeyDesk desk;
  auto one = desk.with_key(0, 2);
  one.cell = 3;
  desk.expect_ignored(0, one);
}
TEST(GroupCoordinatorKeys, a_slot_that_a_peer_chose_itself_is_refused) {
  KeyDesk desk;
  auto one = desk.with_key(0, 2);
  one.position = 1;
  desk.expect_ignored(0, one);
}
TEST(GroupCoordinatorKeys, one_that_says_wrongly_that_the_layout_names_it_is_refused) {
  KeyDesk desk;
  auto one = desk.with_key(20, 2);
  one.in_layout = true;
  desk.expect_ignored(20, one);
}
TEST(GroupCoordinatorKeys, who_says_that_it_is_late_need_not_be_expected) {
  KeyDesk desk;
  desk.expect_ignored(0, Late{desk.request(0).slot});
}
TEST(GroupCoordinatorKeys, who_will_not_come_is_not_waited_for_anyway) {
  KeyDesk desk;
  desk.expect_ignored(0, Withdraw{desk.request(0).slot, 1});
}

TEST(GroupCoordinatorKeys, where_all_are_one_group_they_are_expected_by_name) {
  KeyDesk desk(3);
  for (uint32_t i = 0; i < 2; ++i) desk.say(i, desk.request(i));
  EXPECT_TRUE(desk.got<Descriptor>().empty());
  desk.say(2, desk.request(2));
  const auto group = desk.formed();
  EXPECT_EQ(group.members.size(), 3u);
  EXPECT_TRUE(group.line_complete);
}

}  // namespace
}  // namespace unisono
