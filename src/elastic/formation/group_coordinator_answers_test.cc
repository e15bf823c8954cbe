// A coordinator's answers to peers without a group, and the slots that it forgets.

#include <gtest/gtest.h>

#include "elastic/formation/group_coordinator_test_support.h"

namespace unisono {
namespace {

using namespace formation;
using test::Desk;

TEST(GroupCoordinatorAnswers, one_that_nobody_joins_is_told_so_and_who_was_missing) {
  Desk desk;
  desk.enter(0);
  desk.pass(desk.times.gather_timeout);
  const auto alone = desk.got<Alone>();
  ASSERT_EQ(alone.size(), 1u);
  EXPECT_EQ(alone[0].first, desk.ids[0]);
  EXPECT_EQ(alone[0].second.missing.size(), 3u);
  EXPECT_FALSE(alone[0].second.no_reducer);
  EXPECT_EQ(desk.coordinator.counters().alone, 1u);
}

TEST(GroupCoordinatorAnswers, the_last_of_a_line_is_alone_at_once) {
  Desk desk;
  for (uint32_t i = 1; i < 4; ++i) desk.view.dead.insert(desk.ids[i]);
  desk.enter(0);
  EXPECT_EQ(desk.got<Alone>().size(), 1u);
}

TEST(GroupCoordinatorAnswers, reducers_alone_have_nothing_to_average) {
  Desk desk;
  for (uint32_t i = 1; i < 4; ++i) desk.view.dead.insert(desk.ids[i]);
  auto reducer = desk.request(5);
  reducer.role = ElasticRole::reducer;
  reducer.pre = true;
  desk.say(5, reducer);
  desk.enter(0);
  reducer.pre = false;
  reducer.attempt = 2;
  desk.say(5, reducer);
  EXPECT_EQ(desk.got<Alone>().size(), 2u) << "one peer with values, and a reducer";
}

TEST(GroupCoordinatorAnswers, a34_a_group_of_clients_has_nobody_to_own_chunks) {
  Desk desk;
  for (uint32_t i = 0; i < 4; ++i) {
    auto request = desk.request(i);
    request.role = ElasticRole::client;
    desk.say(i, request);
  }
  const auto alone = desk.got<Alone>();
  ASSERT_EQ(alone.size(), 4u);
  EXPECT_TRUE(alone[0].second.no_reducer);
  EXPECT_TRUE(alone[0].second.missing.empty());
}

TEST(GroupCoordinatorAnswers, a34_a_reducer_owns_chunks) {
  Desk desk;
  auto reducer = desk.request(5);
  reducer.role = ElasticRole::reducer;
  reducer.weighted = false;
  desk.say(5, reducer);
  for (uint32_t i = 0; i < 4; ++i) desk.enter(i);
  const auto group = desk.formed();
  const auto rank = group.rank_of(desk.ids[5]);
  ASSERT_LT(rank, group.members.size());
  EXPECT_EQ(group.members[rank].role, ElasticRole::reducer);
  EXPECT_FALSE(group.members[rank].weighted);
  EXPECT_GT(group.chunk_counts[rank], 0u);
}

TEST(GroupCoordinatorAnswers, more_than_two_full_groups_do_not_fit) {
  Desk desk({4}, 2);  // a group has at most four members
  for (uint32_t i = 0; i < 3; ++i) desk.enter(i);
  desk.enter(4);
  desk.enter(5);
  const auto full = desk.got<Full>();
  ASSERT_EQ(full.size(), 1u);
  EXPECT_EQ(full[0].first, desk.ids[5]);
  EXPECT_FALSE(full[0].second.other_schema);
  desk.enter(3);
  const auto group = desk.formed();
  EXPECT_EQ(group.members.size(), 4u);
  EXPECT_EQ(group.rank_of(desk.ids[4]), 4u) << "the member of the layout has taken the peer outside the layout's place";
}

TEST(GroupCoordinatorAnswers, one_that_does_not_fit_is_not_waited_for_though_it_announced_itself) {
  Desk desk({4}, 2);
  desk.announce(4);
  for (uint32_t i = 0; i < 3; ++i) desk.enter(i);
  desk.enter(5);
  desk.got<Full>();
  desk.enter(4);
  EXPECT_EQ(desk.got<Full>().size(), 1u);
  desk.enter(3);
  EXPECT_EQ(desk.formed().members.size(), 4u);
}

TEST(GroupCoordinatorAnswers, one_that_averages_something_else_is_absent) {
  Desk desk;
  auto request = desk.request(0);
  request.schema = 6;
  desk.say(0, request);
  const auto full = desk.got<Full>();
  ASSERT_EQ(full.size(), 1u);
  EXPECT_TRUE(full[0].second.other_schema);
  EXPECT_EQ(desk.coordinator.open_slots(), 0u);
}

TEST(GroupCoordinatorAnswers, one_that_comes_after_the_group_was_formed_is_told_how_long_ago) {
  Desk desk;
  for (uint32_t i = 0; i < 4; ++i) desk.enter(i);
  desk.got<Descriptor>();
  desk.pass(1234 * millisecond);
  desk.enter(5);
  const auto closed = desk.got<Closed>();
  ASSERT_EQ(closed.size(), 1u);
  EXPECT_EQ(closed[0].second, (Closed{desk.request(0).slot, 1, 1234}));
}

TEST(GroupCoordinatorAnswers, a_member_that_asks_again_gets_its_group_again) {
  Desk desk;
  for (uint32_t i = 0; i < 4; ++i) desk.enter(i);
  const auto group = desk.formed();
  desk.enter(2);
  const auto again = desk.got<Descriptor>();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].second.group, group);
}

TEST(GroupCoordinatorAnswers, one_that_was_alone_and_asks_again_is_told_so_again) {
  Desk desk;
  desk.enter(0);
  desk.pass(desk.times.gather_timeout);
  desk.got<Alone>();
  desk.enter(0);
  EXPECT_EQ(desk.got<Alone>().size(), 1u);
  desk.enter(1);
  EXPECT_EQ(desk.got<Closed>().size(), 1u);
}

TEST(GroupCoordinatorAnswers, descriptors_are_repeated_until_acknowledged) {
  Desk desk;
  for (uint32_t i = 0; i < 4; ++i) desk.enter(i);
  const auto id = desk.formed().id;
  for (const uint32_t i : {0u, 1u}) desk.say(i, DescriptorAck{id});
  desk.pass(desk.times.coordinator_timeout / 4);
  EXPECT_EQ(desk.got<Descriptor>().size(), 2u);
  for (const uint32_t i : {2u, 3u}) desk.say(i, DescriptorAck{id});
  desk.pass(desk.times.coordinator_timeout);
  EXPECT_TRUE(desk.got<Descriptor>().empty());
}

TEST(GroupCoordinatorAnswers, descriptors_are_not_repeated_for_ever_nor_to_the_dead) {
  Desk desk;
  for (uint32_t i = 0; i < 4; ++i) desk.enter(i);
  desk.formed();
  desk.coordinator.peer_gone(desk.ids[0], desk.now);
  desk.pass(desk.times.coordinator_timeout / 4);
  EXPECT_EQ(desk.got<Descriptor>().size(), 3u);
  desk.pass(3 * desk.times.coordinator_timeout);
  desk.got<Descriptor>();
  desk.pass(10 * second);
  EXPECT_TRUE(desk.got<Descriptor>().empty());
}

TEST(GroupCoordinatorAnswers, a_slot_of_a_replaced_layout_is_answered_with_the_newer_one) {
  Desk desk;
  desk.enter(0);
  desk.got<Pending>();
  const auto newer = test::layout_of(desk.ids, 2);
  desk.view.hold(newer);
  desk.enter(1);
  const auto stale = desk.got<StaleLayout>();
  ASSERT_EQ(stale.size(), 1u);
  EXPECT_EQ(stale[0].first, desk.ids[1]);
  EXPECT_EQ(stale[0].second.newer, newer);
  desk.pass(desk.times.coordinator_timeout / 4);
  const auto told = desk.got<StaleLayout>();
  ASSERT_EQ(told.size(), 1u) << "and so are those who wait already";
  EXPECT_EQ(told[0].first, desk.ids[0]);
  EXPECT_EQ(desk.coordinator.open_slots(), 0u);
}

TEST(GroupCoordinatorAnswers, of_two_layouts_of_one_version_only_one_gets_groups) {
  Desk desk;
  auto other = test::layout_of({desk.ids[0], desk.ids[1], desk.ids[2], desk.ids[4]}, 1, {4});
  const bool wins = other.digest < desk.layout.digest;
  auto request = desk.request(0);
  const auto place = seek_request(other, desk.ids[0], 0, 0);
  request.slot = place.slot;
  request.cell = place.cell;
  request.position = place.position;
  desk.say(0, request);
  EXPECT_EQ(desk.got<NeedLayout>().size(), wins ? 1u : 0u);
  if (wins) {
    desk.say(0, LayoutReply{other});
    for (const auto& layout : desk.coordinator.take_layouts()) desk.view.hold(layout);
    desk.say(0, request);
  }
  desk.got<Pending>();
  desk.enter(1);
  EXPECT_EQ(desk.got<StaleLayout>().size(), wins ? 1u : 0u) << "the smaller digest wins";
}

TEST(GroupCoordinatorAnswers, a_layout_that_it_lacks_is_pulled_from_the_member) {
  Desk desk;
  desk.view.layouts.clear();
  desk.enter(0);
  ASSERT_EQ(desk.got<NeedLayout>().size(), 1u);
  desk.say(0, LayoutReply{desk.layout});
  const auto layouts = desk.coordinator.take_layouts();
  ASSERT_EQ(layouts.size(), 1u);
  EXPECT_EQ(layouts[0], desk.layout);
  desk.view.hold(layouts[0]);
  desk.enter(0);
  EXPECT_EQ(desk.got<Pending>().size(), 1u);
}

TEST(GroupCoordinatorAnswers, layouts_that_it_did_not_ask_for_are_ignored) {
  Desk desk;
  desk.say(0, LayoutReply{test::layout_of(desk.ids, 2)});
  EXPECT_TRUE(desk.coordinator.take_layouts().empty());
  EXPECT_EQ(desk.coordinator.counters().ignored, 1u);
}

TEST(GroupCoordinatorAnswers, a_place_that_the_layout_does_not_give_is_ignored) {
  Desk desk({2, 2});
  std::vector<Register> wrong(5, desk.request(0));
  ++wrong[0].cell;
  wrong[1].position ^= 1;
  wrong[2].slot.line ^= 1;
  wrong[3].in_layout = false;
  wrong[4].slot.line = 77;
  for (const auto& request : wrong) desk.say(0, request);
  EXPECT_TRUE(desk.coordinator.take_sends().empty());
  EXPECT_EQ(desk.coordinator.counters().ignored, 5u);
  EXPECT_EQ(desk.coordinator.open_slots(), 0u);
}

TEST(GroupCoordinatorAnswers, a_layout_is_not_used_before_its_first_step) {
  Desk desk;
  const auto later = test::layout_of(desk.ids, 2, {8}, 10);
  desk.view.hold(later);
  const auto place = seek_request(later, desk.ids[0], 9, 0);
  auto request = desk.request(0);
  request.slot = place.slot;
  request.cell = place.cell;
  request.position = place.position;
  desk.say(0, request);
  EXPECT_EQ(desk.coordinator.counters().ignored, 1u);
}

TEST(GroupCoordinatorAnswers, messages_for_members_are_ignored) {
  Desk desk;
  desk.say(0, Pending{desk.request(0).slot, 1, 1, 1});
  desk.say(0, Decline{{1, 2}, desk.request(0).slot});
  EXPECT_EQ(desk.coordinator.counters().ignored, 2u);
}

TEST(GroupCoordinatorAnswers, the_first_registration_opens_a_step) {
  Desk desk;
  desk.enter(0, 7);
  EXPECT_EQ(desk.coordinator.take_opened(), 7u);
  desk.enter(1, 7);
  EXPECT_EQ(desk.coordinator.take_opened(), std::nullopt);
  for (const auto& [to, pending] : desk.got<Pending>()) EXPECT_EQ(pending.steps_opened, 8u);
}

TEST(GroupCoordinatorAnswers, a_step_that_nobody_has_reached_is_not_opened) {
  Desk desk;
  desk.view.opened = 6;
  for (const uint64_t step : {6 + steps_ahead_max + 1, (uint64_t{1} << 53) - 1}) {
    desk.enter(0, step);
    desk.enter(1, step);
  }
  EXPECT_EQ(desk.coordinator.counters().ignored, 4u);
  EXPECT_EQ(desk.coordinator.take_opened(), std::nullopt);
  desk.enter(0, 5);
  EXPECT_TRUE(desk.got<Closed>().empty()) << "what all others are in is not past";
  desk.enter(0, 6 + steps_ahead_max);
  EXPECT_EQ(desk.coordinator.take_opened(), 6 + steps_ahead_max) << "who was cut off for long";
}

TEST(GroupCoordinatorAnswers, slots_of_steps_long_past_are_given_up) {
  Desk desk;
  desk.enter(0, 5);
  desk.enter(1, 6);
  desk.got<Pending>();
  desk.enter(2, 7);
  desk.enter(2, 8);
  const auto closed = desk.got<Closed>();
  ASSERT_EQ(closed.size(), 1u) << "averaging step 5, when three later ones are open";
  EXPECT_EQ(closed[0].first, desk.ids[0]);
  EXPECT_EQ(closed[0].second.steps_opened, 9u);
  desk.enter(3, 5);
  EXPECT_EQ(desk.got<Closed>().size(), 1u) << "nor are they opened again";
  EXPECT_EQ(desk.coordinator.open_slots(), 3u);
}

TEST(GroupCoordinatorAnswers, closed_slots_are_remembered_for_a_minute) {
  Desk desk;
  for (uint32_t i = 0; i < 4; ++i) desk.enter(i);
  desk.got<Descriptor>();
  desk.pass(60 * second - 1);
  EXPECT_EQ(desk.coordinator.closed_slots(), 1u);
  desk.pass(1);
  EXPECT_EQ(desk.coordinator.closed_slots(), 0u);
  EXPECT_EQ(desk.coordinator.next_deadline(), never);
}

TEST(GroupCoordinatorAnswers, fast_steps_do_not_fill_the_memory) {
  Desk desk;
  for (uint64_t step = 0; step < 3 * closed_max; ++step) {
    desk.coordinator.take_sends();
    for (uint32_t i = 0; i < 4; ++i) desk.enter(i, step);
    const auto id = desk.formed().id;
    for (uint32_t i = 0; i < 2; ++i) desk.say(i, DescriptorAck{id});
    desk.pass(millisecond);
  }
  EXPECT_EQ(desk.coordinator.closed_slots(), closed_max);
  EXPECT_EQ(desk.coordinator.open_slots(), 0u);
  desk.coordinator.take_sends();
  desk.enter(0, 0);
  EXPECT_EQ(desk.got<Closed>().size(), 1u) << "the number of the averaging step says that it is over";
}

TEST(GroupCoordinatorAnswers, slots_made_by_early_registrations_are_bounded) {
  Desk desk;
  for (uint64_t step = 0; step < 2 * slots_open_max; ++step) desk.say(0, Late{desk.request(0, step).slot});
  EXPECT_EQ(desk.coordinator.open_slots(), slots_open_max);
  for (uint32_t i = 0; i < 4; ++i) desk.enter(i, 0);
  EXPECT_EQ(desk.formed().members.size(), 4u) << "and make room for a real one";
}

TEST(GroupCoordinatorAnswers, registered_slots_are_bounded_and_a_newcomer_is_not_answered) {
  Desk desk;
  auto request = desk.request(0, 0);
  for (uint32_t round = 0; round < slots_open_max; ++round) {
    request.slot.round = round;
    desk.say(0, request);
  }
  EXPECT_EQ(desk.got<Pending>().size(), slots_open_max);
  request.slot.round = slots_open_max;
  desk.say(0, request);
  EXPECT_TRUE(desk.coordinator.take_sends().empty());
  EXPECT_EQ(desk.coordinator.open_slots(), slots_open_max);
}

TEST(GroupCoordinatorAnswers, announcements_of_peers_that_never_come_are_forgotten) {
  Desk desk;
  desk.announce(0);
  desk.announce(5);
  desk.pass(desk.times.round_timeout);
  EXPECT_EQ(desk.coordinator.open_slots(), 0u);
}

}  // namespace
}  // namespace unisono
