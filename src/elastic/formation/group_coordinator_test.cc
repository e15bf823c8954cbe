#include "elastic/formation/group_coordinator.h"

#include <gtest/gtest.h>

#include <numeric>

#include "elastic/formation/group_coordinator_test_support.h"

namespace unisono {
namespace {

using namespace formation;
using test::Desk;

TEST(GroupCoordinator, closes_as_soon_as_all_expected_have_registered) {
  Desk desk;
  for (uint32_t i = 0; i < 3; ++i) desk.enter(i);
  EXPECT_TRUE(desk.got<Descriptor>().empty());
  desk.enter(3);
  const auto group = desk.formed();
  EXPECT_EQ(group.members.size(), 4u);
  EXPECT_TRUE(group.line_complete);
  EXPECT_TRUE(group.missing.empty());
  EXPECT_EQ(group.schema, 5u);
  EXPECT_EQ(group.highest_opened, 1u);
  EXPECT_EQ(group.slot, desk.request(0).slot);
}

TEST(GroupCoordinator, describes_each_member_as_it_registered) {
  Desk desk;
  for (uint32_t i = 0; i < 4; ++i) {
    auto request = desk.request(i);
    request.weighted = i != 2;
    request.bandwidth = 100.0 + i;
    if (i == 3) request.role = ElasticRole::client;
    desk.say(i, request);
  }
  const auto group = desk.formed();
  for (uint32_t i = 0; i < 4; ++i) {
    const auto rank = group.rank_of(desk.ids[i]);
    const auto role = i == 3 ? ElasticRole::client : ElasticRole::peer;
    const GroupMember expected{desk.ids[i], desk.request(i).position, i != 2, true, role, 100.0 + i};
    EXPECT_EQ(group.members[rank], expected);
    EXPECT_EQ(group.chunk_counts[rank] > 0, i != 3) << "A34: a client owns nothing";
  }
  EXPECT_EQ(std::accumulate(group.chunk_counts.begin(), group.chunk_counts.end(), 0u), 60u);
}

TEST(GroupCoordinator, ranks_do_not_depend_on_who_came_first) {
  Desk one;
  Desk other;
  for (const uint32_t i : {0u, 1u, 2u, 3u}) one.enter(i);
  for (const uint32_t i : {2u, 3u, 1u, 0u}) other.enter(i);
  EXPECT_EQ(one.formed(), other.formed());
}

TEST(GroupCoordinator, waits_gather_timeout_from_the_first_registration_for_the_silent) {
  Desk desk;
  desk.enter(0);
  desk.pass(500 * millisecond);
  desk.enter(1);
  desk.pass(1500 * millisecond - 1);
  EXPECT_TRUE(desk.got<Descriptor>().empty());
  desk.pass(1);
  const auto group = desk.formed();
  EXPECT_EQ(group.members.size(), 2u);
  EXPECT_FALSE(group.line_complete);
  EXPECT_EQ(std::set(group.missing.begin(), group.missing.end()), (std::set{desk.ids[2], desk.ids[3]}));
}

TEST(GroupCoordinator, gives_signs_of_life_to_the_registered) {
  Desk desk;
  auto request = desk.request(0);
  request.attempt = 7;
  desk.say(0, request);
  desk.announce(1);
  const auto acknowledged = desk.got<Pending>();
  ASSERT_EQ(acknowledged.size(), 2u);
  EXPECT_EQ(acknowledged[0].second, (Pending{request.slot, 7, 1, 30000}));
  desk.pass(desk.times.coordinator_timeout / 2);
  const auto signs = desk.got<Pending>();
  ASSERT_EQ(signs.size(), 2u) << "two in half a coordinator_timeout, and none to the one that only announced itself";
  for (const auto& [to, sign] : signs) EXPECT_EQ(to, desk.ids[0]);
}

TEST(GroupCoordinator, does_not_wait_for_those_who_are_gone) {
  Desk desk;
  desk.view.dead.insert(desk.ids[3]);
  for (uint32_t i = 0; i < 3; ++i) desk.enter(i);
  const auto group = desk.formed();
  EXPECT_EQ(group.members.size(), 3u);
  EXPECT_TRUE(group.missing.empty()) << "all know that it is gone";
  EXPECT_FALSE(group.line_complete);
}

TEST(GroupCoordinator, goes_on_at_once_when_one_it_waits_for_is_gone) {
  Desk desk;
  for (uint32_t i = 0; i < 3; ++i) desk.enter(i);
  desk.view.dead.insert(desk.ids[3]);
  desk.coordinator.peer_gone(desk.ids[3], desk.now);
  EXPECT_EQ(desk.formed().members.size(), 3u);
}

TEST(GroupCoordinator, one_that_registered_and_is_gone_is_not_put_into_the_group) {
  Desk desk;
  for (uint32_t i = 0; i < 3; ++i) desk.enter(i);
  desk.view.dead.insert(desk.ids[0]);
  desk.coordinator.peer_gone(desk.ids[0], desk.now);
  desk.enter(3);
  EXPECT_EQ(desk.formed().members.size(), 3u);
}

TEST(GroupCoordinator, one_that_registers_is_there_whatever_the_roster_says) {
  Desk desk;
  desk.view.dead.insert(desk.ids[0]);
  for (uint32_t i = 0; i < 4; ++i) desk.enter(i);
  EXPECT_EQ(desk.formed().members.size(), 4u);
}

TEST(GroupCoordinator, does_not_wait_for_one_that_was_missing_in_the_step_before) {
  Desk desk;
  desk.enter(0, 1, {desk.ids[3]});
  desk.enter(1, 1);
  desk.enter(2, 1);
  const auto group = desk.formed();
  EXPECT_EQ(group.members.size(), 3u);
  EXPECT_EQ(group.missing, std::vector{desk.ids[3]}) << "the list is handed on";
}

TEST(GroupCoordinator, does_not_believe_a_list_that_names_most_of_the_line) {
  Desk desk;
  desk.enter(0, 1, {desk.ids[1], desk.ids[2], desk.ids[3]});
  EXPECT_TRUE(desk.got<Alone>().empty());
  for (uint32_t i = 1; i < 4; ++i) desk.enter(i, 1);
  EXPECT_EQ(desk.formed().members.size(), 4u);
}

TEST(GroupCoordinator, counts_only_members_of_the_line_in_a_list) {
  Desk desk;
  desk.enter(0, 1, {desk.ids[4], desk.ids[5], desk.ids[6], desk.ids[3]});
  desk.enter(1, 1);
  desk.enter(2, 1);
  EXPECT_EQ(desk.formed().missing, std::vector{desk.ids[3]});
}

TEST(GroupCoordinator, one_that_has_come_back_is_not_missing_whatever_lists_say) {
  Desk desk;
  desk.enter(3, 1);
  desk.enter(0, 1, {desk.ids[3]});
  desk.enter(1, 1);
  desk.enter(2, 1, {desk.ids[3]});
  EXPECT_EQ(desk.formed().members.size(), 4u);
}

TEST(GroupCoordinator, an_early_registration_ends_lagging) {
  Desk desk;
  desk.say(3, Late{desk.request(3, 1).slot});
  desk.enter(0, 1, {desk.ids[3]});
  desk.enter(1, 1);
  desk.enter(2, 1);
  EXPECT_TRUE(desk.got<Descriptor>().empty()) << "it is expected";
  desk.enter(3, 1);
  EXPECT_EQ(desk.formed().members.size(), 4u);
}

TEST(GroupCoordinator, an_early_registration_may_come_after_the_list) {
  Desk desk;
  desk.enter(0, 1, {desk.ids[3]});
  desk.say(3, Late{desk.request(3, 1).slot});
  desk.enter(1, 1);
  desk.enter(2, 1);
  EXPECT_TRUE(desk.got<Descriptor>().empty());
  desk.pass(desk.times.gather_timeout);
  EXPECT_EQ(desk.formed().members.size(), 3u) << "but it is waited for no longer than others";
}

TEST(GroupCoordinator, an_early_registration_is_no_registration) {
  Desk desk;
  for (uint32_t i = 0; i < 4; ++i) desk.say(i, Late{desk.request(i, 1).slot});
  EXPECT_EQ(desk.coordinator.next_deadline(), never);
  desk.pass(100 * second);
  EXPECT_TRUE(desk.coordinator.take_sends().empty());
}

TEST(GroupCoordinator, waits_for_the_announced_until_their_round_must_be_over) {
  Desk desk;
  desk.announce(3);
  desk.pass(10 * second);
  for (uint32_t i = 0; i < 3; ++i) desk.enter(i);
  desk.pass(20 * second - 1);
  EXPECT_TRUE(desk.got<Descriptor>().empty());
  desk.pass(1);
  const auto group = desk.formed();
  EXPECT_EQ(group.members.size(), 3u);
  EXPECT_EQ(group.missing, std::vector{desk.ids[3]});
}

TEST(GroupCoordinator, is_not_kept_waiting_by_ever_new_announcements) {
  Desk desk;
  desk.enter(0, 1);
  desk.enter(1, 1);
  for (uint32_t i = 2; i < 7; ++i) {
    desk.announce(i, 1);
    desk.pass(6 * second);
  }
  desk.pass(2 * second - 1);
  EXPECT_TRUE(desk.got<Descriptor>().empty());
  desk.pass(1);
  EXPECT_EQ(desk.formed().members.size(), 2u) << "gather_timeout and round_timeout after the first registration";
}

TEST(GroupCoordinator, waits_longer_for_announced_peers_whose_round_is_slow) {
  ElasticTimes times;
  test::ViewOfTest view;
  const auto ids = test::peer_ids(4);
  const auto layout = test::layout_of(ids, 1, {4});
  view.hold(layout);
  GroupCoordinator coordinator({.self = ids[0], .run = "run", .times = times, .chunk_count = 60, .vector_bytes = 1e9}, view);
  const auto place = seek_request(layout, ids[1], 0, 0);
  Register request{};
  request.slot = place.slot;
  request.cell = place.cell;
  request.position = place.position;
  request.pre = request.in_layout = true;
  request.bandwidth = 1e7;
  coordinator.message(ids[1], request, 0);
  const auto sends = coordinator.take_sends();
  ASSERT_EQ(sends.size(), 1u);
  EXPECT_EQ(std::get<Pending>(sends[0].message).round_ms, 400000u + 4000u + 10000u) << "4·V/b, a result and ten ballots";
}

TEST(GroupCoordinator, expects_unlisted_that_have_announced_themselves) {
  Desk desk;
  desk.announce(5);
  for (uint32_t i = 0; i < 4; ++i) desk.enter(i);
  EXPECT_TRUE(desk.got<Descriptor>().empty());
  desk.enter(5);
  const auto group = desk.formed();
  EXPECT_EQ(group.members.size(), 5u);
  EXPECT_TRUE(group.line_complete);
  EXPECT_FALSE(group.members[group.rank_of(desk.ids[5])].in_layout);
}

TEST(GroupCoordinator, an_announced_unlisted_that_stays_away_is_not_missing) {
  Desk desk;
  desk.announce(5);
  for (uint32_t i = 0; i < 4; ++i) desk.enter(i);
  desk.coordinator.peer_gone(desk.ids[5], desk.now);
  EXPECT_TRUE(desk.formed().missing.empty());
}

TEST(GroupCoordinator, one_that_withdrew_is_neither_waited_for_nor_missing) {
  Desk desk;
  for (uint32_t i = 0; i < 3; ++i) desk.enter(i);
  desk.say(1, Withdraw{desk.request(1).slot, 1});
  desk.say(3, Withdraw{desk.request(3).slot, 0});
  const auto group = desk.formed();
  EXPECT_EQ(group.members.size(), 2u);
  EXPECT_TRUE(group.missing.empty());
  EXPECT_FALSE(group.line_complete);
}

TEST(GroupCoordinator, one_that_withdrew_and_announced_itself_again_is_missing_if_it_stays_away) {
  Desk desk;
  desk.enter(0);
  desk.say(3, Withdraw{desk.request(3).slot, 0});
  desk.announce(3);
  for (const uint32_t i : {1u, 2u}) desk.enter(i);
  desk.pass(desk.times.round_timeout);
  EXPECT_EQ(desk.formed().missing, std::vector{desk.ids[3]});
}

TEST(GroupCoordinator, a_withdrawal_of_an_earlier_attempt_says_nothing) {
  Desk desk;
  auto request = desk.request(0);
  request.attempt = 3;
  desk.say(0, request);
  desk.say(0, Withdraw{request.slot, 2});
  for (uint32_t i = 1; i < 4; ++i) desk.enter(i);
  EXPECT_EQ(desk.formed().members.size(), 4u);
}

TEST(GroupCoordinator, an_announcement_overtaken_by_its_registration_does_not_undo_it) {
  Desk desk;
  desk.enter(0);
  desk.announce(0);
  for (uint32_t i = 1; i < 4; ++i) desk.enter(i);
  EXPECT_EQ(desk.formed().members.size(), 4u);
}

}  // namespace
}  // namespace unisono
