#include "elastic/formation/group_coordinator.h"

#include <gtest/gtest.h>

#include <numeric>

#include "elastic/formation/group_coordinator_test_support.h"

namespace unisono {
namespace {

using namespace formation;
using test::CoordinatorFixture;

TEST(GroupCoordinator, closes_as_soon_as_all_expected_have_registered) {
  CoordinatorFixture fixture;
  for (uint32_t i = 0; i < 3; ++i) fixture.register_peer(i);
  EXPECT_TRUE(fixture.take_answers<Descriptor>().empty());
  fixture.register_peer(3);
  const auto group = fixture.formed();
  EXPECT_EQ(group.members.size(), 4u);
  EXPECT_TRUE(group.line_complete);
  EXPECT_TRUE(group.missing.empty());
  EXPECT_EQ(group.schema, 5u);
  EXPECT_EQ(group.highest_opened, 1u);
  EXPECT_EQ(group.slot, fixture.request(0).slot);
}

TEST(GroupCoordinator, describes_each_member_as_it_registered) {
  CoordinatorFixture fixture;
  for (uint32_t i = 0; i < 4; ++i) {
    auto request = fixture.request(i);
    request.weighted = i != 2;
    request.bandwidth = 100.0 + i;
    if (i == 3) request.role = ElasticRole::client;
    fixture.deliver(i, request);
  }
  const auto group = fixture.formed();
  for (uint32_t i = 0; i < 4; ++i) {
    const auto rank = group.rank_of(fixture.ids[i]);
    const auto role = i == 3 ? ElasticRole::client : ElasticRole::peer;
    const GroupMember expected{fixture.ids[i], fixture.request(i).position, i != 2, true, role, 100.0 + i};
    EXPECT_EQ(group.members[rank], expected);
    EXPECT_EQ(group.chunk_counts[rank] > 0, i != 3) << "A34: a client owns nothing";
  }
  EXPECT_EQ(std::accumulate(group.chunk_counts.begin(), group.chunk_counts.end(), 0u), 60u);
}

TEST(GroupCoordinator, ranks_do_not_depend_on_the_order_of_registration) {
  CoordinatorFixture one;
  CoordinatorFixture other;
  for (const uint32_t i : {0u, 1u, 2u, 3u}) one.register_peer(i);
  for (const uint32_t i : {2u, 3u, 1u, 0u}) other.register_peer(i);
  EXPECT_EQ(one.formed(), other.formed());
}

TEST(GroupCoordinator, waits_gather_timeout_after_the_first_registration_for_silent_peers) {
  CoordinatorFixture fixture;
  fixture.register_peer(0);
  fixture.advance(500 * millisecond);
  fixture.register_peer(1);
  fixture.advance(1500 * millisecond - 1);
  EXPECT_TRUE(fixture.take_answers<Descriptor>().empty());
  fixture.advance(1);
  const auto group = fixture.formed();
  EXPECT_EQ(group.members.size(), 2u);
  EXPECT_FALSE(group.line_complete);
  EXPECT_EQ(std::set(group.missing.begin(), group.missing.end()), (std::set{fixture.ids[2], fixture.ids[3]}));
}

TEST(GroupCoordinator, sends_signs_of_life_to_registered_peers) {
  CoordinatorFixture fixture;
  auto request = fixture.request(0);
  request.attempt = 7;
  fixture.deliver(0, request);
  fixture.pre_register(1);
  const auto acknowledged = fixture.take_answers<Pending>();
  ASSERT_EQ(acknowledged.size(), 2u);
  EXPECT_EQ(acknowledged[0].second, (Pending{request.slot, 7, 1, 30000}));
  fixture.advance(fixture.times.coordinator_timeout / 2);
  const auto signs = fixture.take_answers<Pending>();
  ASSERT_EQ(signs.size(), 2u) << "two in half a coordinator_timeout, and none to the one that only announced itself";
  for (const auto& [to, sign] : signs) EXPECT_EQ(to, fixture.ids[0]);
}

TEST(GroupCoordinator, does_not_wait_for_gone_peers) {
  CoordinatorFixture fixture;
  fixture.view.dead.insert(fixture.ids[3]);
  for (uint32_t i = 0; i < 3; ++i) fixture.register_peer(i);
  const auto group = fixture.formed();
  EXPECT_EQ(group.members.size(), 3u);
  EXPECT_TRUE(group.missing.empty()) << "all know that it is gone";
  EXPECT_FALSE(group.line_complete);
}

TEST(GroupCoordinator, closes_at_once_if_the_peer_that_it_waits_for_is_gone) {
  CoordinatorFixture fixture;
  for (uint32_t i = 0; i < 3; ++i) fixture.register_peer(i);
  fixture.view.dead.insert(fixture.ids[3]);
  fixture.coordinator.peer_gone(fixture.ids[3], fixture.now);
  EXPECT_EQ(fixture.formed().members.size(), 3u);
}

TEST(GroupCoordinator, a_registered_peer_that_is_gone_is_not_in_the_group) {
  CoordinatorFixture fixture;
  for (uint32_t i = 0; i < 3; ++i) fixture.register_peer(i);
  fixture.view.dead.insert(fixture.ids[0]);
  fixture.coordinator.peer_gone(fixture.ids[0], fixture.now);
  fixture.register_peer(3);
  EXPECT_EQ(fixture.formed().members.size(), 3u);
}

TEST(GroupCoordinator, a_peer_that_registers_is_in_the_group_even_if_the_roster_says_gone) {
  CoordinatorFixture fixture;
  fixture.view.dead.insert(fixture.ids[0]);
  for (uint32_t i = 0; i < 4; ++i) fixture.register_peer(i);
  EXPECT_EQ(fixture.formed().members.size(), 4u);
}

TEST(GroupCoordinator, does_not_wait_for_a_peer_that_was_missing_in_the_previous_step) {
  CoordinatorFixture fixture;
  fixture.register_peer(0, 1, {fixture.ids[3]});
  fixture.register_peer(1, 1);
  fixture.register_peer(2, 1);
  const auto group = fixture.formed();
  EXPECT_EQ(group.members.size(), 3u);
  EXPECT_EQ(group.missing, std::vector{fixture.ids[3]}) << "the list is handed on";
}

TEST(GroupCoordinator, ignores_a_missing_list_with_most_of_the_line) {
  CoordinatorFixture fixture;
  fixture.register_peer(0, 1, {fixture.ids[1], fixture.ids[2], fixture.ids[3]});
  EXPECT_TRUE(fixture.take_answers<Alone>().empty());
  for (uint32_t i = 1; i < 4; ++i) fixture.register_peer(i, 1);
  EXPECT_EQ(fixture.formed().members.size(), 4u);
}

TEST(GroupCoordinator, counts_only_members_of_the_line_in_a_missing_list) {
  CoordinatorFixture fixture;
  fixture.register_peer(0, 1, {fixture.ids[4], fixture.ids[5], fixture.ids[6], fixture.ids[3]});
  fixture.register_peer(1, 1);
  fixture.register_peer(2, 1);
  EXPECT_EQ(fixture.formed().missing, std::vector{fixture.ids[3]});
}

TEST(GroupCoordinator, a_registered_peer_is_not_missing_whatever_lists_say) {
  CoordinatorFixture fixture;
  fixture.register_peer(3, 1);
  fixture.register_peer(0, 1, {fixture.ids[3]});
  fixture.register_peer(1, 1);
  fixture.register_peer(2, 1, {fixture.ids[3]});
  EXPECT_EQ(fixture.formed().members.size(), 4u);
}

TEST(GroupCoordinator, a_late_message_ends_lagging) {
  CoordinatorFixture fixture;
  fixture.deliver(3, Late{fixture.request(3, 1).slot});
  fixture.register_peer(0, 1, {fixture.ids[3]});
  fixture.register_peer(1, 1);
  fixture.register_peer(2, 1);
  EXPECT_TRUE(fixture.take_answers<Descriptor>().empty()) << "it is expected";
  fixture.register_peer(3, 1);
  EXPECT_EQ(fixture.formed().members.size(), 4u);
}

TEST(GroupCoordinator, a_late_message_may_come_after_the_missing_list) {
  CoordinatorFixture fixture;
  fixture.register_peer(0, 1, {fixture.ids[3]});
  fixture.deliver(3, Late{fixture.request(3, 1).slot});
  fixture.register_peer(1, 1);
  fixture.register_peer(2, 1);
  EXPECT_TRUE(fixture.take_answers<Descriptor>().empty());
  fixture.advance(fixture.times.gather_timeout);
  EXPECT_EQ(fixture.formed().members.size(), 3u) << "but it is waited for no longer than others";
}

TEST(GroupCoordinator, a_late_message_does_not_count_as_a_registration) {
  CoordinatorFixture fixture;
  for (uint32_t i = 0; i < 4; ++i) fixture.deliver(i, Late{fixture.request(i, 1).slot});
  EXPECT_EQ(fixture.coordinator.next_deadline(), never);
  fixture.advance(100 * second);
  EXPECT_TRUE(fixture.coordinator.take_sends().empty());
}

TEST(GroupCoordinator, waits_for_pre_registered_peers_until_their_round_must_be_over) {
  CoordinatorFixture fixture;
  fixture.pre_register(3);
  fixture.advance(10 * second);
  for (uint32_t i = 0; i < 3; ++i) fixture.register_peer(i);
  fixture.advance(20 * second - 1);
  EXPECT_TRUE(fixture.take_answers<Descriptor>().empty());
  fixture.advance(1);
  const auto group = fixture.formed();
  EXPECT_EQ(group.members.size(), 3u);
  EXPECT_EQ(group.missing, std::vector{fixture.ids[3]});
}

TEST(GroupCoordinator, repeated_pre_registrations_do_not_extend_the_wait_without_end) {
  CoordinatorFixture fixture;
  fixture.register_peer(0, 1);
  fixture.register_peer(1, 1);
  for (uint32_t i = 2; i < 7; ++i) {
    fixture.pre_register(i, 1);
    fixture.advance(6 * second);
  }
  fixture.advance(2 * second - 1);
  EXPECT_TRUE(fixture.take_answers<Descriptor>().empty());
  fixture.advance(1);
  EXPECT_EQ(fixture.formed().members.size(), 2u) << "gather_timeout and round_timeout after the first registration";
}

TEST(GroupCoordinator, waits_longer_for_pre_registered_peers_with_a_slow_round) {
  ElasticTimes times;
  test::FakeFormationView view;
  const auto ids = test::peer_ids(4);
  const auto layout = test::layout_of(ids, 1, {4});
  view.hold(layout);
  GroupCoordinator coordinator({.self = ids[0], .run = "run", .times = times, .chunk_count = 60, .vector_bytes = 1e9}, view);
  const auto seek = seek_request(layout, ids[1], 0, 0);
  Register request{};
  request.slot = seek.slot;
  request.cell = seek.cell;
  request.position = seek.position;
  request.pre = request.in_layout = true;
  request.bandwidth = 1e7;
  coordinator.message(ids[1], request, 0);
  const auto sends = coordinator.take_sends();
  ASSERT_EQ(sends.size(), 1u);
  EXPECT_EQ(std::get<Pending>(sends[0].message).round_ms, 400000u + 4000u + 10000u) << "4·V/b, a result and ten ballots";
}

TEST(GroupCoordinator, expects_unlisted_peers_that_pre_registered) {
  CoordinatorFixture fixture;
  fixture.pre_register(5);
  for (uint32_t i = 0; i < 4; ++i) fixture.register_peer(i);
  EXPECT_TRUE(fixture.take_answers<Descriptor>().empty());
  fixture.register_peer(5);
  const auto group = fixture.formed();
  EXPECT_EQ(group.members.size(), 5u);
  EXPECT_TRUE(group.line_complete);
  EXPECT_FALSE(group.members[group.rank_of(fixture.ids[5])].in_layout);
}

TEST(GroupCoordinator, a_pre_registered_unlisted_peer_that_does_not_come_is_not_missing) {
  CoordinatorFixture fixture;
  fixture.pre_register(5);
  for (uint32_t i = 0; i < 4; ++i) fixture.register_peer(i);
  fixture.coordinator.peer_gone(fixture.ids[5], fixture.now);
  EXPECT_TRUE(fixture.formed().missing.empty());
}

TEST(GroupCoordinator, a_peer_that_withdrew_is_neither_waited_for_nor_missing) {
  CoordinatorFixture fixture;
  for (uint32_t i = 0; i < 3; ++i) fixture.register_peer(i);
  fixture.deliver(1, Withdraw{fixture.request(1).slot, 1});
  fixture.deliver(3, Withdraw{fixture.request(3).slot, 0});
  const auto group = fixture.formed();
  EXPECT_EQ(group.members.size(), 2u);
  EXPECT_TRUE(group.missing.empty());
  EXPECT_FALSE(group.line_complete);
}

TEST(GroupCoordinator, a_peer_that_withdrew_and_pre_registered_again_is_missing_if_it_does_not_come) {
  CoordinatorFixture fixture;
  fixture.register_peer(0);
  fixture.deliver(3, Withdraw{fixture.request(3).slot, 0});
  fixture.pre_register(3);
  for (const uint32_t i : {1u, 2u}) fixture.register_peer(i);
  fixture.advance(fixture.times.round_timeout);
  EXPECT_EQ(fixture.formed().missing, std::vector{fixture.ids[3]});
}

TEST(GroupCoordinator, a_withdrawal_of_an_earlier_attempt_is_ignored) {
  CoordinatorFixture fixture;
  auto request = fixture.request(0);
  request.attempt = 3;
  fixture.deliver(0, request);
  fixture.deliver(0, Withdraw{request.slot, 2});
  for (uint32_t i = 1; i < 4; ++i) fixture.register_peer(i);
  EXPECT_EQ(fixture.formed().members.size(), 4u);
}

TEST(GroupCoordinator, a_pre_registration_that_arrives_after_its_registration_is_ignored) {
  CoordinatorFixture fixture;
  fixture.register_peer(0);
  fixture.pre_register(0);
  for (uint32_t i = 1; i < 4; ++i) fixture.register_peer(i);
  EXPECT_EQ(fixture.formed().members.size(), 4u);
}

}  // namespace
}  // namespace unisono
