// A coordinator's answers to peers that get no group, and the slots that a coordinator drops.

#include <gtest/gtest.h>

#include "elastic/formation/group_coordinator_test_support.h"

namespace unisono {
namespace {

using namespace formation;
using test::CoordinatorFixture;

TEST(GroupCoordinatorAnswers, a_peer_without_a_group_gets_alone_with_the_missing_peers) {
  CoordinatorFixture fixture;
  fixture.register_peer(0);
  fixture.advance(fixture.times.gather_timeout);
  const auto alone = fixture.take_answers<Alone>();
  ASSERT_EQ(alone.size(), 1u);
  EXPECT_EQ(alone[0].first, fixture.ids[0]);
  EXPECT_EQ(alone[0].second.missing.size(), 3u);
  EXPECT_FALSE(alone[0].second.no_reducer);
  EXPECT_EQ(fixture.coordinator.counters().alone, 1u);
}

TEST(GroupCoordinatorAnswers, the_last_live_peer_of_a_line_is_alone_at_once) {
  CoordinatorFixture fixture;
  for (uint32_t i = 1; i < 4; ++i) fixture.view.dead.insert(fixture.ids[i]);
  fixture.register_peer(0);
  EXPECT_EQ(fixture.take_answers<Alone>().size(), 1u);
}

TEST(GroupCoordinatorAnswers, reducers_alone_have_nothing_to_average) {
  CoordinatorFixture fixture;
  for (uint32_t i = 1; i < 4; ++i) fixture.view.dead.insert(fixture.ids[i]);
  auto reducer = fixture.request(5);
  reducer.role = ElasticRole::reducer;
  reducer.pre = true;
  fixture.deliver(5, reducer);
  fixture.register_peer(0);
  reducer.pre = false;
  reducer.attempt = 2;
  fixture.deliver(5, reducer);
  EXPECT_EQ(fixture.take_answers<Alone>().size(), 2u) << "one peer with values, and a reducer";
}

TEST(GroupCoordinatorAnswers, a34_a_group_of_clients_has_no_owner) {
  CoordinatorFixture fixture;
  for (uint32_t i = 0; i < 4; ++i) {
    auto request = fixture.request(i);
    request.role = ElasticRole::client;
    fixture.deliver(i, request);
  }
  const auto alone = fixture.take_answers<Alone>();
  ASSERT_EQ(alone.size(), 4u);
  EXPECT_TRUE(alone[0].second.no_reducer);
  EXPECT_TRUE(alone[0].second.missing.empty());
}

TEST(GroupCoordinatorAnswers, a34_a_reducer_owns_chunks) {
  CoordinatorFixture fixture;
  auto reducer = fixture.request(5);
  reducer.role = ElasticRole::reducer;
  reducer.weighted = false;
  fixture.deliver(5, reducer);
  for (uint32_t i = 0; i < 4; ++i) fixture.register_peer(i);
  const auto group = fixture.formed();
  const auto rank = group.rank_of(fixture.ids[5]);
  ASSERT_LT(rank, group.members.size());
  EXPECT_EQ(group.members[rank].role, ElasticRole::reducer);
  EXPECT_FALSE(group.members[rank].weighted);
  EXPECT_GT(group.chunk_counts[rank], 0u);
}

TEST(GroupCoordinatorAnswers, a_slot_holds_at_most_twice_max_group_members) {
  CoordinatorFixture fixture({4}, 2);  // max_group is 2, so a slot holds at most 2·2 registrations
  for (uint32_t i = 0; i < 3; ++i) fixture.register_peer(i);
  fixture.register_peer(4);
  fixture.register_peer(5);
  const auto full = fixture.take_answers<Full>();
  ASSERT_EQ(full.size(), 1u);
  EXPECT_EQ(full[0].first, fixture.ids[5]);
  EXPECT_FALSE(full[0].second.other_schema);
  fixture.register_peer(3);
  const auto group = fixture.formed();
  EXPECT_EQ(group.members.size(), 4u);
  EXPECT_EQ(group.rank_of(fixture.ids[4]), 4u) << "the member of the layout replaced the peer that is outside the layout";
}

TEST(GroupCoordinatorAnswers, a_pre_registered_peer_that_does_not_fit_is_not_waited_for) {
  CoordinatorFixture fixture({4}, 2);
  fixture.pre_register(4);
  for (uint32_t i = 0; i < 3; ++i) fixture.register_peer(i);
  fixture.register_peer(5);
  fixture.take_answers<Full>();
  fixture.register_peer(4);
  EXPECT_EQ(fixture.take_answers<Full>().size(), 1u);
  fixture.register_peer(3);
  EXPECT_EQ(fixture.formed().members.size(), 4u);
}

TEST(GroupCoordinatorAnswers, a_peer_of_another_schema_is_absent) {
  CoordinatorFixture fixture;
  auto request = fixture.request(0);
  request.schema = 6;
  fixture.deliver(0, request);
  const auto full = fixture.take_answers<Full>();
  ASSERT_EQ(full.size(), 1u);
  EXPECT_TRUE(full[0].second.other_schema);
  EXPECT_EQ(fixture.coordinator.open_slots(), 0u);
}

TEST(GroupCoordinatorAnswers, a_peer_that_comes_after_the_group_was_formed_gets_closed_with_the_time) {
  CoordinatorFixture fixture;
  for (uint32_t i = 0; i < 4; ++i) fixture.register_peer(i);
  fixture.take_answers<Descriptor>();
  fixture.advance(1234 * millisecond);
  fixture.register_peer(5);
  const auto closed = fixture.take_answers<Closed>();
  ASSERT_EQ(closed.size(), 1u);
  EXPECT_EQ(closed[0].second, (Closed{fixture.request(0).slot, 1, 1234}));
}

TEST(GroupCoordinatorAnswers, a_member_that_registers_again_gets_its_descriptor_again) {
  CoordinatorFixture fixture;
  for (uint32_t i = 0; i < 4; ++i) fixture.register_peer(i);
  const auto group = fixture.formed();
  fixture.register_peer(2);
  const auto again = fixture.take_answers<Descriptor>();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].second.group, group);
}

TEST(GroupCoordinatorAnswers, a_peer_that_was_alone_and_registers_again_gets_alone_again) {
  CoordinatorFixture fixture;
  fixture.register_peer(0);
  fixture.advance(fixture.times.gather_timeout);
  fixture.take_answers<Alone>();
  fixture.register_peer(0);
  EXPECT_EQ(fixture.take_answers<Alone>().size(), 1u);
  fixture.register_peer(1);
  EXPECT_EQ(fixture.take_answers<Closed>().size(), 1u);
}

TEST(GroupCoordinatorAnswers, descriptors_are_repeated_until_acknowledged) {
  CoordinatorFixture fixture;
  for (uint32_t i = 0; i < 4; ++i) fixture.register_peer(i);
  const auto id = fixture.formed().id;
  for (const uint32_t i : {0u, 1u}) fixture.deliver(i, DescriptorAck{id});
  fixture.advance(fixture.times.coordinator_timeout / 4);
  EXPECT_EQ(fixture.take_answers<Descriptor>().size(), 2u);
  for (const uint32_t i : {2u, 3u}) fixture.deliver(i, DescriptorAck{id});
  fixture.advance(fixture.times.coordinator_timeout);
  EXPECT_TRUE(fixture.take_answers<Descriptor>().empty());
}

TEST(GroupCoordinatorAnswers, descriptors_are_repeated_for_a_limited_time_and_not_to_dead_peers) {
  CoordinatorFixture fixture;
  for (uint32_t i = 0; i < 4; ++i) fixture.register_peer(i);
  fixture.formed();
  fixture.coordinator.peer_gone(fixture.ids[0], fixture.now);
  fixture.advance(fixture.times.coordinator_timeout / 4);
  EXPECT_EQ(fixture.take_answers<Descriptor>().size(), 3u);
  fixture.advance(3 * fixture.times.coordinator_timeout);
  fixture.take_answers<Descriptor>();
  fixture.advance(10 * second);
  EXPECT_TRUE(fixture.take_answers<Descriptor>().empty());
}

TEST(GroupCoordinatorAnswers, a_slot_of_a_replaced_layout_is_answered_with_the_newer_one) {
  CoordinatorFixture fixture;
  fixture.register_peer(0);
  fixture.take_answers<Pending>();
  const auto newer = test::layout_of(fixture.ids, 2);
  fixture.view.hold(newer);
  fixture.register_peer(1);
  const auto stale = fixture.take_answers<StaleLayout>();
  ASSERT_EQ(stale.size(), 1u);
  EXPECT_EQ(stale[0].first, fixture.ids[1]);
  EXPECT_EQ(stale[0].second.newer, newer);
  fixture.advance(fixture.times.coordinator_timeout / 4);
  const auto repeated = fixture.take_answers<StaleLayout>();
  ASSERT_EQ(repeated.size(), 1u) << "waiting peers get the new layout too";
  EXPECT_EQ(repeated[0].first, fixture.ids[0]);
  EXPECT_EQ(fixture.coordinator.open_slots(), 0u);
}

TEST(GroupCoordinatorAnswers, only_one_of_two_layouts_of_one_version_gets_groups) {
  CoordinatorFixture fixture;
  auto other = test::layout_of({fixture.ids[0], fixture.ids[1], fixture.ids[2], fixture.ids[4]}, 1, {4});
  const bool wins = other.digest < fixture.layout.digest;
  auto request = fixture.request(0);
  const auto seek = seek_request(other, fixture.ids[0], 0, 0);
  request.slot = seek.slot;
  request.cell = seek.cell;
  request.position = seek.position;
  fixture.deliver(0, request);
  EXPECT_EQ(fixture.take_answers<NeedLayout>().size(), wins ? 1u : 0u);
  if (wins) {
    fixture.deliver(0, LayoutReply{other});
    for (const auto& layout : fixture.coordinator.take_layouts()) fixture.view.hold(layout);
    fixture.deliver(0, request);
  }
  fixture.take_answers<Pending>();
  fixture.register_peer(1);
  EXPECT_EQ(fixture.take_answers<StaleLayout>().size(), wins ? 1u : 0u) << "the smaller digest wins";
}

TEST(GroupCoordinatorAnswers, an_unknown_layout_is_requested_from_the_member) {
  CoordinatorFixture fixture;
  fixture.view.layouts.clear();
  fixture.register_peer(0);
  ASSERT_EQ(fixture.take_answers<NeedLayout>().size(), 1u);
  fixture.deliver(0, LayoutReply{fixture.layout});
  const auto layouts = fixture.coordinator.take_layouts();
  ASSERT_EQ(layouts.size(), 1u);
  EXPECT_EQ(layouts[0], fixture.layout);
  fixture.view.hold(layouts[0]);
  fixture.register_peer(0);
  EXPECT_EQ(fixture.take_answers<Pending>().size(), 1u);
}

TEST(GroupCoordinatorAnswers, unrequested_layouts_are_ignored) {
  CoordinatorFixture fixture;
  fixture.deliver(0, LayoutReply{test::layout_of(fixture.ids, 2)});
  EXPECT_TRUE(fixture.coordinator.take_layouts().empty());
  EXPECT_EQ(fixture.coordinator.counters().ignored, 1u);
}

TEST(GroupCoordinatorAnswers, a_registration_with_another_position_than_the_layouts_is_ignored) {
  CoordinatorFixture fixture({2, 2});
  std::vector<Register> wrong(5, fixture.request(0));
  ++wrong[0].cell;
  wrong[1].position ^= 1;
  wrong[2].slot.line ^= 1;
  wrong[3].in_layout = false;
  wrong[4].slot.line = 77;
  for (const auto& request : wrong) fixture.deliver(0, request);
  EXPECT_TRUE(fixture.coordinator.take_sends().empty());
  EXPECT_EQ(fixture.coordinator.counters().ignored, 5u);
  EXPECT_EQ(fixture.coordinator.open_slots(), 0u);
}

TEST(GroupCoordinatorAnswers, a_layout_is_not_used_before_its_first_step) {
  CoordinatorFixture fixture;
  const auto later = test::layout_of(fixture.ids, 2, {8}, 10);
  fixture.view.hold(later);
  const auto seek = seek_request(later, fixture.ids[0], 9, 0);
  auto request = fixture.request(0);
  request.slot = seek.slot;
  request.cell = seek.cell;
  request.position = seek.position;
  fixture.deliver(0, request);
  EXPECT_EQ(fixture.coordinator.counters().ignored, 1u);
}

TEST(GroupCoordinatorAnswers, messages_for_members_are_ignored) {
  CoordinatorFixture fixture;
  fixture.deliver(0, Pending{fixture.request(0).slot, 1, 1, 1});
  fixture.deliver(0, Decline{{1, 2}, fixture.request(0).slot});
  EXPECT_EQ(fixture.coordinator.counters().ignored, 2u);
}

TEST(GroupCoordinatorAnswers, the_first_registration_opens_a_step) {
  CoordinatorFixture fixture;
  fixture.register_peer(0, 7);
  EXPECT_EQ(fixture.coordinator.take_opened(), 7u);
  fixture.register_peer(1, 7);
  EXPECT_EQ(fixture.coordinator.take_opened(), std::nullopt);
  for (const auto& [to, pending] : fixture.take_answers<Pending>()) EXPECT_EQ(pending.steps_opened, 8u);
}

TEST(GroupCoordinatorAnswers, an_impossible_step_is_not_opened) {
  CoordinatorFixture fixture;
  fixture.view.opened = 6;
  for (const uint64_t step : {6 + steps_ahead_max + 1, (uint64_t{1} << 53) - 1}) {
    fixture.register_peer(0, step);
    fixture.register_peer(1, step);
  }
  EXPECT_EQ(fixture.coordinator.counters().ignored, 4u);
  EXPECT_EQ(fixture.coordinator.take_opened(), std::nullopt);
  fixture.register_peer(0, 5);
  EXPECT_TRUE(fixture.take_answers<Closed>().empty()) << "what all others are in is not past";
  fixture.register_peer(0, 6 + steps_ahead_max);
  EXPECT_EQ(fixture.coordinator.take_opened(), 6 + steps_ahead_max) << "a peer that was cut off for long may report this step";
}

TEST(GroupCoordinatorAnswers, slots_of_steps_long_past_are_dropped) {
  CoordinatorFixture fixture;
  fixture.register_peer(0, 5);
  fixture.register_peer(1, 6);
  fixture.take_answers<Pending>();
  fixture.register_peer(2, 7);
  fixture.register_peer(2, 8);
  const auto closed = fixture.take_answers<Closed>();
  ASSERT_EQ(closed.size(), 1u) << "averaging step 5, when three later ones are open";
  EXPECT_EQ(closed[0].first, fixture.ids[0]);
  EXPECT_EQ(closed[0].second.steps_opened, 9u);
  fixture.register_peer(3, 5);
  EXPECT_EQ(fixture.take_answers<Closed>().size(), 1u) << "nor are they opened again";
  EXPECT_EQ(fixture.coordinator.open_slots(), 3u);
}

TEST(GroupCoordinatorAnswers, closed_slots_are_remembered_for_a_minute) {
  CoordinatorFixture fixture;
  for (uint32_t i = 0; i < 4; ++i) fixture.register_peer(i);
  fixture.take_answers<Descriptor>();
  fixture.advance(60 * second - 1);
  EXPECT_EQ(fixture.coordinator.closed_slots(), 1u);
  fixture.advance(1);
  EXPECT_EQ(fixture.coordinator.closed_slots(), 0u);
  EXPECT_EQ(fixture.coordinator.next_deadline(), never);
}

TEST(GroupCoordinatorAnswers, fast_steps_do_not_fill_the_memory) {
  CoordinatorFixture fixture;
  for (uint64_t step = 0; step < 3 * closed_max; ++step) {
    fixture.coordinator.take_sends();
    for (uint32_t i = 0; i < 4; ++i) fixture.register_peer(i, step);
    const auto id = fixture.formed().id;
    for (uint32_t i = 0; i < 2; ++i) fixture.deliver(i, DescriptorAck{id});
    fixture.advance(millisecond);
  }
  EXPECT_EQ(fixture.coordinator.closed_slots(), closed_max);
  EXPECT_EQ(fixture.coordinator.open_slots(), 0u);
  fixture.coordinator.take_sends();
  fixture.register_peer(0, 0);
  EXPECT_EQ(fixture.take_answers<Closed>().size(), 1u) << "the number of the averaging step says that it is over";
}

TEST(GroupCoordinatorAnswers, slots_made_by_late_messages_are_bounded) {
  CoordinatorFixture fixture;
  for (uint64_t step = 0; step < 2 * slots_open_max; ++step) fixture.deliver(0, Late{fixture.request(0, step).slot});
  EXPECT_EQ(fixture.coordinator.open_slots(), slots_open_max);
  for (uint32_t i = 0; i < 4; ++i) fixture.register_peer(i, 0);
  EXPECT_EQ(fixture.formed().members.size(), 4u) << "and they make space for a registration";
}

TEST(GroupCoordinatorAnswers, at_the_limit_of_registered_slots_a_new_registration_is_not_answered) {
  CoordinatorFixture fixture;
  auto request = fixture.request(0, 0);
  for (uint32_t round = 0; round < slots_open_max; ++round) {
    request.slot.round = round;
    fixture.deliver(0, request);
  }
  EXPECT_EQ(fixture.take_answers<Pending>().size(), slots_open_max);
  request.slot.round = slots_open_max;
  fixture.deliver(0, request);
  EXPECT_TRUE(fixture.coordinator.take_sends().empty());
  EXPECT_EQ(fixture.coordinator.open_slots(), slots_open_max);
}

TEST(GroupCoordinatorAnswers, pre_registrations_of_peers_that_never_come_expire) {
  CoordinatorFixture fixture;
  fixture.pre_register(0);
  fixture.pre_register(5);
  fixture.advance(fixture.times.round_timeout);
  EXPECT_EQ(fixture.coordinator.open_slots(), 0u);
}

}  // namespace
}  // namespace unisono
