// Tests whole averaging steps over fitted grids, with grid, weights and means together. Covers checks A11 to A13 of
// docs/design/methods/moshpit.md: exactness, an example computed by hand, and identical bits.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/concat.h"
#include "base/random.h"
#include "elastic/layout/moshpit_grid.h"
#include "elastic/round/line_average.h"

namespace unisono {
namespace {

MoshpitGrid grid_of(std::vector<uint32_t> dims, uint32_t peers) {
  auto grid = MoshpitGrid::make(GridKind::fitted, std::move(dims), peers);
  EXPECT_TRUE(grid.ok()) << grid.status().to_string();
  return std::move(grid).value();
}

// Values (x) and weights (w) of the peers: one element per peer, in double.
struct Peers {
  std::vector<double> x, w;
};

Peers random_peers(uint32_t count, Random& random) {
  Peers peers;
  for (uint32_t rank = 0; rank < count; ++rank) {
    peers.x.push_back(random.unit() * 20 - 10);
    peers.w.push_back(1 + 15 * random.unit());
  }
  return peers;
}

double weighted_sum(const Peers& peers) { return std::inner_product(peers.x.begin(), peers.x.end(), peers.w.begin(), 0.0); }
double weight_sum(const Peers& peers) { return std::accumulate(peers.w.begin(), peers.w.end(), 0.0); }

std::vector<LineMember> line_of(const MoshpitGrid& grid, const std::vector<uint32_t>& ranks, uint32_t axis) {
  std::vector<LineMember> members;
  for (const auto rank : ranks)
    members.push_back({.position = grid.position(grid.cell_of(rank), axis), .weight = 0, .contributed = true});
  return members;
}

// Executes one round. present(rank) says whether the peer takes part.
void average(const MoshpitGrid& grid, uint32_t axis, Peers& peers, const auto& present) {
  for (uint32_t line = 0; line < grid.line_count(axis); ++line) {
    const auto ranks = grid.line_members(axis, line);
    auto members = line_of(grid, ranks, axis);
    for (size_t i = 0; i < ranks.size(); ++i) members[i].weight = peers.w[ranks[i]], members[i].contributed = present(ranks[i]);
    const auto weights = line_weights(members);
    if (weights.total == 0) continue;
    double sum = 0;
    for (const auto i : weights.order) sum += peers.w[ranks[i]] * peers.x[ranks[i]];
    for (const auto i : weights.order) peers.x[ranks[i]] = sum / weights.total, peers.w[ranks[i]] = weights.after[i];
  }
}

const auto everybody = [](uint32_t) { return true; };

void expect_conserved(const Peers& peers, const Peers& before, const std::string& what) {
  double magnitude = 0;
  for (size_t rank = 0; rank < before.x.size(); ++rank) magnitude += before.w[rank] * std::abs(before.x[rank]);
  ASSERT_NEAR(weight_sum(peers), weight_sum(before), 1e-12 * weight_sum(before)) << what;
  ASSERT_NEAR(weighted_sum(peers), weighted_sum(before), 1e-12 * magnitude) << what;
}

void expect_exact_step(uint32_t count, uint32_t max_group) {
  Random random(count);
  const auto what = concat(count, " peers (the seed), groups of ", max_group);
  const auto grid = grid_of(fitted_dims(count, max_group), count);
  const auto before = random_peers(count, random);
  auto peers = before;
  for (uint32_t axis = 0; axis < grid.axes(); ++axis) {
    average(grid, axis, peers, everybody);
    ASSERT_NO_FATAL_FAILURE(expect_conserved(peers, before, what));
  }
  const double mean = weighted_sum(before) / weight_sum(before);
  for (const auto x : peers.x) ASSERT_NEAR(x, mean, 1e-12) << what;
}

// Executes `rounds` rounds, in each of which a peer is absent with probability 0.3. A whole averaging step without absences
// follows.
void expect_conserved_through_absences(uint32_t count, uint32_t max_group, int rounds) {
  Random random(count);
  const auto what = concat(count, " peers (the seed), groups of ", max_group);
  const auto grid = grid_of(fitted_dims(count, max_group), count);
  const auto before = random_peers(count, random);
  auto peers = before;
  std::vector<char> here(count);
  for (int round = 0; round < rounds; ++round) {
    for (auto& one : here) one = !random.chance(0.3);
    average(grid, static_cast<uint32_t>(round) % grid.axes(), peers, [&](uint32_t rank) { return here[rank] != 0; });
    ASSERT_NO_FATAL_FAILURE(expect_conserved(peers, before, concat(what, ", round ", round)));
  }
  for (uint32_t axis = 0; axis < grid.axes(); ++axis) average(grid, axis, peers, everybody);
  const double mean = weighted_sum(before) / weight_sum(before);
  for (const auto x : peers.x) ASSERT_NEAR(x, mean, 1e-12) << what;
}

TEST(MoshpitAveraging, is_exact_for_some_numbers_of_peers) {
  for (uint32_t count = 2; count < 300; ++count) ASSERT_NO_FATAL_FAILURE(expect_exact_step(count, 32));
  for (const uint32_t count : {509u, 512u, 1023u, 1024u, 1025u, 4096u}) ASSERT_NO_FATAL_FAILURE(expect_exact_step(count, 32));
}

TEST(MoshpitAveraging, is_exact_over_small_groups_and_many_axes) {
  for (uint32_t count = 2; count < 1100; count += 1 + count / 40) ASSERT_NO_FATAL_FAILURE(expect_exact_step(count, 4));
}

TEST(MoshpitAveraging, loses_no_weight_through_absences) {
  for (const uint32_t count : {2u, 5u, 31u, 33u, 37u, 100u, 512u, 1025u})
    ASSERT_NO_FATAL_FAILURE(expect_conserved_through_absences(count, 32, 50));
}

TEST(MoshpitStepLong, is_exact_for_every_number_of_peers) {
  for (uint32_t count = 2; count <= 4096; ++count) ASSERT_NO_FATAL_FAILURE(expect_exact_step(count, 32));
}

TEST(MoshpitStepLong, loses_no_weight_through_absences_of_any_number_of_peers) {
  for (uint32_t count = 2; count <= 4096; ++count) ASSERT_NO_FATAL_FAILURE(expect_conserved_through_absences(count, 32, 50));
}

void expect_near(const std::vector<double>& got, const std::vector<double>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], 1e-12) << "peer " << i;
}

TEST(MoshpitAveraging, of_five_peers_on_four_cells_matches_values_computed_by_hand) {
  const auto grid = grid_of({2, 2}, 5);
  Peers peers{.x = {1, 2, 3, 4, 10}, .w = {1, 1, 1, 1, 1}};
  average(grid, 0, peers, everybody);
  expect_near(peers.x, {14.0 / 3, 3, 14.0 / 3, 3, 14.0 / 3});
  expect_near(peers.w, {.75, 1, 1.5, 1, .75});
  average(grid, 1, peers, everybody);
  expect_near(peers.x, {4, 4, 4, 4, 4});
  expect_near(peers.w, {.625, 1.25, 1.25, 1.25, .625});
}

TEST(MoshpitAveraging, of_five_peers_with_one_absent_matches_values_computed_by_hand) {
  const auto grid = grid_of({2, 2}, 5);
  Peers peers{.x = {1, 2, 3, 4, 10}, .w = {1, 1, 1, 1, 1}};
  average(grid, 0, peers, [](uint32_t rank) { return rank != 1; });
  expect_near(peers.x, {14.0 / 3, 2, 14.0 / 3, 4, 14.0 / 3});
  EXPECT_NEAR(weighted_sum(peers), 20, 1e-12);
  average(grid, 1, peers, everybody);
  expect_near(peers.x, {3.6, 3.6, 4.4, 4.4, 3.6});
  EXPECT_NEAR(weighted_sum(peers), 20, 1e-12);
}

// Computes an averaging step in fp32, as peers do. All peers must end with the same bits, close to the weighted mean.
void expect_identical_bits(uint32_t count, uint32_t max_group, bool weighted) {
  constexpr size_t elements = 70;
  Random random(count);
  const auto what = concat(count, " peers (the seed), groups of ", max_group);
  const auto grid = grid_of(fitted_dims(count, max_group), count);
  std::vector<std::vector<float>> x(count, std::vector<float>(elements));
  std::vector<double> w(count, 1), exact(elements);
  for (auto& vector : x) {
    for (auto& value : vector) value = static_cast<float>(random.unit() * 2 - 1);
  }
  if (weighted) {
    for (auto& one : w) one = 1 + 15 * random.unit();
  }
  for (uint32_t rank = 0; rank < count; ++rank) {
    for (size_t i = 0; i < elements; ++i) exact[i] += w[rank] * double{x[rank][i]};
  }
  const double total = std::accumulate(w.begin(), w.end(), 0.0);

  for (uint32_t axis = 0; axis < grid.axes(); ++axis) {
    for (uint32_t line = 0; line < grid.line_count(axis); ++line) {
      const auto ranks = grid.line_members(axis, line);
      auto members = line_of(grid, ranks, axis);
      std::vector<const float*> values;
      for (size_t i = 0; i < ranks.size(); ++i) members[i].weight = w[ranks[i]], values.push_back(x[ranks[i]].data());
      const auto weights = line_weights(members);
      std::vector<float> mean(elements);
      line_mean(weights, members, values, elements, mean.data());
      for (size_t i = 0; i < ranks.size(); ++i) x[ranks[i]] = mean, w[ranks[i]] = weights.after[i];
    }
  }
  for (uint32_t rank = 1; rank < count; ++rank) {
    for (size_t i = 0; i < elements; ++i)
      ASSERT_EQ(std::bit_cast<uint32_t>(x[rank][i]), std::bit_cast<uint32_t>(x[0][i]))
          << what << ", peer " << rank << ", element " << i;
  }
  for (size_t i = 0; i < elements; ++i) ASSERT_NEAR(x[0][i], exact[i] / total, 1e-6) << what;
}

TEST(MoshpitAveraging, ends_with_the_same_bits_at_all_peers) {
  for (const bool weighted : {false, true}) {
    ASSERT_NO_FATAL_FAILURE(expect_identical_bits(5, 4, weighted));
    for (const uint32_t count : {37u, 100u, 509u, 512u, 1024u, 4099u})
      ASSERT_NO_FATAL_FAILURE(expect_identical_bits(count, 32, weighted));
    for (const uint32_t count : {70u, 140u, 300u}) ASSERT_NO_FATAL_FAILURE(expect_identical_bits(count, 4, weighted));
  }
}

}  // namespace
}  // namespace unisono
