#include "schedules/make.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <string>
#include <tuple>

#include "schedules/test_support.h"

namespace unisono {
namespace {

using test::make_all;
using test::prove;

class EverySchedule : public testing::TestWithParam<std::tuple<Collective, ScheduleKind>> {};

TEST_P(EverySchedule, is_proved_for_every_world_size) {
  const auto [collective, kind] = GetParam();
  test::expect_proof_for_every_world(collective, kind);
}

TEST_P(EverySchedule, has_no_steps_in_a_world_of_one) {
  const auto [collective, kind] = GetParam();
  const auto schedule = make_schedule({.collective = collective, .kind = kind, .world = 1});
  ASSERT_TRUE(schedule.ok());
  EXPECT_TRUE(schedule->steps.empty());
  EXPECT_EQ(schedule->chunk_count, 1u);
  EXPECT_FALSE(schedule->every_rank_completes);
}

TEST_P(EverySchedule, is_the_same_when_made_twice) {
  const auto [collective, kind] = GetParam();
  const ScheduleRequest request{.collective = collective, .kind = kind, .world = 7, .rank = 3};
  EXPECT_TRUE(make_schedule(request)->steps == make_schedule(request)->steps);
}

// With interleaved host groups, the order in rings and trees is not the rank order. The schedules must be correct all the same.
TEST_P(EverySchedule, is_proved_on_interleaved_host_groups) {
  const auto [collective, kind] = GetParam();
  for (const uint32_t world : {2u, 5u, 12u, 17u}) {
    std::vector<uint32_t> host_groups;
    for (Rank rank = 0; rank < world; ++rank) host_groups.push_back(100 - rank * rank % 3);
    for (const Rank root : {0u, world - 1}) {
      const auto proof =
          prove({.collective = collective, .kind = kind, .world = world, .root = root, .host_groups = host_groups});
      ASSERT_TRUE(proof.ok()) << proof.status().to_string();
    }
  }
}

TEST_P(EverySchedule, makes_1024_ranks_in_a_millisecond) {
  const auto [collective, kind] = GetParam();
  double best_us = 1e9;
  for (int i = 0; i < 5; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    ASSERT_TRUE(make_schedule({.collective = collective, .kind = kind, .world = 1024, .rank = 77, .root = 5}).ok());
    best_us = std::min(best_us, std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
  }
  RecordProperty("best_us", std::to_string(best_us));
#if defined(__OPTIMIZE__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(best_us, 1000.0);
#endif
}

std::vector<std::tuple<Collective, ScheduleKind>> every_schedule() {
  std::vector<std::tuple<Collective, ScheduleKind>> all;
  for (const auto collective : test::scheduled_collectives)
    for (const auto kind : kinds_of(collective)) all.emplace_back(collective, kind);
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, EverySchedule, testing::ValuesIn(every_schedule()), [](const auto& test) {
  return std::string(name(std::get<0>(test.param))) + "_" + name(std::get<1>(test.param));
});

// Only a few larger worlds are tested, because the checker's tables grow with the square of the world size.
TEST(MakeSchedule, is_proved_for_a_few_worlds_beyond_one_word_of_contributions) {
  for (const uint32_t world : {65u, 100u, 129u}) {
    for (const auto kind : {ScheduleKind::ring, ScheduleKind::two_step, ScheduleKind::halving_doubling}) {
      const auto proof = prove({.kind = kind, .world = world});
      ASSERT_TRUE(proof.ok()) << proof.status().to_string();
    }
  }
}

TEST(MakeSchedule, refuses_automatic) {
  const auto made = make_schedule({.kind = ScheduleKind::automatic, .world = 4});
  EXPECT_EQ(made.status().code(), Code::invalid);
}

TEST(MakeSchedule, the_error_of_an_unknown_kind_lists_the_possible_kinds) {
  const auto made = make_schedule({.collective = Collective::all_to_all, .kind = ScheduleKind::ring, .world = 4});
  EXPECT_EQ(made.status().code(), Code::unsupported);
  EXPECT_EQ(made.status().message(), "ring all_to_all: no such schedule; there are direct");
  const auto tree = make_schedule({.kind = ScheduleKind::tree, .world = 4});
  EXPECT_NE(tree.status().message().find("one_shot, two_step, halving_doubling, ring, hierarchical"), std::string::npos);
}

TEST(MakeSchedule, refuses_send_and_recv) {
  EXPECT_EQ(make_schedule({.collective = Collective::send, .kind = ScheduleKind::direct, .world = 2}).status().code(),
            Code::unsupported);
  EXPECT_EQ(make_schedule({.collective = Collective::recv, .kind = ScheduleKind::direct, .world = 2}).status().code(),
            Code::unsupported);
}

TEST(MakeSchedule, refuses_an_empty_world) { EXPECT_EQ(make_schedule({.world = 0}).status().code(), Code::invalid); }

TEST(MakeSchedule, refuses_a_world_whose_rounds_do_not_fit_a_frame) {
  EXPECT_EQ(make_schedule({.kind = ScheduleKind::ring, .world = world_max + 1}).status().code(), Code::invalid);
  const auto largest = make_schedule({.kind = ScheduleKind::ring, .world = world_max, .rank = world_max - 1});
  ASSERT_TRUE(largest.ok());
  EXPECT_LE(largest->steps.back().round, 65'535u);
}

TEST(MakeSchedule, refuses_a_rank_outside_the_world) {
  EXPECT_EQ(make_schedule({.world = 4, .rank = 4}).status().code(), Code::invalid);
}

TEST(MakeSchedule, refuses_a_root_outside_the_world) {
  const auto made = make_schedule({.collective = Collective::reduce, .kind = ScheduleKind::tree, .world = 4, .root = 4});
  EXPECT_EQ(made.status().code(), Code::invalid);
}

TEST(MakeSchedule, refuses_host_group_numbers_for_another_world) {
  const uint32_t host_groups[] = {0, 0, 1};
  EXPECT_EQ(make_schedule({.kind = ScheduleKind::ring, .world = 4, .host_groups = host_groups}).status().code(), Code::invalid);
}

TEST(MakeSchedule, ring_of_interleaved_hosts_crosses_each_border_once) {
  const uint32_t host_groups[] = {0, 1, 0, 1, 0, 1};
  const auto schedules = make_all({.kind = ScheduleKind::ring, .world = 6, .host_groups = host_groups});
  std::set<Rank> crossing;
  for (Rank rank = 0; rank < 6; ++rank)
    for (const auto& step : schedules[rank].steps)
      if (step.op == Op::send && host_groups[step.peer] != host_groups[rank]) crossing.insert(rank);
  EXPECT_EQ(crossing.size(), 2u);
}

TEST(MakeSchedule, tree_of_interleaved_hosts_crosses_each_border_once) {
  const uint32_t host_groups[] = {0, 1, 0, 1, 0, 1, 0, 1};
  const auto schedules = make_all(
      {.collective = Collective::broadcast, .kind = ScheduleKind::tree, .world = 8, .root = 3, .host_groups = host_groups});
  int crossings = 0;
  for (Rank rank = 0; rank < 8; ++rank)
    for (const auto& step : schedules[rank].steps)
      if (step.op == Op::send && host_groups[step.peer] != host_groups[rank]) ++crossings;
  EXPECT_EQ(crossings, 1);
}

TEST(MakeSchedule, two_step_is_staggered) {
  const auto schedule = make_schedule({.kind = ScheduleKind::two_step, .world = 4, .rank = 2});
  ASSERT_TRUE(schedule.ok());
  std::vector<Rank> peers;
  for (const auto& step : schedule->steps)
    if (step.op == Op::send && step.round == 0) peers.push_back(step.peer);
  EXPECT_EQ(peers, (std::vector<Rank>{3, 0, 1}));
}

}  // namespace
}  // namespace unisono
