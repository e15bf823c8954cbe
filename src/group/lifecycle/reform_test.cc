#include "group/lifecycle/reform_test_support.h"

namespace unisono {
namespace {

using test::make_roster;
using test::member;
using test::MemberGroup;
using test::reform_timeout;

TEST(Reform, living_members_agree_at_once_when_all_know_the_dead) {
  MemberGroup group(4);
  for (const Rank rank : {0u, 1u, 3u}) group.start(rank, {2});
  group.deliver({2});
  const auto expected = group.result(0);
  EXPECT_EQ(expected.roster.epoch, 2u);
  ASSERT_EQ(expected.roster.members.size(), 3u);
  EXPECT_EQ(expected.roster.members[2].id, group.roster.members[3].id);
  EXPECT_EQ(expected.roster.members[2].rank, 2u);
  EXPECT_EQ(expected.roster.key, group.roster.key);
  for (const Rank rank : {1u, 3u}) {
    const auto result = group.result(rank);
    EXPECT_EQ(result.roster, expected.roster);
    EXPECT_EQ(result.digest, digest(expected.roster));
    EXPECT_EQ(result.self, rank == 3 ? 2u : rank);
    ASSERT_EQ(result.lost.size(), 1u);
    EXPECT_EQ(result.lost[0], group.roster.members[2]);
  }
}

TEST(Reform, re_forming_without_losses_keeps_the_members_under_the_next_epoch) {
  MemberGroup group(3);
  for (const Rank rank : {0u, 1u, 2u}) group.start(rank, {});
  group.deliver();
  EXPECT_EQ(group.result(1).roster.members, group.roster.members);
  EXPECT_EQ(group.result(2).roster.epoch, 2u);
}

TEST(Reform, one_member_that_knows_the_dead_is_enough) {
  MemberGroup group(4);
  group.start(0, {});
  group.start(1, {});
  group.start(2, {3});
  group.deliver({3});
  EXPECT_EQ(group.result(0).roster.members.size(), 3u);
}

TEST(Reform, the_last_living_member_continues_alone) {
  MemberGroup group(3);
  group.start(1, {0, 2});
  EXPECT_EQ(group.result(1).self, 0u);
}

TEST(Reform, a_silent_member_is_removed_after_the_timeout_and_not_before) {
  MemberGroup group(3);
  group.start(0, {});
  group.start(1, {});
  group.deliver({2});
  group.pass(reform_timeout - millisecond, {2});
  EXPECT_TRUE(group.members[0].running());
  group.pass(millisecond, {2});
  const auto result = group.result(0);
  EXPECT_EQ(result.roster.members.size(), 2u);
  ASSERT_EQ(result.lost_reasons.size(), 1u);
  EXPECT_NE(result.lost_reasons[0].find("did not answer rank 0 for 200 ms"), std::string::npos) << result.lost_reasons[0];
}

TEST(Reform, a_removed_member_learns_it_when_it_wakes) {
  MemberGroup group(3);
  group.start(0, {});
  group.start(1, {});
  group.deliver({2});
  group.pass(reform_timeout, {2});
  ASSERT_FALSE(group.members[0].running());
  group.now += 10 * second;
  group.start(2, {});  // rank 2 starts late
  group.deliver();
  const auto status = group.failure(2);
  EXPECT_EQ(status.code(), Code::peer_lost);
  EXPECT_NE(status.message().find("rank 2 (host h2, pid 102), was removed from the group at epoch 2 by ranks 0, 1: it did not "
                                  "answer rank 0 for 200 ms"),
            std::string::npos)
      << status.message();
  EXPECT_EQ(group.members[2].start({}, group.now), status);
}

TEST(Reform, a_member_that_never_started_learns_that_it_was_removed) {
  MemberGroup group(3);
  group.start(0, {});
  group.start(1, {});
  group.deliver();
  EXPECT_TRUE(group.members[2].requested_by_peer());
  group.pass(reform_timeout);
  EXPECT_EQ(group.failure(2).code(), Code::peer_lost);
}

TEST(Reform, a_stopped_member_asks_again_before_it_judges_others) {
  MemberGroup group(3);
  for (const Rank rank : {0u, 1u, 2u}) group.start(rank, {});
  group.members[2].take_sends();  // rank 2 is stopped before it has sent a byte
  group.deliver({2});
  group.pass(reform_timeout, {2});
  ASSERT_FALSE(group.members[0].running());
  group.pass(10 * second);  // rank 2 wakes, and its timers fire before it reads messages
  EXPECT_EQ(group.failure(2).code(), Code::peer_lost) << "it must not go on alone";
}

TEST(Reform, members_wait_for_those_that_start_late) {
  MemberGroup group(3);
  group.start(0, {});
  group.deliver();
  group.now += reform_timeout - 10 * millisecond;
  group.start(1, {});
  group.start(2, {});
  group.deliver();
  EXPECT_EQ(group.result(0).roster.members.size(), 3u);
  EXPECT_EQ(group.result(2).roster.members.size(), 3u);
}

TEST(Reform, a_member_lost_before_the_start_is_remembered) {
  MemberGroup group(2);
  group.members[0].peer_lost(group.roster.members[1].id, group.now);
  group.start(0, {});
  EXPECT_EQ(group.result(0).roster.members.size(), 1u);
}

TEST(Reform, a_member_lost_while_re_forming_is_removed) {
  MemberGroup group(3);
  group.start(0, {});
  group.start(1, {});
  group.deliver();
  group.members[1].peer_lost(group.roster.members[2].id, group.now);
  group.deliver();
  EXPECT_EQ(group.result(0).roster.members.size(), 2u);
}

TEST(Reform, the_group_continues_without_its_lowest_rank) {
  MemberGroup group(3);
  for (const Rank rank : {0u, 1u, 2u}) group.start(rank, {});
  group.deliver({0});
  for (const Rank rank : {1u, 2u}) group.members[rank].peer_lost(group.roster.members[0].id, group.now);
  group.deliver({0});
  EXPECT_EQ(group.result(1).roster.members.size(), 2u);
  EXPECT_EQ(group.result(2).self, 1u);
}

TEST(Reform, a_roster_that_reached_one_member_reaches_all) {
  MemberGroup group(3);
  for (const Rank rank : {0u, 1u, 2u}) group.start(rank, {});
  // Rank 0 receives both proposals, makes the roster, sends it to rank 1 only, and dies.
  for (const Rank from : {1u, 2u}) {
    for (auto& send : group.members[from].take_sends()) {
      const auto to = *group.roster.rank_of(send.to);
      ASSERT_TRUE(group.members[to].message(group.roster.members[from].id, send.bytes, group.now).ok());
    }
  }
  for (auto& send : group.members[0].take_sends()) {
    if (*group.roster.rank_of(send.to) != 1) continue;
    ASSERT_TRUE(group.members[1].message(group.roster.members[0].id, send.bytes, group.now).ok());
  }
  ASSERT_EQ(group.result(1).roster.members.size(), 3u);
  group.members[2].peer_lost(group.roster.members[0].id, group.now);
  group.deliver({0});
  const auto result = group.result(2);
  EXPECT_EQ(result.roster.members.size(), 3u) << "rank 2 must take the roster that rank 1 has";
  EXPECT_EQ(result.digest, digest(group.members[1].roster()));
}

TEST(Reform, joiners_known_anywhere_come_last) {
  MemberGroup group(3);
  ReformRequest knows;
  knows.joiners = {member(7, 2), member(8, 2)};
  knows.joiners[0].rank = 4000;  // the rank of a joiner must be ignored
  group.start(0, {});
  group.start(1, {});
  group.start(2, {}, knows);
  group.deliver();
  const auto result = group.result(1);
  ASSERT_EQ(result.roster.members.size(), 5u);
  EXPECT_EQ(result.roster.members[3].id, knows.joiners[0].id);
  EXPECT_EQ(result.roster.members[4].rank, 4u);
  ASSERT_EQ(result.joined.size(), 2u);
  EXPECT_EQ(result.joined[1], result.roster.members[4]);
}

TEST(Reform, a_joiner_known_to_two_members_joins_once_and_a_member_does_not_join_again) {
  MemberGroup group(2);
  ReformRequest knows;
  knows.joiners = {member(7, 2), group.roster.members[0]};
  group.start(0, {}, knows);
  group.start(1, {}, knows);
  group.deliver();
  EXPECT_EQ(group.result(0).roster.members.size(), 3u);
}

TEST(Reform, several_re_formings_in_a_row_shrink_the_group_to_one) {
  MemberGroup group(4);
  std::vector<Rank> gone;
  for (Rank victim = 0; victim < 3; ++victim) {
    gone.push_back(victim);
    for (Rank rank = victim + 1; rank < 4; ++rank) group.start(rank, {victim});
    group.deliver(gone);
    for (Rank rank = victim + 1; rank < 4; ++rank) {
      const auto result = group.result(rank);
      EXPECT_EQ(result.roster.epoch, victim + 2);
      EXPECT_EQ(result.self, rank - victim - 1);
      EXPECT_EQ(result.roster.members.size(), 3 - victim);
    }
  }
}

TEST(Reform, min_world_refuses_a_group_too_small_and_names_the_lost) {
  MemberGroup group(3);
  ReformRequest request;
  request.min_world = 2;
  group.start(0, {1, 2}, request);
  const auto status = group.failure(0);
  EXPECT_EQ(status.code(), Code::unavailable);
  EXPECT_NE(status.message().find(
                "1 of 3 ranks remain, at least 2 are required; rank 1 (host h1, pid 101): its process has ended or has "
                "left, as rank 0 knows"),
            std::string::npos)
      << status.message();
}

TEST(Reform, a_majority_that_was_awake_survives_one_member_that_removed_it_too_early) {
  MemberGroup group(4);
  for (const Rank rank : {0u, 1u, 2u, 3u}) group.start(rank, {});
  group.deliver({0});
  group.now +=
      reform_timeout - microsecond;  // ranks 1 to 3 still wait for rank 0, which was stopped and takes all others for dead
  ASSERT_TRUE(group.members[1].running());
  group.now += microsecond;
  for (const Rank rank : {1u, 2u, 3u}) {
    const Removed removed{2, {rank, Departure::Cause::silent, 0, 200}, {0}, 1, 0};
    const Bytes bytes = encode(ReformMessage{name_of(group.roster), removed});
    ASSERT_TRUE(group.members[rank].message(group.roster.members[0].id, bytes, group.now).ok());
  }
  group.deliver({0});
  EXPECT_EQ(group.result(1).roster.members.size(), 3u);
  EXPECT_EQ(group.result(3).lost_reasons.at(0), "it had continued the group without rank 1");
}

TEST(Reform, a_silent_lowest_rank_is_removed_after_a_timeout_even_if_all_have_agreed) {
  MemberGroup group(3);
  for (const Rank rank : {0u, 1u, 2u}) group.start(rank, {});
  for (auto& send : group.members[0].take_sends()) {  // the last messages of rank 0 that arrive
    const auto to = *group.roster.rank_of(send.to);
    ASSERT_TRUE(group.members[to].message(group.roster.members[0].id, send.bytes, group.now).ok());
  }
  group.deliver({0});
  group.pass(reform_timeout, {0});
  EXPECT_TRUE(group.members[1].running()) << "rank 0 may be waiting for a member whose messages rank 1 has received";
  group.pass(reform_timeout / 4, {0});
  EXPECT_EQ(group.result(1).roster.members.size(), 2u);
  EXPECT_EQ(group.result(2).roster.members.size(), 2u);
}

TEST(Reform, a_proposal_overtaken_by_a_later_one_is_ignored) {
  MemberGroup group(3);
  group.start(1, {});
  const auto from = group.roster.members[0].id;
  const EpochName base = name_of(group.roster);
  ASSERT_TRUE(group.members[1].message(from, encode(ReformMessage{base, Propose{2, 0, {}, {}}}), group.now).ok());
  group.members[1].take_sends();
  const Propose older{1, 0, {{2, Departure::Cause::lost, 0, 0}}, {}};
  ASSERT_TRUE(group.members[1].message(from, encode(ReformMessage{base, older}), group.now).ok());
  EXPECT_TRUE(group.members[1].take_sends().empty()) << "nothing changed, so there is nothing to send";
}

TEST(Reform, a_message_about_the_next_epoch_is_kept_until_its_roster_has_come) {
  MemberGroup group(2);
  group.start(0, {});
  group.start(1, {});
  for (auto& send : group.members[1].take_sends())
    ASSERT_TRUE(group.members[0].message(group.roster.members[1].id, send.bytes, group.now).ok());
  const auto first = group.members[0].take_sends();  // rank 0's proposal and the next roster
  ASSERT_TRUE(group.members[0].take_result()->ok());
  group.start(0, {});
  const auto next = group.members[0].take_sends();
  for (const auto* sends : {&next, &first}) {  // later messages overtake earlier ones
    for (const auto& send : *sends)
      ASSERT_TRUE(group.members[1].message(group.roster.members[0].id, send.bytes, group.now).ok());
  }
  EXPECT_EQ(group.result(1).roster.epoch, 2u);
  EXPECT_TRUE(group.members[1].requested_by_peer()) << "rank 0 already waits for rank 1";
  group.start(1, {});
  group.deliver();
  EXPECT_EQ(group.result(0).roster.epoch, 3u);
  EXPECT_EQ(group.result(1).roster.epoch, 3u);
}

TEST(Reform, a_smaller_half_that_contacts_a_larger_one_at_once_ends) {
  MemberGroup group(3);
  for (const Rank rank : {0u, 1u}) group.start(rank, {2});
  group.deliver({2});
  group.start(2, {0, 1});
  const auto said = group.members[2].take_sends();
  ASSERT_TRUE(group.members[2].take_result()->ok());
  for (const auto& send : said)
    ASSERT_TRUE(group.members[*group.roster.rank_of(send.to)].message(group.roster.members[2].id, send.bytes, group.now).ok());
  group.deliver();
  EXPECT_EQ(group.failure(2).code(), Code::peer_lost);
  EXPECT_EQ(group.members[0].roster().members.size(), 2u);
}

TEST(Reform, start_fails_while_re_forming) {
  MemberGroup group(2);
  group.start(0, {});
  EXPECT_EQ(group.members[0].start({}, group.now).code(), Code::invalid);
}

TEST(Reform, malformed_messages_change_nothing_and_are_counted) {
  MemberGroup group(3);
  group.start(0, {});
  const auto from = group.roster.members[1].id;
  const EpochName base = name_of(group.roster);
  const auto deadline = group.members[0].next_deadline();
  Commit foreign{make_roster(3, 9), {}};
  Commit smaller{make_roster(3, 2), {{2, Departure::Cause::lost, 1, 0}}};
  smaller.roster.members[1].host = "forged";
  Commit too_small{make_roster(1, 2), {}};
  Commit other_key{make_roster(3, 2), {}};
  other_key.roster.key[0] = std::byte{0};
  const Bytes cases[] = {
      Bytes(),
      Bytes(30, std::byte{0xFF}),
      encode(ReformMessage{base, Propose{1, 0, {{3, Departure::Cause::lost, 1, 0}}, {}}}),  // there is no rank 3
      encode(ReformMessage{base, Propose{1, 0, {{1, Departure::Cause::lost, 1, 0}}, {}}}),  // accuses its own sender
      encode(ReformMessage{base, foreign}),
      encode(ReformMessage{base, smaller}),
      encode(ReformMessage{base, too_small}),
      encode(ReformMessage{base, other_key}),
  };
  uint64_t count = 0;
  group.members[0].take_sends();
  for (const auto& bytes : cases) {
    EXPECT_EQ(group.members[0].message(from, bytes, group.now).code(), Code::corrupt) << "case " << count;
    EXPECT_EQ(group.members[0].counters().malformed, ++count);
    EXPECT_TRUE(group.members[0].running());
    EXPECT_TRUE(group.members[0].take_sends().empty());
    EXPECT_EQ(group.members[0].next_deadline(), deadline);
  }
}

TEST(Reform, messages_of_unknown_processes_are_counted_and_not_answered) {
  MemberGroup group(2);
  group.start(0, {});
  group.members[0].take_sends();
  const Bytes bytes = encode(ReformMessage{name_of(group.roster), Propose{1, 0, {}, {}}});
  EXPECT_TRUE(group.members[0].message({99, 99}, bytes, group.now).ok());
  const Bytes old = encode(ReformMessage{{0, 5}, Propose{1, 0, {}, {}}});
  EXPECT_TRUE(group.members[0].message({99, 99}, old, group.now).ok());
  EXPECT_EQ(group.members[0].counters().unauthenticated, 2u);
  EXPECT_TRUE(group.members[0].take_sends().empty());
}

}  // namespace
}  // namespace unisono
