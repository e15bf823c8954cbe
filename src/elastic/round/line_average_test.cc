#include "elastic/round/line_average.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "base/random.h"

namespace unisono {
namespace {

using Ranks = std::vector<uint32_t>;
using Weights = std::vector<double>;

TEST(LineWeights, count_every_position_once) {
  const LineMember members[] = {{.position = 2, .weight = 3, .contributed = true},
                                {.position = 0, .weight = 1, .contributed = true},
                                {.position = 2, .weight = 4, .contributed = true},
                                {.position = 1, .weight = 8, .contributed = true}};
  const auto weights = line_weights(members);
  EXPECT_EQ(weights.total, 16);
  EXPECT_EQ(weights.positions, 3u);
  EXPECT_EQ(weights.order, (Ranks{1, 3, 0, 2}));
  EXPECT_EQ(weights.sharers, (Ranks{2, 1, 2, 1}));
  EXPECT_EQ(weights.after, (Weights{16.0 / 6, 16.0 / 3, 16.0 / 6, 16.0 / 3}));
}

TEST(LineWeights, leave_the_weight_of_other_members_unchanged) {
  const LineMember members[] = {{.position = 0, .weight = 3, .contributed = true},
                                {.position = 0, .weight = 9},
                                {.position = 1, .weight = 1, .contributed = true},
                                {.position = 2, .weight = 5}};
  const auto weights = line_weights(members);
  EXPECT_EQ(weights.total, 4);
  EXPECT_EQ(weights.positions, 2u);
  EXPECT_EQ(weights.order, (Ranks{0, 2}));
  EXPECT_EQ(weights.sharers, (Ranks{1, 0, 1, 0}));
  EXPECT_EQ(weights.after, (Weights{2, 9, 2, 5}));
}

TEST(LineWeights, give_a_member_without_weight_its_share) {
  const LineMember members[] = {{.position = 0, .weight = 6, .contributed = true},
                                {.position = 0, .weight = 0, .contributed = true},
                                {.position = 1, .weight = 0, .contributed = true}};
  const auto weights = line_weights(members);
  EXPECT_EQ(weights.total, 6);
  EXPECT_EQ(weights.after, (Weights{1.5, 1.5, 3}));
}

TEST(LineWeights, change_nothing_if_no_contributor_has_weight) {
  const LineMember members[] = {{.position = 0, .weight = 0, .contributed = true}, {.position = 1, .weight = 7}};
  const auto weights = line_weights(members);
  EXPECT_EQ(weights.total, 0);
  EXPECT_EQ(weights.after, (Weights{0, 7}));
  EXPECT_EQ(line_weights({}).total, 0);
}

TEST(LineWeights, keep_their_sum_for_any_set_of_contributors) {
  Random random(1);
  for (int trial = 0; trial < 2000; ++trial) {
    std::vector<LineMember> members(1 + random.below(40));
    double before = 0, after = 0;
    for (auto& member : members) {
      member = {.position = static_cast<uint32_t>(random.below(32)),
                .weight = random.chance(0.1) ? 0 : 16 * random.unit(),
                .contributed = random.chance(0.7)};
      before += member.weight;
    }
    for (const auto weight : line_weights(members).after) after += weight;
    ASSERT_NEAR(after, before, 1e-12 * before) << "trial " << trial;
  }
}

TEST(LineMean, is_the_weighted_mean_of_contributors_only) {
  const std::vector<float> a = {1, 10}, b = {4, -2}, absent = {1e30f, 1e30f};
  const LineMember members[] = {{.position = 1, .weight = 2, .contributed = true},
                                {.position = 1, .weight = 50},
                                {.position = 0, .weight = 1, .contributed = true}};
  const float* values[] = {a.data(), absent.data(), b.data()};
  float mean[2];
  const auto variance = line_mean(line_weights(members), members, values, 2, mean);
  EXPECT_EQ(mean[0], 2);
  EXPECT_EQ(mean[1], 6);
  EXPECT_NEAR(variance, (2 * 1.0 + 4.0) / 3 + (2 * 16.0 + 64.0) / 3, 1e-12);
}

TEST(LineMean, is_not_harmed_by_what_members_without_weight_hold) {
  const std::vector<float> good = {1, 2, 3}, bad(3, std::numeric_limits<float>::quiet_NaN());
  const LineMember members[] = {{.position = 0, .weight = 0, .contributed = true},
                                {.position = 0, .weight = 5, .contributed = true},
                                {.position = 1, .weight = 0, .contributed = true}};
  const float* values[] = {bad.data(), good.data(), nullptr};
  std::vector<float> mean(3);
  EXPECT_EQ(line_mean(line_weights(members), members, values, 3, mean.data()), 0);
  EXPECT_EQ(mean, good);
}

// In a cell with an extra peer, two members hold the same values, each with half of the weight. The mean must have the same
// bits as if the cell had one member.
TEST(LineMean, is_the_same_to_the_bit_whether_a_position_has_one_member_or_two_with_half_the_weight) {
  Random random(2);
  for (int trial = 0; trial < 500; ++trial) {
    std::vector<std::vector<float>> copies;
    std::vector<LineMember> single, twofold;
    const auto positions = static_cast<uint32_t>(2 + random.below(8));
    for (uint32_t position = 0; position < positions; ++position) {
      auto& copy = copies.emplace_back(37);
      for (auto& value : copy) value = static_cast<float>(random.unit() - 0.5);
      single.push_back({.position = position, .weight = 1 + 15 * random.unit(), .contributed = true});
    }
    std::vector<const float*> of_single, of_twofold;
    for (uint32_t position = 0; position < positions; ++position) {
      of_single.push_back(copies[position].data());
      twofold.push_back(single[position]);
      of_twofold.push_back(copies[position].data());
    }
    const auto shared = random.below(positions);
    twofold[shared].weight /= 2;
    twofold.push_back(twofold[shared]);
    of_twofold.push_back(copies[shared].data());

    const auto one = line_weights(single), two = line_weights(twofold);
    ASSERT_EQ(one.total, two.total) << "trial " << trial;
    std::vector<float> expected(37), got(37);
    line_mean(one, single, of_single, 37, expected.data());
    line_mean(two, twofold, of_twofold, 37, got.data());
    ASSERT_EQ(got, expected) << "trial " << trial;
    for (uint32_t position = 0; position < positions; ++position) {
      const auto members_there = position == shared ? 2 : 1;
      ASSERT_EQ(two.after[position] * members_there, one.after[position]) << "trial " << trial;
    }
  }
}

}  // namespace
}  // namespace unisono
