#include "lab/averaging/averaging_random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "lab/averaging/averaging.h"

namespace unisono::sim {
namespace {

// The tests A1 and A2 are checks of docs/design/methods/moshpit.md, "Checked values".
TEST(AveragingA1, normals_are_those_of_numpy) {
  const std::vector<std::vector<double>> expected{{1.764052345967664, .400157208367223, .978737984105739, 2.240893199201458},
                                                  {1.624345363663242, -.611756413650075, -.528171752263456}};
  for (uint32_t seed = 0; seed < expected.size(); ++seed) {
    AveragingRandom random(seed);
    for (const double value : expected[seed]) EXPECT_NEAR(random.normal(), value, 1e-14) << "seed " << seed;
  }
}

TEST(AveragingA1, the_shuffle_assigns_peers_to_cells_of_the_published_grid) {
  std::vector<uint32_t> cells(1024);
  std::iota(cells.begin(), cells.end(), 0u);
  AveragingRandom(averaging_cell_seed).shuffle(cells);
  EXPECT_EQ(std::vector(cells.begin(), cells.begin() + 8), (std::vector<uint32_t>{716, 473, 343, 404, 779, 123, 41, 964}));
  std::sort(cells.begin(), cells.end());
  EXPECT_EQ(cells.front(), 0u);
  EXPECT_EQ(std::adjacent_find(cells.begin(), cells.end()), cells.end());
}

TEST(AveragingA2, inputs_have_the_specified_variances) {
  struct Row {
    uint32_t peers;
    double variances[5];
  };
  constexpr Row rows[] = {{1024, {.969624, .969228, .997676, 1.020108, .913115}},
                          {512, {.997856, .969428, 1.069055, 1.037432, .930900}}};
  for (const auto& row : rows) {
    for (uint32_t seed = 0; seed < 5; ++seed) {
      const auto outcome =
          run_averaging({.algorithm = AveragingAlgorithm::all_reduce, .peers = row.peers, .seed = seed, .rounds_max = 0});
      ASSERT_TRUE(outcome.ok()) << outcome.status().to_string();
      EXPECT_NEAR(outcome->variances.front(), row.variances[seed], 1e-6) << row.peers << " peers, seed " << seed;
    }
  }
}

TEST(AveragingRandom, integers_reach_the_top_and_never_exceed_it) {
  AveragingRandom random(7);
  for (const uint32_t top : {0u, 1u, 2u, 5u, 31u, 32u}) {
    std::vector<uint32_t> counts(top + 1);
    for (uint32_t i = 0; i < 400 * (top + 1); ++i) {
      const uint32_t value = random.at_most(top);
      ASSERT_LE(value, top);
      ++counts[value];
    }
    EXPECT_GT(*std::min_element(counts.begin(), counts.end()), 300u) << "top " << top << ", seed 7";
  }
  for (int i = 0; i < 100; ++i) random.at_most(UINT32_MAX);
}

}  // namespace
}  // namespace unisono::sim
