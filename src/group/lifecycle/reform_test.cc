#include "group/lifecycle/reform.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "testing/peer_ids.h"

namespace unisono {
namespace {

using test::make_roster;
using test::member;
using test::reform_timeout;

constexpr Nanos start_time = 10 * second;

// All members of a group in one process; the test carries their messages by hand.
struct MemberGroup {
  explicit MemberGroup(uint32_t world) : roster(make_roster(world)) {
    for (const auto& each : roster.members) members.emplace_back(roster, each.id);
  }
  void start(Rank rank, std::vector<Rank> dead, ReformRequest request = {}) {
    for (const Rank d : dead) request.dead.push_back(roster.members[d].id);
    ASSERT_TRUE(members[rank].start(request, now).ok());
  }
  // Carries messages until no member sends any more. Messages of `unreachable` ranks do not arrive, and none arrive at these
  // ranks.
  void deliver(std::vector<Rank> unreachable = {}) {
    const auto cut_off = [&](Rank rank) {
      return std::find(unreachable.begin(), unreachable.end(), rank) != unreachable.end();
    };
    for (bool any = true; any;) {
      any = false;
      for (Rank from = 0; from < members.size(); ++from) {
        for (auto& send : members[from].take_sends()) {
          const auto to = roster.rank_of(send.to);
          if (!to || cut_off(from) || cut_off(*to)) continue;
          EXPECT_TRUE(members[*to].message(roster.members[from].id, send.bytes, now).ok());
          any = true;
        }
      }
    }
  }
  void pass(Nanos time, std::vector<Rank> asleep = {}) {
    now += time;
    for (Rank rank = 0; rank < members.size(); ++rank) {
      const bool awake = std::find(asleep.begin(), asleep.end(), rank) == asleep.end();
      if (awake && members[rank].next_deadline() <= now) members[rank].woke(now);
    }
    deliver(asleep);
  }
  ReformResult result(Rank rank) {
    auto taken = members[rank].take_result();
    EXPECT_TRUE(taken.has_value()) << "rank " << rank << " has not finished";
    if (!taken) return {};
    EXPECT_TRUE(taken->ok()) << taken->status().to_string();
    return taken->ok() ? taken->value() : ReformResult{};
  }
  Status failure(Rank rank) {
    auto taken = members[rank].take_result();
    return taken ? taken->status() : Status();
  }

  Roster roster;
  std::vector<Reform> members;
  Nanos now = start_time;
};

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

// Ranks of a part of a split group, and what they know of the others.
struct Part {
  std::vector<Rank> ranks;
  std::vector<Rank> lost{};  // the others that do not answer
  std::vector<Rank> dead{};  // the others that have ended, which is proven
};

void start_part(MemberGroup& group, const Part& part, ReformRequest request = {}) {
  for (const Rank rank : part.lost) request.lost.push_back(group.roster.members[rank].id);
  for (const Rank rank : part.ranks) group.start(rank, part.dead, request);
  std::vector<Rank> others = part.lost;
  others.insert(others.end(), part.dead.begin(), part.dead.end());
  group.deliver(others);
}

void expect_to_go_on(MemberGroup& group, const Part& part) {
  for (const Rank rank : part.ranks) EXPECT_EQ(group.result(rank).roster.members.size(), part.ranks.size()) << rank;
}

// A part without a majority waits for proofs of deaths, and then ends.
void expect_to_end(MemberGroup& group, const Part& part) {
  for (const Rank rank : part.ranks) EXPECT_TRUE(group.members[rank].running()) << "rank " << rank << " waits for proofs";
  group.now += ReformRequest().link_timeout;
  for (const Rank rank : part.ranks) {
    group.members[rank].woke(group.now);
    const auto why = group.failure(rank);
    EXPECT_EQ(why.code(), Code::unavailable) << "rank " << rank << ": " << why.message();
    EXPECT_NE(why.message().find("a majority must go on"), std::string::npos) << why.message();
  }
}

TEST(Reform, of_a_split_the_majority_continues_and_the_minority_does_not) {
  for (const Part& majority : {Part{{0, 1, 2}, {3, 4}}, Part{{2, 3, 4}, {0, 1}}}) {
    MemberGroup group(5);
    start_part(group, majority);
    const Part minority{majority.lost, majority.ranks};
    start_part(group, minority);
    expect_to_go_on(group, majority);
    expect_to_end(group, minority);
  }
}

TEST(Reform, of_two_equal_halves_the_one_with_rank_0_continues) {
  const Part half{{0, 2}, {1, 3}}, other{{1, 3}, {0, 2}};
  MemberGroup group(4);
  start_part(group, other);
  start_part(group, half);
  expect_to_go_on(group, half);
  expect_to_end(group, other);
}

TEST(Reform, one_rank_is_no_majority_of_four_even_if_it_is_rank_0) {
  const Part minority{{0}, {1, 2, 3}}, majority{{1, 2, 3}, {0}};
  MemberGroup group(4);
  start_part(group, minority);
  start_part(group, majority);
  expect_to_go_on(group, majority);
  expect_to_end(group, minority);
}

TEST(Reform, ranks_that_have_provably_ended_do_not_count) {
  MemberGroup group(4);
  const Part last{{2}, {}, {0, 1, 3}};
  start_part(group, last);
  expect_to_go_on(group, last);
  // Two of three that may live are a majority, although they are two of five.
  MemberGroup more(5);
  const Part two{{3, 4}, {2}, {0, 1}};
  start_part(more, two);
  expect_to_go_on(more, two);
}

TEST(Reform, silent_ranks_count_although_others_have_ended) {
  MemberGroup group(5);
  const Part two{{3, 4}, {0, 1}, {2}};
  start_part(group, two);
  expect_to_end(group, two);
}

TEST(Reform, if_rank_0_has_ended_the_half_with_the_next_rank_continues) {
  MemberGroup group(5);
  const Part half{{1, 4}, {2, 3}, {0}}, other{{2, 3}, {1, 4}, {0}};
  start_part(group, half);
  start_part(group, other);
  expect_to_go_on(group, half);
  expect_to_end(group, other);
}

TEST(Reform, a_part_whose_knowledge_of_deaths_differs_does_not_go_on_beside_the_other) {
  // Rank 0 has ended, and only ranks 3 and 4 know it. They have exactly half of the others, and rank 1 is not among them.
  MemberGroup group(5);
  const Part half{{1, 2}, {0, 3, 4}}, other{{3, 4}, {1, 2}, {0}};
  start_part(group, half);
  start_part(group, other);
  expect_to_end(group, half);
  expect_to_end(group, other);
}

TEST(Reform, a_proof_of_a_death_lets_a_part_go_on_that_waits_for_it) {
  MemberGroup group(4);
  const Part half{{2, 3}, {0, 1}};
  start_part(group, half);
  group.now += 3 * second;
  ASSERT_TRUE(group.members[2].running());
  group.members[3].peer_dead(group.roster.members[0].id, group.now);
  group.deliver({0, 1});
  expect_to_go_on(group, half);  // two of three
}

TEST(Reform, while_a_part_waits_for_proofs_nobody_counts_its_lowest_rank_as_silent) {
  MemberGroup group(4);
  const Part half{{2, 3}, {0, 1}};
  start_part(group, half);
  EXPECT_EQ(group.members[3].next_deadline(), start_time + ReformRequest().link_timeout);
  group.pass(5 * second, {0, 1});
  group.members[2].peer_dead(group.roster.members[1].id, group.now);
  group.deliver({0, 1});
  expect_to_go_on(group, half);
}

TEST(Reform, the_error_of_a_minority_says_what_happened_to_whom_and_what_to_do) {
  MemberGroup group(5);
  const Part two{{3, 4}, {0, 1}, {2}};
  start_part(group, two);
  group.now += ReformRequest().link_timeout;
  group.members[3].woke(group.now);
  EXPECT_EQ(
      group.failure(3).message(),
      "re-forming after epoch 1: only 2 of 4 ranks can be reached, not counting 1 that have ended (rank 0 on host h0, rank "
      "1 on host h1: no answer for 10.0 s); a majority must go on, so that a split job does not train twice; set "
      "require_majority=false to go on regardless");
}

TEST(Reform, both_halves_continue_if_no_majority_is_required) {
  ReformRequest request;
  request.require_majority = false;
  MemberGroup group(4);
  const Part half{{0, 1}, {2, 3}}, other{{2, 3}, {0, 1}};
  start_part(group, half, request);
  start_part(group, other, request);
  expect_to_go_on(group, half);
  expect_to_go_on(group, other);
}

TEST(Reform, a_member_whose_link_is_made_anew_is_waited_for) {
  MemberGroup group(3);
  ReformRequest relinks;
  relinks.relinking = {{group.roster.members[2].id, group.now + 2 * second}};
  group.start(0, {}, relinks);
  group.start(1, {});
  group.start(2, {});
  group.deliver();
  for (int i = 0; i < 9; ++i) group.pass(reform_timeout);
  EXPECT_TRUE(group.members[0].running());
  for (const Rank rank : {1u, 2u})
    EXPECT_TRUE(group.members[rank].running()) << "rank 0 has told rank " << rank << " that it waits";
  group.members[0].link_up(group.roster.members[2].id, group.now);
  group.deliver();
  for (const Rank rank : {0u, 1u, 2u}) EXPECT_EQ(group.result(rank).roster.members.size(), 3u);
}

TEST(Reform, nobody_agrees_while_a_link_is_made_anew) {
  MemberGroup group(3);
  ReformRequest relinks;
  relinks.relinking = {{group.roster.members[2].id, group.now + second}};
  group.start(0, {});
  group.start(1, {}, relinks);
  group.start(2, {});
  group.deliver();
  EXPECT_TRUE(group.members[0].running()) << "ranks 1 and 2 have no link yet";
  group.members[1].link_up(group.roster.members[2].id, group.now);
  group.deliver();
  EXPECT_EQ(group.result(0).roster.members.size(), 3u);
}

TEST(Reform, a_link_that_breaks_while_re_forming_is_waited_for) {
  MemberGroup group(3);
  for (const Rank rank : {0u, 1u, 2u}) group.start(rank, {});
  group.deliver({2});
  group.now += reform_timeout - millisecond;
  for (const Rank rank : {0u, 1u}) group.members[rank].link_down(group.roster.members[2].id, never, group.now);
  group.deliver({2});
  for (int i = 0; i < 10; ++i) group.pass(reform_timeout, {2});
  for (const Rank rank : {0u, 1u}) {
    ASSERT_TRUE(group.members[rank].running());
    group.members[rank].link_up(group.roster.members[2].id, group.now);
  }
  group.pass(reform_timeout - millisecond, {2});
  EXPECT_TRUE(group.members[0].running()) << "its silence counts from when its link was up";
  group.pass(millisecond, {2});
  EXPECT_EQ(group.result(0).roster.members.size(), 2u);
}

TEST(Reform, a_link_that_is_not_made_anew_in_time_removes_the_member) {
  MemberGroup group(3);
  ReformRequest relinks;
  relinks.relinking = {{group.roster.members[2].id, group.now + 2 * second}};
  for (const Rank rank : {0u, 1u}) group.start(rank, {}, relinks);
  group.deliver({2});
  group.pass(2 * second - millisecond, {2});
  EXPECT_TRUE(group.members[0].running());
  group.pass(millisecond, {2});
  const auto result = group.result(0);
  ASSERT_EQ(result.lost_reasons.size(), 1u);
  EXPECT_EQ(result.lost_reasons[0], "rank 0 could not reach it for 2000 ms");
}

TEST(Reform, links_that_break_again_and_again_are_waited_for_no_longer_than_the_link_timeout) {
  MemberGroup group(3);
  for (const Rank rank : {0u, 1u}) group.start(rank, {});
  group.deliver({2});
  const auto id = group.roster.members[2].id;
  for (int i = 0; i < 200 && group.members[0].running(); ++i) {
    group.members[0].link_down(id, never, group.now);
    group.pass(100 * millisecond, {2});
    group.members[0].link_up(id, group.now);
    group.members[1].link_down(id, never, group.now);
    group.deliver({2});
  }
  EXPECT_LE(group.now - start_time, ReformRequest().link_timeout + second);
  EXPECT_EQ(group.result(0).roster.members.size(), 2u);
}

TEST(Reform, two_halves_never_share_an_epoch) {
  MemberGroup group(4);
  ReformRequest both;
  both.require_majority = false;
  for (const Rank rank : {0u, 1u}) group.start(rank, {2, 3}, both);
  group.deliver({2, 3});
  for (const Rank rank : {2u, 3u}) group.start(rank, {0, 1}, both);
  group.deliver({0, 1});
  const auto left = group.result(0);
  const auto right = group.result(2);
  EXPECT_EQ(left.roster.epoch, right.roster.epoch);
  EXPECT_NE(left.digest, right.digest);
  EXPECT_NE(wire_epoch(left.roster), wire_epoch(right.roster));
}

TEST(Reform, one_of_two_halves_ends_if_they_hear_of_each_other_at_once) {
  MemberGroup group(4);
  ReformRequest both;
  both.require_majority = false;
  for (const Rank rank : {0u, 1u}) group.start(rank, {2, 3}, both);
  for (const Rank rank : {2u, 3u}) group.start(rank, {0, 1}, both);
  group.deliver();
  EXPECT_EQ(group.result(0).roster, group.result(1).roster);
  EXPECT_EQ(group.failure(2).code(), Code::peer_lost);
  EXPECT_EQ(group.failure(3).code(), Code::peer_lost);
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
