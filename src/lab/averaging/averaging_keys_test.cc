// Tests the published rule of regrouping alone: check A33 of docs/design/methods/moshpit.md.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>
#include <vector>

#include "base/concat.h"
#include "lab/averaging/averaging_algorithms.h"

namespace unisono::sim {
namespace {

TEST(AveragingA33, groups_are_full_no_pair_meets_twice_and_only_the_last_round_of_a_step_is_exact) {
  for (const auto& [base, axes] : {std::pair{2u, 3u}, {3u, 4u}, {4u, 5u}, {8u, 3u}, {32u, 2u}}) {
    SCOPED_TRACE(concat("base ", base, ", ", axes, " axes, seed 5"));
    const auto peers = static_cast<uint32_t>(std::lround(std::pow(base, axes)));
    ChunkKeys keys(peers, base, axes - 1);
    AveragingRandom random(5);
    const std::vector<uint8_t> alive(peers, 1);
    std::vector<double> values(peers);
    double mean = 0;
    for (auto& value : values) mean += (value = random.normal()) / peers;
    std::set<std::pair<uint32_t, uint32_t>> met;
    for (uint32_t round = 1; round <= axes; ++round) {
      const auto groups = keys.next_groups(alive, random);
      EXPECT_EQ(groups.size(), peers / base);
      for (auto group : groups) {
        ASSERT_EQ(group.size(), base);
        std::sort(group.begin(), group.end());
        double sum = 0;
        for (size_t i = 0; i < group.size(); ++i) {
          sum += values[group[i]];
          for (size_t j = i + 1; j < group.size(); ++j)
            EXPECT_TRUE(met.insert({group[i], group[j]}).second) << "round " << round;
        }
        for (const uint32_t peer : group) values[peer] = sum / base;
      }
      double error = 0;
      for (const double value : values) error = std::max(error, std::abs(value - mean));
      if (round < axes) EXPECT_GT(error, 1e-3);
      else EXPECT_LE(error, 1e-12);
    }
  }
}

TEST(AveragingA33, runs_with_keys_are_exact_in_the_same_round) {
  for (const auto& [base, peers, axes] :
       {std::tuple{2u, 8u, 3u}, {3u, 81u, 4u}, {4u, 1024u, 5u}, {8u, 512u, 3u}, {32u, 1024u, 2u}}) {
    for (uint32_t rounds = 1; rounds <= axes; ++rounds) {
      const auto outcome = run_averaging(
          {.algorithm = AveragingAlgorithm::chunk_keys, .peers = peers, .max_group = base, .target = 0, .rounds_max = rounds});
      ASSERT_TRUE(outcome.ok());
      if (rounds < axes) EXPECT_GT(outcome->error_max, 1e-3);
      else EXPECT_LE(outcome->error_max, 1e-12);
    }
  }
}

TEST(ChunkKeys, peers_without_a_group_and_absent_peers_keep_their_keys) {
  ChunkKeys keys(4, 4, 2);
  AveragingRandom random(1);
  EXPECT_EQ(std::vector(keys.keys().begin(), keys.keys().end()), (std::vector<uint32_t>{0, 1, 2, 3}));
  EXPECT_TRUE(keys.next_groups(std::vector<uint8_t>{1, 1, 1, 0}, random).empty());
  EXPECT_EQ(std::vector(keys.keys().begin(), keys.keys().end()), (std::vector<uint32_t>{0, 1, 2, 3}));
}

TEST(ChunkKeys, many_peers_with_one_key_form_groups_of_the_base_with_distinct_slots) {
  ChunkKeys keys(10, 4, 1);  // ten peers, four keys: three peers each at keys 0 and 1, two each at keys 2 and 3
  AveragingRandom random(2);
  const std::vector<uint8_t> alive(10, 1);
  for (uint32_t round = 1; round <= 20; ++round) {
    for (const auto& group : keys.next_groups(alive, random)) {
      EXPECT_LE(group.size(), 4u);
      std::set<uint32_t> slots;
      for (const uint32_t peer : group) slots.insert(keys.keys()[peer] % 4);
      EXPECT_EQ(slots.size(), group.size()) << "round " << round << ", seed 2";
    }
  }
}

TEST(RandomGroups, every_present_peer_is_in_a_group_and_surplus_peers_are_spread) {
  AveragingRandom random(4);
  std::vector<uint8_t> alive(103, 1);
  alive[0] = alive[50] = alive[51] = 0;
  // 100 peers: three groups of 32, then the other four peers join these groups
  const auto groups = random_groups(alive, 32, random);
  ASSERT_EQ(groups.size(), 3u);
  std::set<uint32_t> seen;
  for (const auto& group : groups) seen.insert(group.begin(), group.end());
  EXPECT_EQ(seen.size(), 100u);
  EXPECT_EQ((std::vector{groups[0].size(), groups[1].size(), groups[2].size()}), (std::vector<size_t>{34, 33, 33}));
  EXPECT_TRUE(random_groups(std::vector<uint8_t>(5, 0), 32, random).empty());
  EXPECT_EQ(random_groups(std::vector<uint8_t>(5, 1), 32, random).size(), 1u);
}

}  // namespace
}  // namespace unisono::sim
