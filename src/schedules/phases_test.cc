// Tests properties of each phase beyond correctness: peers, rounds, bytes, order. make_test.cc proves correctness.
#include <algorithm>
#include <map>
#include <set>

#include "schedules/direct.h"
#include "schedules/halving_doubling.h"
#include "schedules/ring.h"
#include "schedules/team.h"
#include "schedules/test_support.h"
#include "schedules/two_step.h"

namespace unisono {
namespace {

using Steps = std::vector<Step>;

uint32_t chunks_sent(const Steps& steps) {
  uint32_t chunks = 0;
  for (const auto& step : steps)
    if (step.op == Op::send) chunks += step.chunks.end - step.chunks.begin;
  return chunks;
}

TEST(Team, makes_one_step_of_blocks_side_by_side) {
  Steps steps;
  team_of_world(8, 0).append(steps, {.round = 3, .op = Op::send, .peer = 5, .block = 2, .count = 4});
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_TRUE((steps[0] == Step{3, Op::send, 5, {2, 6}}));
}

TEST(Team, makes_two_steps_of_blocks_that_wrap_around) {
  Steps steps;
  team_of_world(8, 0).append(steps, {.peer = 1, .block = 6, .count = 4});
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0].chunks, (ChunkRange{6, 8}));
  EXPECT_EQ(steps[1].chunks, (ChunkRange{0, 2}));
}

TEST(Team, makes_no_step_of_empty_blocks) {
  Team team = team_of_world(4, 0);
  team.blocks = {{0, 1}, {1, 1}, {1, 1}, {1, 2}};
  Steps steps;
  team.append(steps, {.peer = 1, .block = 1, .count = 2});
  EXPECT_TRUE(steps.empty());
  team.append(steps, {.peer = 1, .block = 0, .count = 4});
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(steps[0].chunks, (ChunkRange{0, 2}));
}

TEST(Team, translates_positions_chunks_and_rounds) {
  Team team = team_in_order({4, 0, 2}, 2);
  team.first_round = 10;
  EXPECT_EQ(team.position, 2u);
  Steps steps;
  team.append(steps, {.round = 1, .op = Op::recv_copy, .peer = 0, .block = 0});
  EXPECT_TRUE((steps[0] == Step{11, Op::recv_copy, 4, {4, 5}}));
}

TEST(Team, counts_binary_levels) {
  EXPECT_EQ(log2_ceil(0), 0u);
  EXPECT_EQ(log2_ceil(1), 0u);
  EXPECT_EQ(log2_ceil(2), 1u);
  EXPECT_EQ(log2_ceil(3), 2u);
  EXPECT_EQ(log2_ceil(64), 6u);
  EXPECT_EQ(log2_ceil(65), 7u);
}

TEST(Ring, talks_to_its_two_neighbours_only) {
  for (const uint32_t world : {2u, 3u, 9u}) {
    const auto schedule = make_schedule({.kind = ScheduleKind::ring, .world = world, .rank = 1});
    for (const auto& step : schedule->steps) EXPECT_EQ(step.peer, step.op == Op::send ? 2 % world : 0u);
  }
}

TEST(HalvingDoubling, takes_the_fewest_rounds_and_bytes_for_every_world) {
  for (uint32_t world = 2; world <= 64; ++world) {
    for (const Rank rank : {0u, world / 2, world - 1}) {
      Steps scatter;
      append_halving_reduce_scatter(team_of_world(world, rank), scatter);
      EXPECT_EQ(chunks_sent(scatter), world - 1);
      EXPECT_EQ(scatter.back().round + 1, log2_ceil(world));
      Steps gather;
      append_doubling_all_gather(team_of_world(world, rank), gather);
      EXPECT_EQ(chunks_sent(gather), world - 1);
      EXPECT_EQ(gather.back().round + 1, log2_ceil(world));
    }
  }
}

TEST(HalvingDoubling, sends_half_of_the_tensor_first) {
  Steps steps;
  append_halving_reduce_scatter(team_of_world(8, 0), steps);
  EXPECT_TRUE((steps[0] == Step{0, Op::send, 4, {4, 8}}));
}

TEST(Direct, sends_to_all_different_ranks_at_every_moment) {
  constexpr uint32_t world = 7;
  std::vector<Steps> sends(world);
  for (Rank rank = 0; rank < world; ++rank) {
    append_direct_reduce_scatter(team_of_world(world, rank), sends[rank]);
    append_direct_all_to_all(world, rank, sends[rank]);
    std::erase_if(sends[rank], [](const Step& step) { return step.op != Op::send; });
  }
  for (size_t moment = 0; moment < sends[0].size(); ++moment) {
    std::set<Rank> receivers;
    for (const auto& steps : sends) receivers.insert(steps[moment].peer);
    EXPECT_EQ(receivers.size(), world);
  }
}

TEST(Direct, takes_one_round) {
  for (const auto collective : {Collective::reduce_scatter, Collective::all_gather, Collective::broadcast, Collective::reduce,
                                Collective::gather, Collective::scatter, Collective::all_to_all}) {
    const auto proof = test::prove({.collective = collective, .kind = ScheduleKind::direct, .world = 9, .root = 4});
    ASSERT_TRUE(proof.ok());
    EXPECT_EQ(proof->rounds, 1u) << name(collective);
    EXPECT_TRUE(proof->direct) << name(collective);
  }
}

TEST(Tree, the_tree_has_minimal_depth) {
  for (const uint32_t world : {2u, 5u, 8u, 33u}) {
    for (const auto collective : {Collective::broadcast, Collective::reduce, Collective::gather, Collective::scatter}) {
      const auto proof = test::prove({.collective = collective, .kind = ScheduleKind::tree, .world = world, .root = 1});
      ASSERT_TRUE(proof.ok());
      EXPECT_EQ(proof->rounds, log2_ceil(world));
    }
  }
}

TEST(Tree, gathers_each_subtree_with_one_message_per_run_of_chunks) {
  const auto schedule = make_schedule({.collective = Collective::gather, .kind = ScheduleKind::tree, .world = 8, .rank = 4});
  ASSERT_EQ(schedule->steps.size(), 3u);
  EXPECT_TRUE((schedule->steps[2] == Step{2, Op::send, 0, {4, 8}}));
}

TEST(TwoStep, completes_chunk_c_at_rank_c) {
  for (Rank rank = 0; rank < 5; ++rank) {
    const auto schedule = make_schedule({.kind = ScheduleKind::two_step, .world = 5, .rank = rank});
    for (const auto& step : schedule->steps) {
      if (step.op != Op::recv_reduce) continue;
      EXPECT_EQ(step.chunks, (ChunkRange{rank, rank + 1}));
    }
  }
}

TEST(TwoStep, broadcast_sends_the_tensor_once_from_every_rank_at_most) {
  for (const auto kind : {ScheduleKind::two_step, ScheduleKind::ring, ScheduleKind::halving_doubling}) {
    for (const uint32_t world : {2u, 3u, 6u, 11u}) {
      const auto schedules = test::make_all({.collective = Collective::broadcast, .kind = kind, .world = world, .root = 1});
      for (const auto& schedule : schedules) EXPECT_LE(chunks_sent(schedule.steps), schedule.chunk_count);
    }
  }
}

TEST(OneShot, takes_one_round_of_own_contributions) {
  const auto proof = test::prove({.kind = ScheduleKind::one_shot, .world = 6});
  ASSERT_TRUE(proof.ok());
  EXPECT_EQ(proof->rounds, 1u);
  EXPECT_EQ(proof->messages, 30u);
  EXPECT_TRUE(proof->direct);
  EXPECT_TRUE(proof->every_rank_completes);
}

TEST(Names, exist_for_all_kinds_and_collectives) {
  std::set<std::string> names;
  for (uint8_t kind = 0; kind <= 7; ++kind) names.insert(name(static_cast<ScheduleKind>(kind)));
  for (uint8_t collective = 0; collective <= 10; ++collective) names.insert(name(static_cast<Collective>(collective)));
  EXPECT_EQ(names.size(), 19u);
  EXPECT_FALSE(names.contains("unknown"));
  EXPECT_STREQ(name(static_cast<ScheduleKind>(200)), "unknown");
}

}  // namespace
}  // namespace unisono
