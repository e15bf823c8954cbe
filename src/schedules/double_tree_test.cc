// Tests the double tree: the checker proves it, it is as balanced as its paper says, and choose() takes it where the cost model
// favours it.
#include "schedules/double_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "schedules/checker.h"
#include "schedules/choose.h"
#include "schedules/make.h"

namespace unisono {
namespace {

std::vector<Schedule> schedules_of(uint32_t world) {
  std::vector<Schedule> all;
  for (Rank rank = 0; rank < world; ++rank)
    all.push_back(make_schedule({.kind = ScheduleKind::double_tree, .world = world, .rank = rank}).value());
  return all;
}

TEST(DoubleTree, is_proven_for_every_world_up_to_64_and_some_above) {
  for (uint32_t world = 1; world <= 67; ++world) {
    const auto all = schedules_of(world == 66 ? 129 : world == 67 ? 1000 : world);
    const auto proof = check_schedules({.collective = Collective::all_reduce, .schedules = all});
    ASSERT_TRUE(proof.ok()) << world << ": " << proof.status().message();
    EXPECT_TRUE(proof->overwrite_safe) << world;
  }
}

TEST(DoubleTree, no_rank_has_children_in_both_trees_and_none_sends_more_than_twice_the_tensor) {
  for (uint32_t world = 2; world <= 64; ++world) {
    for (const auto& schedule : schedules_of(world)) {
      std::set<uint32_t> adds_in;
      size_t sends = 0;
      for (const auto& step : schedule.steps) {
        if (step.op == Op::recv_reduce) adds_in.insert(step.chunks.begin);
        sends += step.op == Op::send ? step.chunks.end - step.chunks.begin : 0;
        EXPECT_LT(step.round, 2 * double_tree_height(world));
      }
      EXPECT_LE(adds_in.size(), 1u) << world;
      EXPECT_LE(sends, 4u) << world;  // each send is half of the tensor
    }
  }
}

TEST(DoubleTree, is_chosen_only_for_small_tensors_in_large_worlds) {
  const auto kind = [](uint32_t world, uint64_t bytes) {
    const auto choice =
        choose({.bytes = bytes, .world = world, .inside = shared_memory_profile(4), .between = network_tcp_profile(4)});
    return choice.value().kind;
  };
  EXPECT_EQ(kind(64, 8 << 10), ScheduleKind::double_tree);
  EXPECT_EQ(kind(64, 1 << 20), ScheduleKind::halving_doubling);
  EXPECT_EQ(kind(256, 64 << 10), ScheduleKind::double_tree);
  EXPECT_EQ(kind(16, 8 << 10), ScheduleKind::two_step);
  EXPECT_EQ(kind(16, 1 << 20), ScheduleKind::two_step);
  EXPECT_EQ(kind(256, 64 << 20), ScheduleKind::halving_doubling);
}

}  // namespace
}  // namespace unisono
