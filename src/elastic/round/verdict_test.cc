// Check A24 of docs/design/methods/moshpit.md: the time of the verdict, its bits, and each of its rules.
#include "elastic/round/verdict.h"

#include <gtest/gtest.h>

#include "elastic/round/verdict_test_support.h"

namespace unisono {
namespace {

using test::bits;
using test::VirtualGroup;

constexpr Nanos delay = 40 * millisecond;
constexpr Nanos began = 500 * millisecond;

VirtualGroup group_of(uint32_t members, std::vector<uint32_t> clients = {}) {
  std::vector<bool> proposer(members, true);
  for (const auto rank : clients) proposer[rank] = false;
  return VirtualGroup({.members = members, .proposer = proposer, .delay_min = delay, .delay_max = delay});
}

void expect_all_decided(const VirtualGroup& group, uint32_t members, const std::string& value, Nanos when) {
  for (uint32_t rank = 0; rank < members; ++rank) {
    if (!group.alive(rank)) continue;
    ASSERT_NE(group.machine(rank).decided(), nullptr) << rank;
    EXPECT_EQ(test::to_string(*group.machine(rank).decided()), value) << rank;
    EXPECT_EQ(group.decided_at(rank), when) << rank;
  }
}

const std::vector<std::string> five = {"1111", "1101", "1101", "0101", "1100"};

TEST(Verdict, a24_all_decide_three_delays_after_the_last_have) {
  auto group = group_of(5);
  for (uint32_t rank = 0; rank < 5; ++rank) group.have_at(rank, bits(five[rank]), began);
  group.run(10 * second);
  expect_all_decided(group, 5, "1101", began + 3 * delay);
}

TEST(Verdict, decides_three_delays_after_a_last_have_within_half_a_ballot) {
  auto group = group_of(5);
  for (uint32_t rank = 0; rank < 5; ++rank) group.have_at(rank, bits(five[rank]), began + rank * 100 * millisecond);
  group.run(10 * second);
  expect_all_decided(group, 5, "1101", began + 400 * millisecond + 3 * delay);
}

TEST(Verdict, a24_a_dead_first_proposer_costs_one_ballot) {
  auto group = group_of(5);
  group.crash_at(0, 0);
  for (uint32_t rank = 1; rank < 5; ++rank) group.have_at(rank, bits(five[rank]), began);
  group.run(10 * second);
  expect_all_decided(group, 5, "1101", began + 1160 * millisecond);
}

TEST(Verdict, a24_with_ranks_0_and_3_dead_only_chunks_that_the_other_three_hold_are_applied) {
  auto group = group_of(5);
  group.crash_at(0, 0);
  group.crash_at(3, 0);
  for (const uint32_t rank : {1, 2, 4}) group.have_at(rank, bits(five[rank]), began);
  group.run(10 * second);
  expect_all_decided(group, 5, "1100", began + 1160 * millisecond);
}

TEST(Verdict, a_member_known_to_be_gone_is_not_waited_for) {
  auto group = group_of(5);
  group.crash_at(4, 0);
  group.gone_at(4, 0, began + 10 * millisecond);
  for (uint32_t rank = 0; rank < 4; ++rank) group.have_at(rank, bits(five[rank]), began);
  group.run(10 * second);
  expect_all_decided(group, 5, "1101", began + 3 * delay);
}

TEST(Verdict, proposers_known_to_be_gone_are_passed_over_at_once) {
  auto group = group_of(5);
  for (const uint32_t dead : {0, 1}) {
    group.crash_at(dead, 0);
    for (const uint32_t observer : {2, 3, 4}) group.gone_at(dead, observer, began - 10 * millisecond);
  }
  for (const uint32_t rank : {2, 3, 4}) group.have_at(rank, bits(five[rank]), began);
  group.run(10 * second);
  expect_all_decided(group, 5, "0100", began + 4 * delay);
}

TEST(Verdict, a_proposer_that_turns_out_to_be_gone_is_passed_over_then) {
  auto group = group_of(5);
  group.crash_at(0, 0);
  for (uint32_t observer = 1; observer < 5; ++observer) group.gone_at(0, observer, began + 100 * millisecond);
  for (uint32_t rank = 1; rank < 5; ++rank) group.have_at(rank, bits(five[rank]), began);
  group.run(10 * second);
  expect_all_decided(group, 5, "1101", began + 100 * millisecond + 4 * delay);
}

TEST(Verdict, ballots_go_on_by_time_after_proposers_were_passed_over) {
  auto group = group_of(5);
  group.crash_at(0, 0);
  group.crash_at(1, 0);  // no member notices this crash
  for (const uint32_t observer : {2, 3, 4}) group.gone_at(0, observer, began);
  for (const uint32_t rank : {2, 3, 4}) group.have_at(rank, bits(five[rank]), began);
  group.run(10 * second);
  expect_all_decided(group, 5, "0100", began + 2 * second + 4 * delay);
}

TEST(Verdict, a_client_whose_proposers_all_seem_to_be_gone_asks_one_of_them_with_each_ballot) {
  Verdict verdict({.members = 3, .self = 2, .proposer = {true, true, false}, .chunks = 4});
  verdict.have(bits("1111"), began);
  for (const uint32_t rank : {0, 1}) verdict.member_gone(rank, began);
  verdict.take_sends();
  for (uint32_t ballot = 1; ballot < 6; ++ballot) {
    ASSERT_EQ(verdict.next_deadline(), began + ballot * second);
    verdict.woke(verdict.next_deadline());
    const auto sends = verdict.take_sends();
    ASSERT_EQ(sends.size(), 1u);
    EXPECT_EQ(sends[0].to, ballot % 2);
  }
}

TEST(Verdict, a_silent_member_is_waited_for_half_a_ballot) {
  auto group = group_of(5);
  group.crash_at(4, 0);
  for (uint32_t rank = 0; rank < 4; ++rank) group.have_at(rank, bits(five[rank]), began);
  group.run(10 * second);
  expect_all_decided(group, 5, "1101", began + 500 * millisecond + 2 * delay);
}

TEST(Verdict, with_less_than_a_majority_of_haves_nothing_is_proposed_yet) {
  auto group = group_of(5);
  for (uint32_t rank = 0; rank < 5; ++rank) group.have_at(rank, bits(five[rank]), began + (rank < 2 ? 0 : 700 * millisecond));
  group.run(10 * second);
  // Two HAVEs come early. After half a ballot_timeout (500 ms), the proposer no longer waits for all members. The first late
  // HAVE, at 700 ms, completes a majority.
  expect_all_decided(group, 5, "1101", began + 700 * millisecond + 3 * delay);
}

TEST(Verdict, a_group_of_two_commits_only_if_both_live) {
  auto both = group_of(2);
  both.have_at(0, bits("1101"), began);
  both.have_at(1, bits("0101"), began);
  both.run(20 * second);
  for (const uint32_t rank : {0, 1}) {
    ASSERT_NE(both.machine(rank).decided(), nullptr);
    EXPECT_EQ(*both.machine(rank).decided(), bits("0101"));
  }
  auto one = group_of(2);
  one.crash_at(1, 0);
  one.have_at(0, bits("1111"), began);
  one.gone_at(1, 0, began + second);
  one.run(20 * second);
  EXPECT_EQ(one.machine(0).decided(), nullptr);
  EXPECT_TRUE(one.machine(0).hopeless());
}

TEST(Verdict, is_hopeless_once_no_majority_is_left) {
  for (uint32_t members = 1; members <= 9; ++members) {
    Verdict verdict({.members = members, .self = 0, .proposer = std::vector<bool>(members, true), .chunks = 1});
    const uint32_t enough = members - verdict.majority() + 1;  // number of losses that leave fewer members than a majority
    for (uint32_t gone = 1; gone < members; ++gone) {
      verdict.member_gone(gone, 0);
      verdict.member_gone(gone, 0);
      EXPECT_EQ(verdict.hopeless(), gone >= enough) << gone << " of " << members;
    }
  }
}

TEST(Verdict, a_client_gets_the_verdict_from_a_member_that_has_it) {
  // Only rank 0 can propose. Clients cannot reach each other, so no client gets a majority of accepts. Rank 0 tells the clients
  // the decision.
  auto group = group_of(5, {1, 2, 3, 4});
  for (uint32_t rank = 0; rank < 5; ++rank) group.have_at(rank, bits(five[rank]), began);
  group.run(10 * second);
  for (uint32_t rank = 0; rank < 5; ++rank) {
    EXPECT_EQ(group.decided_at(rank), began + (rank == 0 ? 3 : 4) * delay) << rank;
  }
}

TEST(Verdict, clients_send_nothing_to_clients) {
  Verdict client({.members = 3, .self = 1, .proposer = {true, false, false}, .chunks = 1});
  client.message(0, VerdictPropose{0, bits("1")}, 0);
  const auto sends = client.take_sends();
  ASSERT_EQ(sends.size(), 1u);
  EXPECT_EQ(sends[0].to, 0u);
}

TEST(Verdict, a_member_in_repair_takes_part_but_promises_only_after_its_repair) {
  Verdict member({.members = 3, .self = 2, .proposer = {true, true, true}, .chunks = 2});
  member.message(1, VerdictPrepare{1}, 0);
  EXPECT_TRUE(member.take_sends().empty());
  member.message(0, VerdictPropose{0, bits("11")}, 0);  // ignored, because ballot 0 is lower than the promised ballot 1
  EXPECT_TRUE(member.take_sends().empty());
  member.have(bits("10"), millisecond);
  const auto sends = member.take_sends();
  ASSERT_EQ(sends.size(), 2u);
  EXPECT_EQ(std::get<VerdictPromise>(sends[0].message), (VerdictPromise{1, std::nullopt, bits("10")}));
  EXPECT_EQ(sends[0].to, 1u);
  EXPECT_EQ(std::get<VerdictHave>(sends[1].message).chunks, bits("10"));
  EXPECT_EQ(sends[1].to, 0u);
}

TEST(Verdict, the_accepted_value_of_the_highest_ballot_is_proposed_again) {
  Verdict proposer({.members = 5, .self = 3, .proposer = std::vector<bool>(5, true), .chunks = 2});
  proposer.have(bits("11"), 0);
  proposer.woke(3 * second);
  (void)proposer.take_sends();
  proposer.message(0, VerdictPromise{3, VerdictAccept{2, bits("01")}, bits("11")}, 3 * second);
  proposer.message(1, VerdictPromise{3, VerdictAccept{0, bits("10")}, bits("11")}, 3 * second);
  const auto sends = proposer.take_sends();
  ASSERT_GE(sends.size(), 4u);
  EXPECT_EQ(std::get<VerdictPropose>(sends[0].message), (VerdictPropose{3, bits("01")}));
}

TEST(Verdict, a_repeated_proposal_does_not_change) {
  Verdict first({.members = 3, .self = 0, .proposer = {true, false, false}, .chunks = 1});
  first.have(bits("1"), 0);
  first.message(1, VerdictHave{bits("0")}, 0);
  first.woke(second / 2);
  ASSERT_EQ(std::get<VerdictPropose>(first.take_sends().at(0).message), (VerdictPropose{0, bits("0")}));
  first.message(2, VerdictHave{bits("1")}, second / 2);
  EXPECT_TRUE(first.take_sends().empty());
}

TEST(Verdict, a_question_about_a_decided_verdict_is_answered) {
  Verdict member({.members = 3, .self = 0, .proposer = {true, true, true}, .chunks = 1});
  member.message(1, VerdictDecided{bits("1")}, 0);
  ASSERT_NE(member.decided(), nullptr);
  EXPECT_TRUE(member.take_sends().empty());
  const std::vector<VerdictMessage> questions = {VerdictHave{bits("0")}, VerdictPropose{2, bits("0")}, VerdictPrepare{2},
                                                 VerdictPromise{3, std::nullopt, bits("0")}};
  for (const auto& question : questions) {
    member.message(2, question, second);
    const auto sends = member.take_sends();
    ASSERT_EQ(sends.size(), 1u);
    EXPECT_EQ(sends[0].to, 2u);
    EXPECT_EQ(sends[0].message, VerdictMessage(VerdictDecided{bits("1")}));
  }
  member.message(2, VerdictDecided{bits("1")}, second);
  EXPECT_TRUE(member.take_sends().empty()) << "two that know would answer each other for ever";
  EXPECT_EQ(*member.decided(), bits("1"));
}

TEST(Verdict, impossible_messages_are_counted_and_ignored) {
  Verdict member({.members = 3, .self = 0, .proposer = {true, true, true}, .chunks = 1});
  member.message(3, VerdictDecided{bits("1")}, 0);                   // rank 3 is not a member
  member.message(0, VerdictDecided{bits("1")}, 0);                   // a message from this member itself
  member.message(1, VerdictDecided{bits("11")}, 0);                  // has two chunks instead of one
  member.message(2, VerdictPropose{1, bits("1")}, 0);                // only rank 1 may propose in ballot 1
  member.message(1, VerdictPrepare{0}, 0);                           // only rank 0 may prepare ballot 0
  member.message(1, VerdictPromise{1, std::nullopt, bits("1")}, 0);  // ballot 1 belongs to rank 1, not to this member
  EXPECT_EQ(member.ignored(), 6u);
  EXPECT_EQ(member.decided(), nullptr);
  EXPECT_TRUE(member.take_sends().empty());
}

TEST(Verdict, acceptances_of_one_member_count_once) {
  Verdict member({.members = 5, .self = 0, .proposer = std::vector<bool>(5, true), .chunks = 1});
  for (int i = 0; i < 5; ++i) member.message(1, VerdictAccept{0, bits("1")}, 0);
  member.message(2, VerdictAccept{1, bits("1")}, 0);
  member.message(3, VerdictAccept{2, bits("1")}, 0);
  EXPECT_EQ(member.decided(), nullptr) << "three of five, but of three ballots";
  member.message(1, VerdictAccept{2, bits("1")}, 0);
  member.message(2, VerdictAccept{2, bits("1")}, 0);
  EXPECT_NE(member.decided(), nullptr);
}

TEST(Verdict, a_fault_free_round_costs_one_acceptance_per_pair) {
  auto group = group_of(32);
  for (uint32_t rank = 0; rank < 32; ++rank) group.have_at(rank, bits("1111"), began);
  group.run(100 * second);
  expect_all_decided(group, 32, "1111", began + 3 * delay);
  EXPECT_EQ(group.messages(), 31u + 31u + 32u * 31u);
}

}  // namespace
}  // namespace unisono
