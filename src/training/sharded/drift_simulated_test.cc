// Compares the drift of sharded states that lose broadcast ranges with the formulae. These are checks B1 to B5 of
// docs/design/methods/packet_loss.md. Each range is lost independently. Many groups of ranks are simulated, and each group is
// one sample.
#include <array>

#include "training/sharded/drift.h"
#include "training/sharded/lossy_ranks_test_support.h"

namespace unisono {
namespace {

using namespace test;

// Number of simulated groups. Each has three shards of one range, so there are more than ten thousand ranges.
constexpr uint32_t many = sanitized ? 60 : 3400;

struct Measured {
  Sample owner, pair, all_pairs, consensus;
  uint64_t fetched = 0, ranges = 0;  // fetched: number of fetches. ranges: number of (step, owner, receiver)
};

struct DriftRun {
  LossyRanks::Options group{};
  uint32_t groups = many;
  uint32_t settle = 20;  // steps before the measurement, until the process is stationary
  uint32_t steps = 20;
};

double consensus_of(const LossyRanks& group) {
  double sum = 0;
  const auto world = group.ranks.size();
  for (uint64_t i = 0; i < group.geometry.cut().elements; ++i) {
    double mean = 0;
    for (const auto& rank : group.ranks) mean += double{rank.parameters()[i]} / static_cast<double>(world);
    for (const auto& rank : group.ranks) sum += (rank.parameters()[i] - mean) * (rank.parameters()[i] - mean);
  }
  return sum / static_cast<double>(world * group.geometry.cut().elements);
}

// Simulates run.groups groups. losses(random) returns, for each group, a function lost(owner, range, receiver).
template <typename Losses>
Measured measure(const DriftRun& run, uint64_t seed, Losses losses) {
  Measured measured;
  for (uint32_t g = 0; g < run.groups; ++g) {
    auto options = run.group;
    options.seed = mix64(seed * 1'000'003 + g);
    LossyRanks group(options);
    Random random(~options.seed);
    auto lost = losses(random);
    for (uint32_t step = 0; step < run.settle; ++step) group.step(lost);
    group.fetched = 0;
    MeanSquare sum;
    double all_pairs = 0, consensus = 0;
    for (uint32_t step = 0; step < run.steps; ++step) {
      group.step(lost);
      const auto now = group.drift();
      sum.owner += now.owner, sum.pair += now.pair;
      all_pairs += pair_mean(options.world, now.owner, now.pair);
      if (options.world > 3) consensus += consensus_of(group);
    }
    measured.owner.add(sum.owner / run.steps), measured.pair.add(sum.pair / run.steps);
    measured.all_pairs.add(all_pairs / run.steps), measured.consensus.add(consensus / run.steps);
    measured.fetched += group.fetched;
    measured.ranges += uint64_t{run.steps} * options.world * (options.world - 1);
  }
  return measured;
}

// Losses that are independent over time and receivers.
auto independent(double p) {
  return [p](Random& random) { return [&random, p](Rank, uint32_t, Rank) { return random.chance(p); }; };
}

void expect_b1(double p, double rho, double pair, double owner, uint32_t settle) {
  SCOPED_TRACE(testing::Message() << "p " << p << " rho " << rho);
  const auto measured = measure({.group = {.rho = rho}, .settle = settle, .steps = p < 0.05 ? 60u : 20u}, 101, independent(p));
  const double tolerance = rho == 0 ? 0.05 : 0.10;
  measured.pair.expect(pair, tolerance);
  measured.owner.expect(owner, tolerance);
}

TEST(DriftSimulated, equals_the_formula_at_ten_percent_loss) {
  expect_b1(0.1, 0, 0.2020, 0.1111, 8);
  expect_b1(0.1, 0.9, 0.2420, owner_drift({.loss = 0.1, .rho = 0.9}), 8);
}

TEST(DriftSimulated, equals_the_formula_at_twenty_percent_loss) {
  expect_b1(0.2, 0, 0.4167, 0.2500, 12);
  expect_b1(0.2, 0.9, 0.5996, owner_drift({.loss = 0.2, .rho = 0.9}), 12);
}

TEST(DriftSimulated, equals_the_formula_at_low_loss) {
  expect_b1(0.01, 0, 0.0200, 0.0101, 5);
  expect_b1(0.01, 0.9, 0.0204, owner_drift({.loss = 0.01, .rho = 0.9}), 5);
  expect_b1(0.05, 0, 0.1003, 0.0526, 6);
  expect_b1(0.05, 0.9, 0.1097, owner_drift({.loss = 0.05, .rho = 0.9}), 6);
}

TEST(DriftSimulated, equals_the_formula_at_high_loss) {
  expect_b1(0.3, 0, 0.6593, 0.4286, 15);
  expect_b1(0.3, 0.9, 1.1471, owner_drift({.loss = 0.3, .rho = 0.9}), 15);
  expect_b1(0.4, 0, 0.9524, 0.6667, 20);
  expect_b1(0.4, 0.9, 2.0238, owner_drift({.loss = 0.4, .rho = 0.9}), 25);
}

// Check B2 of docs/design/methods/packet_loss.md: P / (mean gap) must be 2p / (1 + p), the form attributed to the paper. The
// gap is that of ranges that exactly one of two receivers got.
TEST(DriftSimulated, equals_the_unconfirmed_form_over_pairs_with_one_receiver) {
  for (const double p : {0.1, 0.2}) {
    for (const double rho : {0.0, 0.9}) {
      double pairs = 0, pair_count = 0, gaps = 0, gap_count = 0;
      for (uint32_t g = 0; g < many; ++g) {
        LossyRanks group({.rho = rho, .seed = mix64(500'000 + g)});
        Random random(g);
        std::array<std::array<bool, 3>, 3> got{};
        for (uint32_t step = 0; step < 40; ++step) {
          group.step([&](Rank owner, uint32_t, Rank to) { return !(got[owner][to] = !random.chance(p)); });
          if (step < 12) continue;
          for (Rank owner = 0; owner < 3; ++owner) {
            const Rank a = (owner + 1) % 3, b = (owner + 2) % 3;
            double gap = 0;
            for (uint64_t i = group.geometry.shard(owner).begin; i < group.geometry.shard(owner).end; ++i)
              gap += group.squared(a, b, i) / 16;
            pairs += gap, ++pair_count;
            if (got[owner][a] != got[owner][b]) gaps += gap, ++gap_count;
          }
        }
      }
      const double ratio = pairs / pair_count / (gaps / gap_count);
      EXPECT_NEAR(ratio, paper_form(p), (sanitized ? 0.1 : 0.03) * paper_form(p)) << "p " << p << " rho " << rho;
    }
  }
}

// Check B3 of docs/design/methods/packet_loss.md: the mean over all pairs of 8 ranks, and the consensus distance, at p = 0.1.
TEST(DriftSimulated, eight_ranks_have_the_predicted_pair_mean_and_consensus_distance) {
  const auto measured =
      measure({.group = {.world = 8}, .groups = sanitized ? 20u : 1300u, .settle = 8, .steps = 12}, 7, independent(0.1));
  measured.all_pairs.expect(0.17929, 0.03);
  measured.consensus.expect(0.07844, 0.03);
}

TEST(DriftSimulated, grows_from_equal_replicas_as_predicted) {
  constexpr std::array<double, 3> pair{0.32, 0.3968, 0.412672};
  std::array<Sample, 3> pairs, owners;
  for (uint32_t g = 0; g < (sanitized ? 400u : 67'000u); ++g) {
    LossyRanks group({.seed = mix64(900'000 + g)});
    Random random(g);
    for (size_t step = 0; step < 3; ++step) {
      group.step([&](Rank, uint32_t, Rank) { return random.chance(0.2); });
      const auto now = group.drift();
      pairs[step].add(now.pair), owners[step].add(now.owner);
    }
  }
  for (size_t step = 0; step < 3; ++step) pairs[step].expect(pair[step], 0.03);
  owners[1].expect(0.24, 0.03);
}

// Check B4 of docs/design/methods/packet_loss.md: O, P and fetches per step with fetching at age 3, at p = 0.2.
TEST(DriftSimulated, with_fetching_is_bounded_by_stale_max) {
  const auto measured = measure({.group = {.stale_max = 3}, .steps = 40}, 11, independent(0.2));
  measured.owner.expect(0.22581, 0.05);
  measured.pair.expect(pair_drift({.loss = 0.2, .stale_max = 3}), 0.05);
  const double fetches = static_cast<double>(measured.fetched) / static_cast<double>(measured.ranges);
  EXPECT_NEAR(fetches, 6.452e-3, (sanitized ? 0.3 : 0.05) * 6.452e-3);
}

// Losses from a two-state Markov chain for each owner and receiver. The chains start in their stationary state.
auto chains(double p, double r) {
  return [p, r](Random& random) {
    std::array<std::array<bool, 3>, 3> bad{};
    for (auto& row : bad) {
      for (auto& one : row) one = random.chance(p);
    }
    const double a = p * r / (1 - p);
    return [&random, bad, a, r](Rank owner, uint32_t, Rank to) mutable {
      return bad[owner][to] = bad[owner][to] ? !random.chance(r) : random.chance(a);
    };
  };
}

TEST(DriftSimulated, equals_the_markov_chain_with_bursty_loss) {
  auto measured = measure({.settle = 20, .steps = 40}, 13, chains(0.1, 0.5));
  measured.owner.expect(0.2, 0.05);
  measured.pair.expect(0.37333, 0.05);
  measured = measure({.groups = 2 * many, .settle = 40, .steps = 60}, 17, chains(0.1, 0.25));
  measured.owner.expect(0.4, 0.05);
  measured.pair.expect(0.75429, 0.05);
}

TEST(DriftSimulated, equals_the_markov_chain_with_bursty_loss_fetches_and_correlated_updates) {
  const auto measured = measure({.group = {.stale_max = 4, .rho = 0.9}, .settle = 20, .steps = 40}, 19, chains(0.1, 0.25));
  measured.owner.expect(owner_drift({.loss = 0.1, .rho = 0.9, .recovery = 0.25, .stale_max = 4}), 0.05);
  measured.pair.expect(pair_drift({.loss = 0.1, .rho = 0.9, .recovery = 0.25, .stale_max = 4}), 0.05);
  const double fetches = static_cast<double>(measured.fetched) / static_cast<double>(measured.ranges);
  const double expected = fetches_per_step({.loss = 0.1, .recovery = 0.25, .stale_max = 4});
  EXPECT_NEAR(fetches, expected, (sanitized ? 0.3 : 0.05) * expected);
}

// With probability c, both receivers miss a range. The function is called for one receiver, then for the other. The second
// probability depends on the first result.
TEST(DriftSimulated, joint_misses_reduce_pair_drift_but_not_owner_drift) {
  const double p = 0.1, c = 0.05;
  const auto measured = measure({.steps = 40}, 23, [&](Random& random) {
    return [&random, p, c, first = true, missed = false](Rank, uint32_t, Rank) mutable {
      const bool lost = random.chance(first ? p : missed ? c / p : (p - c) / (1 - p));
      missed = lost, first = !first;
      return lost;
    };
  });
  measured.pair.expect(0.11696, 0.05);
  measured.owner.expect(0.1111, 0.05);
}

// Check B5 of docs/design/methods/packet_loss.md. Computes block means over the second half of the steps, and fits a line to
// them. The slope must be 0 within the error that the scatter of the means allows.
TEST(DriftSimulated, does_not_grow) {
  constexpr uint32_t steps = sanitized ? 400 : 10'000, groups = sanitized ? 4 : 100, blocks = 40, block = steps / 2 / blocks;
  std::array<double, blocks> owner{}, pair{};
  for (uint32_t g = 0; g < groups; ++g) {
    LossyRanks group({.seed = mix64(31 + g)});
    Random random(37 + g);
    for (uint32_t step = 0; step < steps; ++step) {
      group.step([&](Rank, uint32_t, Rank) { return random.chance(0.1); });
      if (step < steps / 2) continue;
      const auto now = group.drift();
      owner[(step - steps / 2) / block] += now.owner / (block * groups);
      pair[(step - steps / 2) / block] += now.pair / (block * groups);
    }
  }
  for (const auto& series : {owner, pair}) {
    double mean = 0, product = 0, squares = 0, rest = 0;
    const double middle = (blocks - 1) / 2.0;
    for (const double value : series) mean += value / blocks;
    for (uint32_t b = 0; b < blocks; ++b) product += (b - middle) * (series[b] - mean), squares += (b - middle) * (b - middle);
    const double slope = product / squares;
    for (uint32_t b = 0; b < blocks; ++b) rest += std::pow(series[b] - mean - slope * (b - middle), 2);
    const double standard_error = std::sqrt(rest / (blocks - 2) / squares);
    // 2.02 is the quantile for 95 % of Student's t with 38 degrees of freedom.
    EXPECT_LT(std::abs(slope), 2.02 * standard_error) << "of a block of " << block << " steps; mean " << mean;
  }
  EXPECT_NEAR(owner[0] / owner_drift({.loss = 0.1}), 1, sanitized ? 1 : 0.1);
}

// The reason for sending values instead of differences: with differences, the distance between replicas is a random walk.
TEST(DriftSimulated, sending_differences_drifts_without_bound) {
  constexpr uint32_t ranges = sanitized ? 500 : 20'000, steps = 1000;
  Random random(41);
  Sample gap;
  for (uint32_t i = 0; i < ranges; ++i) {
    double a = 0, b = 0;
    for (uint32_t step = 0; step < steps; ++step) {
      const double u = double{uniform(random)};
      const uint64_t draw = random.next();
      if ((draw & 0xFFFFFFFF) >= 0x1999999A) a += u;
      if (draw >> 32 >= 0x1999999A) b += u;
    }
    gap.add((a - b) * (a - b));
  }
  gap.expect(180, 0.05);
  EXPECT_NEAR(difference_drift(0.1, steps), 180, 1e-9);
}

}  // namespace
}  // namespace unisono
