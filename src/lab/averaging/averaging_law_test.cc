#include "lab/averaging/averaging_law.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "base/concat.h"
#include "lab/averaging/averaging.h"

namespace unisono::sim {
namespace {

constexpr double absences[] = {0, .001, .005, .01};

// Mean variance after each round and its standard error, over the seeds 0, 1, …
struct Curve {
  std::vector<double> mean, error;
};
Curve curve_of(AveragingSettings settings, uint32_t rounds, uint32_t restarts) {
  settings.target = 0;
  settings.rounds_max = rounds;
  Curve curve{std::vector<double>(rounds + 1), std::vector<double>(rounds + 1)};
  for (settings.seed = 0; settings.seed < restarts; ++settings.seed) {
    settings.cell_seed = averaging_cell_seed + settings.seed;
    const auto outcome = run_averaging(settings);
    EXPECT_TRUE(outcome.ok()) << outcome.status().to_string();
    if (!outcome.ok()) return curve;
    for (uint32_t t = 0; t <= rounds; ++t) {
      curve.mean[t] += outcome->variances[t] / restarts;
      curve.error[t] += outcome->variances[t] * outcome->variances[t];
    }
  }
  for (uint32_t t = 0; t <= rounds; ++t)
    curve.error[t] = std::sqrt(std::max(0., curve.error[t] / restarts - curve.mean[t] * curve.mean[t]) / restarts);
  return curve;
}

// Returns the mean factor by which a split into groups of these sizes multiplies the variance, over all assignments of peers to
// groups.
double enumerated_factor(const std::vector<uint32_t>& sizes) {
  uint32_t peers = 0;
  for (const uint32_t size : sizes) peers += size;
  std::vector<double> values;
  for (uint32_t i = 0; i < peers; ++i) values.push_back(i * i + 1.);
  double mean = 0, before = 0, after = 0, count = 0;
  for (const double value : values) mean += value / peers;
  for (const double value : values) before += (value - mean) * (value - mean);
  uint64_t assignments = 1;
  for (uint32_t i = 0; i < peers; ++i) assignments *= sizes.size();
  for (uint64_t code = 0; code < assignments; ++code) {
    std::vector<double> sums(sizes.size());
    std::vector<uint32_t> members(sizes.size());
    auto rest = code;
    for (uint32_t i = 0; i < peers; ++i, rest /= sizes.size()) {
      sums[rest % sizes.size()] += values[i];
      ++members[rest % sizes.size()];
    }
    if (members != sizes) continue;
    ++count;
    for (size_t g = 0; g < sizes.size(); ++g) after += (sums[g] / sizes[g] - mean) * (sums[g] / sizes[g] - mean) * sizes[g];
  }
  return after / count / before;
}

// The tests A15 to A19 are checks of docs/design/methods/moshpit.md, "Checked values".
TEST(AveragingA15, a_random_split_multiplies_the_variance_as_all_splits_do) {
  struct Row {
    std::vector<uint32_t> sizes;
    double factor, attributed;
  };
  for (const auto& row : std::vector<Row>{{{2, 2}, 1. / 3, .375},
                                          {{1, 2, 3}, .4, .416667},
                                          {{2, 2, 2, 2}, 3. / 7, .4375},
                                          {{9}, 0, .012346},
                                          {{1, 1, 1, 1}, 1, 1}}) {
    uint32_t peers = 0;
    for (const uint32_t size : row.sizes) peers += size;
    const double attributed = attributed_split_factor(peers, static_cast<uint32_t>(row.sizes.size()));
    SCOPED_TRACE(concat("attributed, unconfirmed: ", attributed));
    EXPECT_NEAR(enumerated_factor(row.sizes), row.factor, 1e-12);
    EXPECT_NEAR(random_split_factor(row.sizes), row.factor, 1e-12);
    EXPECT_NEAR(attributed, row.attributed, 1e-6);
  }
}

constexpr double specified_factors[2][4] = {{.029354, .029572, .032557, .037428}, {.030303, .030677, .034336, .039335}};

TEST(AveragingA16, random_groups_shrink_the_variance_by_the_specified_factors) {
  for (const uint32_t n : {0u, 1u}) {
    for (size_t p = 0; p < 4; ++p)
      EXPECT_NEAR(random_groups_factor({.peers = 512u << n, .absence = absences[p]}), specified_factors[n][p], 1e-6);
  }
  EXPECT_DOUBLE_EQ(random_groups_variance({.peers = 512}, 0), 511. / 512);  // the variance of the inputs
  EXPECT_NEAR(random_groups_variance({.peers = 512}, 2), 511. / 512 * .029354 * .029354, 1e-7);
}

void expect_random_groups_follow_the_law(uint32_t restarts) {
  for (const uint32_t peers : {512u, 1024u}) {
    for (const double absence : absences) {
      const auto curve =
          curve_of({.algorithm = AveragingAlgorithm::random_groups, .peers = peers, .absence = absence}, 3, restarts);
      for (uint32_t t = 0; t <= 3; ++t) {
        EXPECT_NEAR(curve.mean[t], random_groups_variance({.peers = peers, .absence = absence}, t), 4 * curve.error[t])
            << peers << " peers, absence " << absence << ", round " << t << ", seeds from 0";
      }
    }
  }
}

TEST(AveragingA16, random_groups_follow_the_law) { expect_random_groups_follow_the_law(300); }
TEST(AveragingA16Long, random_groups_follow_the_law) { expect_random_groups_follow_the_law(2000); }

TEST(AveragingA17, an_all_reduce_with_restart_takes_the_specified_rounds) {
  constexpr double rounds[] = {1, 1.669, 12.78, 43.49};
  for (size_t p = 0; p < 4; ++p) EXPECT_NEAR(restarted_rounds({.peers = 512, .absence = absences[p]}, 50) / rounds[p], 1, 1e-3);
  EXPECT_EQ(restarted_rounds({.peers = 512, .absence = 1}, 50), 50);
}

TEST(AveragingA18, a_ring_mixes_as_specified) {
  struct Row {
    uint32_t rounds;
    double variance;
  };
  for (const auto& row : {Row{1, .332357}, {2, .233591}, {5, .150643}, {10, .107255}, {50, .047792}})
    EXPECT_NEAR(ring_variance(1024, row.rounds), row.variance, 1e-6);
}

TEST(AveragingA18, gossip_follows_the_law_of_the_ring) {
  const auto curve = curve_of({.algorithm = AveragingAlgorithm::gossip, .peers = 128}, 10, 300);
  for (uint32_t t = 0; t <= 10; ++t)
    EXPECT_NEAR(curve.mean[t], ring_variance(128, t), 4 * curve.error[t]) << "round " << t << ", seeds from 0";
}

TEST(AveragingA19, a_full_grid_shrinks_the_variance_as_specified) {
  const std::vector<double> five{.249023, .061523, .014648, .002930};
  EXPECT_NEAR(full_grid_variance(32, 2, 1), .030273, 1e-6);
  EXPECT_NEAR(full_grid_variance(8, 3, 1), .123047, 1e-6);
  EXPECT_NEAR(full_grid_variance(8, 3, 2), .013672, 1e-6);
  for (uint32_t k = 1; k < 5; ++k) EXPECT_NEAR(full_grid_variance(4, 5, k), five[k - 1], 1e-6);
  EXPECT_EQ(full_grid_variance(32, 2, 2), 0);
}

void expect_full_grids_follow_the_law(uint32_t restarts) {
  struct Row {
    uint32_t peers, group, axes;
  };
  for (const auto algorithm :
       {AveragingAlgorithm::published_grid, AveragingAlgorithm::fitted, AveragingAlgorithm::chunk_keys}) {
    for (const auto& row : {Row{1024, 32, 2}, {512, 8, 3}, {1024, 4, 5}}) {
      SCOPED_TRACE(concat(name(algorithm), ", groups of ", row.group, ", seeds from 0"));
      const auto curve = curve_of({.algorithm = algorithm, .peers = row.peers, .max_group = row.group}, row.axes, restarts);
      for (uint32_t k = 1; k < row.axes; ++k)
        EXPECT_NEAR(curve.mean[k], full_grid_variance(row.group, row.axes, k), 4 * curve.error[k]) << "round " << k;
      EXPECT_LT(curve.mean[row.axes], 1e-28);
    }
  }
}

TEST(AveragingA19, full_grids_follow_the_law_and_are_exact_after_a_step) { expect_full_grids_follow_the_law(100); }
TEST(AveragingA19Long, full_grids_follow_the_law_and_are_exact_after_a_step) { expect_full_grids_follow_the_law(2000); }

TEST(AveragingA19, a_first_round_leaves_the_specified_variance) {
  constexpr double of_1024[] = {.03027, .03127, .03527, .04027}, of_768[] = {.04036, .04136, .04536, .05036};
  for (size_t p = 0; p < 4; ++p) {
    EXPECT_NEAR(first_round_variance({.peers = 1024, .absence = absences[p]}, 32), of_1024[p], 5e-6);
    EXPECT_NEAR(first_round_variance({.peers = 768, .absence = absences[p]}, 32), of_768[p], 5e-6);
  }
  EXPECT_NEAR(first_round_variance({.peers = 512, .absence = .01}, 506 / 23), .05102, 5e-6);
}

void expect_first_rounds_follow_the_law(uint32_t restarts, double tolerance) {
  for (const double absence : absences) {
    for (const uint32_t peers : {1024u, 768u}) {
      const auto curve =
          curve_of({.algorithm = AveragingAlgorithm::published_grid, .peers = peers, .absence = absence}, 1, restarts);
      EXPECT_NEAR(curve.mean[1] / first_round_variance({.peers = peers, .absence = absence}, 32), 1, tolerance)
          << peers << " peers, absence " << absence << ", seeds from 0";
    }
  }
  const auto fitted = curve_of({.absence = .01}, 1, restarts);
  EXPECT_NEAR(fitted.mean[1] / first_round_variance({.peers = 512, .absence = .01}, 22), 1, tolerance)
      << "fitted, seeds from 0";
}

TEST(AveragingA19, first_rounds_follow_the_law) { expect_first_rounds_follow_the_law(200, .08); }
TEST(AveragingA19Long, first_rounds_follow_the_law) { expect_first_rounds_follow_the_law(2000, .025); }

TEST(AveragingLaw, rounds_of_random_regrouping_for_a_share_of_the_variance) {
  EXPECT_EQ(random_groups_rounds({.peers = 512}, 1e-9), 6u);
  EXPECT_EQ(random_groups_rounds({.peers = 512}, 1e-4), 3u);
  EXPECT_EQ(random_groups_rounds({.peers = 32}, 1e-9), 1u);  // one group holds all 32 peers
  EXPECT_EQ(random_groups_rounds({.peers = 512, .absence = 1}, 1e-9), UINT32_MAX);
}

}  // namespace
}  // namespace unisono::sim
