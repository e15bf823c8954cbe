// A group is split, or members die. Tests which part goes on.
#include "group/lifecycle/reform_test_support.h"

namespace unisono {
namespace {

using test::MemberGroup;
using test::start_time;

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

}  // namespace
}  // namespace unisono
