#include "executor/plan.h"

#include <gtest/gtest.h>

#include "schedules/make.h"

namespace unisono {
namespace {

TEST(Plan, two_step_starts_with_its_neighbours_chunk_and_receives_in_rank_order) {
  const auto schedule =
      make_schedule({.collective = Collective::all_reduce, .kind = ScheduleKind::two_step, .world = 4, .rank = 1});
  ASSERT_TRUE(schedule.ok());
  const auto plan = compile(*schedule, 1, 4);
  ASSERT_TRUE(plan.ok()) << plan.status().to_string();
  ASSERT_EQ(plan->chunks.size(), 4u);
  EXPECT_EQ(plan->chunks[plan->order[0]].chunk, 2u);
  const auto& own = plan->chunks[1];
  ASSERT_EQ(own.stage_end - own.stage_begin, 2u);
  const auto& contribute = plan->stages[own.stage_begin];
  EXPECT_TRUE(contribute.reduces);
  const auto ranks = plan->receives(contribute);
  EXPECT_EQ(std::vector<Rank>(ranks.begin(), ranks.end()), (std::vector<Rank>{0, 2, 3}));
  EXPECT_TRUE(own.ends_with_reduce);
  EXPECT_FALSE(plan->chunks[0].ends_with_reduce);
  EXPECT_EQ(plan->partners, (std::vector<Rank>{0, 2, 3}));
}

TEST(Plan, an_all_to_all_plan_holds_only_this_ranks_chunks) {
  const auto schedule =
      make_schedule({.collective = Collective::all_to_all, .kind = ScheduleKind::direct, .world = 5, .rank = 2});
  ASSERT_TRUE(schedule.ok());
  const auto plan = compile(*schedule, 2, 5);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->chunks.size(), 8u);
  EXPECT_GE(plan->find(2 * 5 + 0), 0);
  EXPECT_EQ(plan->find(0 * 5 + 1), -1);
}

TEST(Plan, refuses_a_schedule_that_adds_and_copies_one_chunk_in_one_round) {
  Schedule schedule{.kind = ScheduleKind::direct, .chunk_count = 1, .direct = true, .every_rank_completes = false, .steps = {}};
  schedule.steps = {{0, Op::recv_reduce, 1, {0, 1}}, {0, Op::recv_copy, 2, {0, 1}}};
  EXPECT_EQ(compile(schedule, 0, 3).status().code(), Code::internal);
  schedule.steps = {{0, Op::recv_reduce, 3, {0, 1}}};
  EXPECT_EQ(compile(schedule, 0, 3).status().code(), Code::internal);
  schedule.steps = {{0, Op::send, 1, {0, 2}}};
  EXPECT_EQ(compile(schedule, 0, 3).status().code(), Code::internal);
}

}  // namespace
}  // namespace unisono
