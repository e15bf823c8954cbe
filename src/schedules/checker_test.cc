#include "schedules/checker.h"

#include <string>

#include "schedules/test_support.h"

namespace unisono {
namespace {

using enum Op;

std::vector<Schedule> valid(ScheduleKind kind = ScheduleKind::two_step, uint32_t world = 3) {
  return test::make_all({.kind = kind, .world = world});
}

Result<Proof> check(const std::vector<Schedule>& schedules, Collective collective = Collective::all_reduce) {
  return check_schedules({.collective = collective, .schedules = schedules});
}

void expect_refusal(const std::vector<Schedule>& schedules, const std::string& words,
                    Collective collective = Collective::all_reduce) {
  const auto proof = check(schedules, collective);
  ASSERT_FALSE(proof.ok()) << "expected: " << words;
  EXPECT_EQ(proof.status().code(), Code::internal);
  EXPECT_NE(proof.status().message().find(words), std::string::npos) << proof.status().message();
}

// Makes the schedules of one chunk from the steps of each rank.
std::vector<Schedule> schedules_of_steps(std::vector<std::vector<Step>> steps, bool direct = true,
                                         bool every_rank_completes = false) {
  std::vector<Schedule> schedules;
  for (auto& own : steps)
    schedules.push_back({.kind = ScheduleKind::one_shot,
                         .chunk_count = 1,
                         .direct = direct,
                         .every_rank_completes = every_rank_completes,
                         .steps = std::move(own)});
  return schedules;
}

TEST(Checker, names_schedule_world_rank_round_and_chunk) {
  auto schedules = valid(ScheduleKind::ring, 4);
  schedules[2].steps.erase(schedules[2].steps.begin());
  const auto proof = check(schedules);
  ASSERT_FALSE(proof.ok());
  EXPECT_EQ(proof.status().message(),
            "ring all_reduce of 4 ranks: rank 3, round 0, chunk 1: waits for a send that rank 2 does not make");
}

TEST(Checker, refuses_a_send_without_receive) {
  auto schedules = valid();
  schedules[1].steps.pop_back();
  expect_refusal(schedules, "has no receive");
}

TEST(Checker, refuses_a_receive_without_send) {
  auto schedules = valid();
  schedules[1].steps.erase(schedules[1].steps.begin());
  expect_refusal(schedules, "does not make");
}

TEST(Checker, refuses_two_equal_sends) {
  auto schedules = valid();
  schedules[1].steps.insert(schedules[1].steps.begin(), schedules[1].steps.front());
  expect_refusal(schedules, "sends twice");
}

TEST(Checker, refuses_two_receives_of_one_send) {
  auto schedules = valid(ScheduleKind::one_shot, 2);
  schedules[1].steps.push_back(schedules[1].steps.back());
  expect_refusal(schedules, "does not make");
}

TEST(Checker, refuses_a_receive_in_another_round_than_the_send) {
  auto schedules = valid();
  schedules[1].steps.back().round += 1;
  expect_refusal(schedules, "has no receive");
}

TEST(Checker, refuses_steps_out_of_order) {
  auto schedules = valid();
  std::swap(schedules[0].steps.front(), schedules[0].steps.back());
  expect_refusal(schedules, "comes after a step of round 1");
}

TEST(Checker, refuses_a_send_behind_a_receive_of_its_round) {
  auto schedules = valid(ScheduleKind::one_shot, 2);
  std::swap(schedules[0].steps[0], schedules[0].steps[1]);
  expect_refusal(schedules, "a send comes after a receive");
}

TEST(Checker, refuses_a_rank_as_its_own_peer) {
  auto schedules = valid();
  schedules[1].steps[0].peer = 1;
  expect_refusal(schedules, "peer 1 is not another rank");
}

TEST(Checker, refuses_a_peer_outside_the_world) {
  auto schedules = valid();
  schedules[1].steps[0].peer = 3;
  expect_refusal(schedules, "peer 3 is not another rank");
}

TEST(Checker, refuses_an_empty_chunk_range) {
  auto schedules = valid();
  schedules[1].steps[0].chunks = {2, 2};
  expect_refusal(schedules, "chunk range");
}

TEST(Checker, refuses_a_chunk_outside_the_tensor) {
  auto schedules = valid();
  schedules[1].steps[0].chunks = {2, 4};
  expect_refusal(schedules, "chunk range ends at 4, chunk count 3");
}

TEST(Checker, refuses_a_round_that_does_not_fit_a_frame) {
  auto schedules = valid();
  schedules[1].steps.back().round = 65'536;
  expect_refusal(schedules, "does not fit 16 bits");
}

TEST(Checker, refuses_an_unknown_operation) {
  auto schedules = valid();
  schedules[1].steps.back().op = static_cast<Op>(9);
  expect_refusal(schedules, "unknown operation");
}

TEST(Checker, refuses_ranks_that_differ_in_chunk_count) {
  auto schedules = valid();
  schedules[1].chunk_count = 4;
  expect_refusal(schedules, "rank 1 and rank 0 differ");
}

TEST(Checker, refuses_a_chunk_count_that_the_collective_does_not_have) {
  auto schedules = test::make_all({.collective = Collective::all_gather, .kind = ScheduleKind::ring, .world = 3});
  for (auto& schedule : schedules) schedule.chunk_count = 4;
  expect_refusal(schedules, "4 chunks instead of 3", Collective::all_gather);
}

TEST(Checker, refuses_a_send_of_an_empty_value) {
  expect_refusal(schedules_of_steps({{{0, recv_copy, 1, {0, 1}}}, {{0, send, 0, {0, 1}}}}),
                 "sends a chunk that it does not have", Collective::broadcast);
}

TEST(Checker, refuses_a_contribution_counted_twice) {
  expect_refusal(schedules_of_steps({{{0, send, 1, {0, 1}}, {1, send, 1, {0, 1}}},
                                     {{0, recv_reduce, 0, {0, 1}}, {1, recv_reduce, 0, {0, 1}}}}),
                 "counts contributions twice");
}

TEST(Checker, refuses_an_addition_to_an_empty_value) {
  expect_refusal(schedules_of_steps({{{0, send, 1, {0, 1}}}, {{0, recv_reduce, 0, {0, 1}}}}),
                 "has no value to which it could add", Collective::broadcast);
}

TEST(Checker, refuses_a_copy_that_discards_a_contribution) {
  expect_refusal(schedules_of_steps({{{0, send, 1, {0, 1}}}, {{0, recv_copy, 0, {0, 1}}}}), "discards contributions");
}

TEST(Checker, refuses_an_unfinished_chunk_over_a_finished_one) {
  expect_refusal(schedules_of_steps(
                     {{{0, send, 1, {0, 1}}, {1, send, 1, {0, 1}}}, {{0, recv_reduce, 0, {0, 1}}, {1, recv_copy, 0, {0, 1}}}}),
                 "overwrites its finished chunk");
}

TEST(Checker, refuses_a_copy_of_a_value_that_the_rank_has) {
  expect_refusal(schedules_of_steps(
                     {{{0, send, 1, {0, 1}}, {1, send, 1, {0, 1}}}, {{0, recv_copy, 0, {0, 1}}, {1, recv_copy, 0, {0, 1}}}}),
                 "copies a value that it already has", Collective::broadcast);
}

TEST(Checker, refuses_a_copy_and_an_addition_in_one_stage) {
  const ChunkRange all{0, 1};
  expect_refusal(
      schedules_of_steps({{{0, send, 2, all}}, {{0, send, 2, all}}, {{0, recv_reduce, 0, all}, {0, recv_copy, 1, all}}}),
      "their order would matter");
}

TEST(Checker, refuses_a_rank_without_its_result) {
  expect_refusal(schedules_of_steps({{{0, recv_reduce, 1, {0, 1}}}, {{0, send, 0, {0, 1}}}}),
                 "rank 1, round 1, chunk 0: ends without the contribution of rank 0");
}

TEST(Checker, refuses_a_world_that_does_nothing) {
  expect_refusal(schedules_of_steps({{}, {}}), "ends without the contribution");
}

// Rank 0 receives from ranks 1 and 2 in two rounds, and rank 1 receives from ranks 0 and 2 in one round. Both end with the same
// set of contributions, but add in a different order.
TEST(Checker, refuses_completion_in_different_rounds) {
  const ChunkRange all{0, 1};
  expect_refusal(schedules_of_steps({{{0, send, 1, all}, {0, recv_reduce, 1, all}, {1, recv_reduce, 2, all}},
                                     {{0, send, 0, all}, {0, recv_reduce, 0, all}, {0, recv_reduce, 2, all}, {1, send, 2, all}},
                                     {{0, send, 1, all}, {1, send, 0, all}, {1, recv_copy, 1, all}}},
                                    false, true),
                 "which was completed in round 0");
}

// Recursive doubling on four ranks. All ranks end with the same set. But in round 1, ranks 0 and 1 add different values: rank 0
// receives the sum of rank 2, and rank 1 receives that of rank 3.
TEST(Checker, refuses_completion_from_different_parts) {
  const ChunkRange all{0, 1};
  std::vector<std::vector<Step>> steps;
  for (Rank rank = 0; rank < 4; ++rank)
    steps.push_back(
        {{0, send, rank ^ 1, all}, {0, recv_reduce, rank ^ 1, all}, {1, send, rank ^ 2, all}, {1, recv_reduce, rank ^ 2, all}});
  expect_refusal(schedules_of_steps(steps, false, true), "completes the chunk from other contributions");
}

TEST(Checker, refuses_a_false_claim_to_be_direct) {
  auto schedules = valid(ScheduleKind::ring, 4);
  for (auto& schedule : schedules) schedule.direct = true;
  expect_refusal(schedules, "claims direct = true");
}

TEST(Checker, refuses_a_false_denial_of_being_direct) {
  auto schedules = valid(ScheduleKind::two_step, 4);
  for (auto& schedule : schedules) schedule.direct = false;
  expect_refusal(schedules, "claims direct = false");
}

TEST(Checker, refuses_several_completions_that_are_not_claimed) {
  auto schedules = valid(ScheduleKind::one_shot, 4);
  for (auto& schedule : schedules) schedule.every_rank_completes = false;
  expect_refusal(schedules, "claims every_rank_completes = false");
}

TEST(Checker, refuses_claimed_completions_that_do_not_happen) {
  auto schedules = valid(ScheduleKind::two_step, 4);
  for (auto& schedule : schedules) schedule.every_rank_completes = true;
  expect_refusal(schedules, "claims every_rank_completes = true");
}

// Each message is the sender's own contribution. But the messages arrive in two rounds, so the rank adds the first message
// before it has the second.
TEST(Checker, does_not_call_contributions_of_different_rounds_direct) {
  expect_refusal(
      schedules_of_steps(
          {{{0, recv_reduce, 1, {0, 1}}, {1, recv_reduce, 2, {0, 1}}}, {{0, send, 0, {0, 1}}}, {{1, send, 0, {0, 1}}}}),
      "claims direct = true", Collective::reduce);
}

TEST(Checker, refuses_a_root_outside_the_world) {
  const auto schedules = valid();
  EXPECT_FALSE(check_schedules({.collective = Collective::reduce, .root = 3, .schedules = schedules}).ok());
}

TEST(Checker, refuses_no_ranks_and_too_many) {
  EXPECT_EQ(check_schedules({}).status().code(), Code::internal);
  const std::vector<Schedule> many(checker_world_max + 1);
  EXPECT_EQ(check_schedules({.schedules = many}).status().code(), Code::unsupported);
}

TEST(Checker, reports_a_stage_that_sends_and_receives_one_chunk) {
  EXPECT_FALSE(check(valid(ScheduleKind::one_shot, 3))->same_round_safe);
  EXPECT_TRUE(check(valid(ScheduleKind::ring, 3))->same_round_safe);
}

// Rank 0 sends to rank 2 in round 1. In round 2, the sum from rank 1 overwrites the chunk at rank 0. But rank 1 does not wait
// until rank 2 has received the message of round 1.
TEST(Checker, reports_an_overwrite_while_a_send_may_be_in_flight) {
  const ChunkRange all{0, 1};
  const auto proof =
      check(schedules_of_steps({{{0, send, 1, all}, {1, send, 2, all}, {2, recv_copy, 1, all}},
                                {{0, recv_reduce, 0, all}, {1, recv_reduce, 2, all}, {2, send, 0, all}, {2, send, 2, all}},
                                {{1, send, 1, all}, {1, recv_reduce, 0, all}, {2, recv_copy, 1, all}}},
                               false));
  ASSERT_TRUE(proof.ok()) << proof.status().to_string();
  EXPECT_FALSE(proof->overwrite_safe);
}

TEST(Checker, counts_rounds_and_messages) {
  const auto proof = check(valid(ScheduleKind::ring, 5));
  EXPECT_EQ(proof->rounds, 8u);
  EXPECT_EQ(proof->messages, 5u * 8u);
}

}  // namespace
}  // namespace unisono
