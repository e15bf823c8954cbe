#include "schedules/hierarchical.h"

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <string>

#include "base/concat.h"
#include "base/random.h"
#include "schedules/test_support.h"

namespace unisono {
namespace {

using enum ScheduleKind;

constexpr ScheduleKind inner_kinds[] = {automatic, two_step, ring, halving_doubling, tree, direct};
constexpr ScheduleKind outer_kinds[] = {automatic, one_shot, two_step, ring, halving_doubling};

void expect_proof(const std::vector<uint32_t>& host_groups, ScheduleKind inner, ScheduleKind outer) {
  const auto proof = test::prove({.kind = hierarchical,
                                  .world = static_cast<uint32_t>(host_groups.size()),
                                  .host_groups = host_groups,
                                  .inner = inner,
                                  .outer = outer});
  std::string layout;
  for (const auto host_group : host_groups) layout += concat(host_group, " ");
  ASSERT_TRUE(proof.ok()) << proof.status().to_string() << "; inside " << name(inner) << ", between " << name(outer)
                          << ", host groups " << layout;
  ASSERT_TRUE(proof->overwrite_safe) << name(inner) << " " << name(outer) << " " << layout;
}

void expect_proof_of_all_kinds(const std::vector<uint32_t>& host_groups) {
  for (const auto inner : inner_kinds)
    for (const auto outer : outer_kinds) expect_proof(host_groups, inner, outer);
}

std::vector<uint32_t> host_groups_of(const std::vector<uint32_t>& sizes) {
  std::vector<uint32_t> host_groups;
  for (uint32_t host_group = 0; host_group < sizes.size(); ++host_group)
    host_groups.insert(host_groups.end(), sizes[host_group], host_group);
  return host_groups;
}

TEST(Hierarchical, is_proved_for_equal_host_groups) {
  for (uint32_t size = 1; size <= 8; ++size)
    for (uint32_t count = 1; count <= 64 / size && count * size <= test::world_sizes_limit; ++count)
      expect_proof_of_all_kinds(host_groups_of(std::vector<uint32_t>(count, size)));
}

TEST(Hierarchical, is_proved_for_every_world_cut_in_two) {
  for (const auto world : test::world_sizes())
    for (const uint32_t first : {1u, world / 3, world / 2})
      if (first > 0 && first < world) expect_proof_of_all_kinds(host_groups_of({first, world - first}));
}

TEST(Hierarchical, is_proved_for_random_layouts) {
  constexpr uint64_t seed = 7'071;
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  Random random(seed);
  const int layouts = test::world_sizes_limit == 64 ? 120 : 15;
  for (int i = 0; i < layouts; ++i) {
    const auto world = 1 + random.below(test::world_sizes_limit == 64 ? 40 : 16);
    const auto host_group_count = 1 + random.below(world);
    std::vector<uint32_t> host_groups;
    for (uint64_t rank = 0; rank < world; ++rank)
      host_groups.push_back(static_cast<uint32_t>(random.below(host_group_count) * 1'000));
    expect_proof_of_all_kinds(host_groups);
  }
}

TEST(Hierarchical, is_proved_without_host_group_numbers) {
  for (const uint32_t world : {1u, 2u, 3u, 8u, 20u}) {
    const auto proof = test::prove({.kind = hierarchical, .world = world});
    ASSERT_TRUE(proof.ok()) << proof.status().to_string();
    // Every rank is its own host group, so all messages belong to the exchange between host groups.
    EXPECT_EQ(proof->messages, world == 2 ? 2u : uint64_t{world} * 2 * (world - 1));
  }
}

TEST(Hierarchical, stays_inside_a_single_host_group) {
  const std::vector<uint32_t> host_groups(6, 9);
  const auto schedules = test::make_all({.kind = hierarchical, .world = 6, .host_groups = host_groups});
  const auto two = test::make_all({.kind = two_step, .world = 6});
  for (Rank rank = 0; rank < 6; ++rank) {
    EXPECT_TRUE(schedules[rank].steps == two[rank].steps) << "rank " << rank;
    EXPECT_EQ(schedules[rank].kind, hierarchical);
  }
}

TEST(Hierarchical, sends_one_unit_per_rank_between_equal_host_groups) {
  const auto host_groups = host_groups_of({4, 4});
  const auto schedules = test::make_all({.kind = hierarchical, .world = 8, .host_groups = host_groups});
  for (Rank rank = 0; rank < 8; ++rank) {
    uint32_t chunks = 0;
    for (const auto& step : schedules[rank].steps)
      if (step.op == Op::send && host_groups[step.peer] != host_groups[rank]) chunks += step.chunks.end - step.chunks.begin;
    EXPECT_EQ(schedules[rank].chunk_count, 4u);
    EXPECT_EQ(chunks, 1u);
  }
}

TEST(Hierarchical, gives_each_rank_a_fair_share_in_uneven_host_groups) {
  const auto sizes = std::vector<std::vector<uint32_t>>{{8, 7}, {3, 5, 4}, {6, 6, 1}, {2, 3}};
  for (const auto& layout : sizes) {
    const auto host_groups = host_groups_of(layout);
    const auto units = unit_count(find_host_groups(host_groups, static_cast<uint32_t>(host_groups.size())), two_step);
    for (const auto size : layout)
      EXPECT_LE((units + size - 1) / size * size, units * 4 / 3 + 1) << units << " units for host groups of " << size;
  }
}

TEST(Hierarchical, does_not_flood_lone_ranks_with_units) {
  std::vector<uint32_t> sizes(512, 1);
  sizes[0] = 512;
  const auto host_groups = host_groups_of(sizes);
  const auto schedule =
      make_schedule({.kind = hierarchical, .world = 1023, .rank = 1000, .host_groups = host_groups, .outer = two_step});
  ASSERT_TRUE(schedule.ok());
  EXPECT_LE(schedule->steps.size(), 16u * 1023);
}

TEST(Hierarchical, refuses_kinds_that_do_not_exist_inside_or_between_host_groups) {
  const auto inner = make_schedule({.kind = hierarchical, .world = 4, .inner = one_shot});
  EXPECT_EQ(inner.status().code(), Code::unsupported);
  EXPECT_NE(inner.status().message().find("there are direct, two_step, tree, halving_doubling, ring"), std::string::npos);
  const auto outer = make_schedule({.kind = hierarchical, .world = 4, .outer = tree});
  EXPECT_EQ(outer.status().code(), Code::unsupported);
  EXPECT_NE(outer.status().message().find("there are one_shot, two_step, halving_doubling, ring"), std::string::npos);
}

TEST(HostGroups, are_found_in_the_order_of_their_lowest_ranks) {
  const uint32_t numbers[] = {7, 3, 7, 9, 3};
  EXPECT_EQ(find_host_groups(numbers, 5), (HostGroups{{0, 2}, {1, 4}, {3}}));
}

TEST(HostGroups, order_starts_at_the_given_rank_and_keeps_host_groups_together) {
  const uint32_t numbers[] = {7, 3, 7, 9, 3};
  EXPECT_EQ(order_by_host_group(numbers, 5, 4), (std::vector<Rank>{4, 1, 3, 0, 2}));
  EXPECT_EQ(order_by_host_group({}, 5, 3), (std::vector<Rank>{3, 4, 0, 1, 2}));
}

}  // namespace
}  // namespace unisono
