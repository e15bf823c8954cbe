#include "training/sharded/drift.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/random.h"

namespace unisono {
namespace {

// Reference values without closed forms: second moments are sums of autocorrelations; ages come from a run of the Markov chain.
std::vector<double> moments(double rho) {
  std::vector<double> sums(120);
  for (size_t m = 1; m < sums.size(); ++m) {
    sums[m] = sums[m - 1] + 1;
    for (size_t before = 1; before < m; ++before) sums[m] += 2 * std::pow(rho, static_cast<double>(before));
  }
  return sums;
}

// A range at one receiver after very many steps. good[m], bad[m]: the probability that its age is m and its link is good, or
// bad.
struct Chain {
  std::vector<double> good = std::vector<double>(400), bad = std::vector<double>(400);
  double fetches = 0;
  double age(size_t m) const { return good[m] + bad[m]; }
};
Chain run_chain(double p, double r, uint32_t stale_max) {
  const double a = p * r / (1 - p);  // probability that a good link becomes bad
  Chain now;
  now.good[0] = 1 - p, now.bad[0] = p;
  for (int step = 0; step < 2000; ++step) {
    Chain next;
    for (size_t age = 0; age + 1 < now.good.size(); ++age) {
      const double lost = now.good[age] * a + now.bad[age] * (1 - r);
      next.good[0] += now.good[age] * (1 - a) + now.bad[age] * r;
      const bool fetched = stale_max != 0 && age + 1 >= stale_max;
      next.bad[fetched ? 0 : age + 1] += lost;
      if (fetched) next.fetches += lost;
    }
    now = next;
  }
  return now;
}
double owner_of(const Chain& chain, double rho) {
  const auto moment = moments(rho);
  double sum = 0;
  for (uint32_t m = 1; m < 100; ++m) sum += chain.age(m) * moment[m];
  return sum;
}
double pair_of(const Chain& chain, double rho) {
  std::vector<double> apart(100);
  for (size_t i = 0; i < 100; ++i) {
    for (size_t j = 0; j < 100; ++j) apart[i > j ? i - j : j - i] += chain.age(i) * chain.age(j);
  }
  const auto moment = moments(rho);
  double sum = 0;
  for (uint32_t m = 1; m < 100; ++m) sum += apart[m] * moment[m];
  return sum;
}

constexpr double close = 1e-9;
void expect_close(double found, double expected, double relative = close) {
  EXPECT_NEAR(found, expected, relative * std::abs(expected));
}

// The table of check B1 of docs/design/methods/packet_loss.md, followed by numbers of checks B3 to B5.
TEST(Drift, has_the_documented_numbers) {
  const struct {
    double p, pair, pair_correlated, owner, paper;
  } rows[] = {{0.01, 0.0200, 0.0204, 0.0101, 0.0198}, {0.05, 0.1003, 0.1097, 0.0526, 0.0952},
              {0.10, 0.2020, 0.2420, 0.1111, 0.1818}, {0.20, 0.4167, 0.5996, 0.2500, 0.3333},
              {0.30, 0.6593, 1.1471, 0.4286, 0.4615}, {0.40, 0.9524, 2.0238, 0.6667, 0.5714}};
  for (const auto& row : rows) {
    EXPECT_NEAR(pair_drift({.loss = row.p}), row.pair, 5.1e-5);
    EXPECT_NEAR(pair_drift({.loss = row.p, .rho = 0.9}), row.pair_correlated, 5.1e-5);
    EXPECT_NEAR(owner_drift({.loss = row.p}), row.owner, 5.1e-5);
    EXPECT_NEAR(paper_form(row.p), row.paper, 5.1e-5);
  }
  // Check B3 of docs/design/methods/packet_loss.md: measures of a vector of 8 shards, and growth from equal replicas.
  const double owner = owner_drift({.loss = 0.1}), pair = pair_drift({.loss = 0.1});
  EXPECT_NEAR(pair_mean(8, owner, pair), 0.17929, 5e-6);
  EXPECT_NEAR(consensus_distance(8, owner, pair), 0.07844, 5e-6);
  EXPECT_NEAR(pair_drift_after(0.2, 1), 0.32, close);
  EXPECT_NEAR(pair_drift_after(0.2, 2), 0.3968, close);
  EXPECT_NEAR(pair_drift_after(0.2, 3), 0.412672, close);
  EXPECT_NEAR(owner_drift_after(0.2, 2), 0.24, close);
  // Check B4 of docs/design/methods/packet_loss.md: drift with fetching, lasting loss and joint loss.
  EXPECT_NEAR(owner_drift({.loss = 0.2, .stale_max = 3}), 0.22581, 5e-6);
  EXPECT_NEAR(fetches_per_step({.loss = 0.2, .stale_max = 3}), 6.452e-3, 5e-7);
  EXPECT_NEAR(owner_drift({.loss = 0.1, .recovery = 0.5}), 0.2, close);
  EXPECT_NEAR(pair_drift({.loss = 0.1, .recovery = 0.5}), 0.37333, 5e-6);
  EXPECT_NEAR(owner_drift({.loss = 0.1, .recovery = 0.25}), 0.4, close);
  EXPECT_NEAR(pair_drift({.loss = 0.1, .recovery = 0.25}), 0.75429, 5e-6);
  EXPECT_NEAR(pair_drift({.loss = 0.1, .both = 0.05}), 0.11696, 5e-6);
  EXPECT_NEAR(owner_drift({.loss = 0.1, .both = 0.05}), 0.1111, 5e-5);
  // Check B5 of docs/design/methods/packet_loss.md: if owners sent differences, drift would grow to 180 in 1000 steps.
  EXPECT_NEAR(difference_drift(0.1, 1000), 180, close);
}

TEST(Drift, equals_a_run_of_the_markov_chain) {
  const struct {
    double p, r;
    uint32_t stale_max;
  } laws[] = {{0.1, -1, 0}, {0.2, -1, 0}, {0.1, 0.5, 0},  {0.2, 0.4, 0}, {0.3, 1, 0}, {0.2, -1, 3},
              {0.4, -1, 1}, {0.4, -1, 2}, {0.1, 0.25, 4}, {0.2, 0.1, 7}, {0.3, 1, 5}};
  for (const auto& law : laws) {
    const auto chain = run_chain(law.p, law.r < 0 ? 1 - law.p : law.r, law.stale_max);
    for (const double rho : {0.0, 0.5, 0.9, -0.5, 1.0, 0.9995}) {
      SCOPED_TRACE(testing::Message() << "p " << law.p << " r " << law.r << " A " << law.stale_max << " rho " << rho);
      const DriftLaw asked{.loss = law.p, .rho = rho, .recovery = law.r, .stale_max = law.stale_max};
      EXPECT_NEAR(owner_drift(asked), owner_of(chain, rho), 1e-7 * owner_of(chain, rho));
      EXPECT_NEAR(pair_drift(asked), pair_of(chain, rho), 1e-7 * pair_of(chain, rho));
    }
    EXPECT_NEAR(fetches_per_step({.loss = law.p, .recovery = law.r, .stale_max = law.stale_max}), chain.fetches, 1e-9);
  }
}

// With probability c, two receivers both miss a range. now[i][j] is the probability that the range has age i at one receiver
// and age j at the other.
TEST(Drift, with_joint_misses_equals_a_run_of_both_receivers) {
  for (const auto& [p, c] : {std::pair{0.1, 0.05}, {0.1, 0.01}, {0.2, 0.0}, {0.3, 0.3}, {0.6, 0.25}}) {
    constexpr size_t limit = 120;
    std::vector<std::vector<double>> now(limit, std::vector<double>(limit));
    now[0][0] = 1;
    for (int step = 0; step < 150; ++step) {
      std::vector<std::vector<double>> next(limit, std::vector<double>(limit));
      for (size_t i = 0; i + 1 < limit; ++i) {
        for (size_t j = 0; j + 1 < limit; ++j) {
          next[0][0] += now[i][j] * (1 - 2 * p + c);
          next[i + 1][0] += now[i][j] * (p - c);
          next[0][j + 1] += now[i][j] * (p - c);
          next[i + 1][j + 1] += now[i][j] * c;
        }
      }
      now = next;
    }
    for (const double rho : {0.0, 0.9}) {
      const auto moment = moments(rho);
      double sum = 0;
      for (size_t i = 0; i < limit; ++i) {
        for (size_t j = 0; j < limit; ++j) sum += now[i][j] * moment[i > j ? i - j : j - i];
      }
      EXPECT_NEAR(pair_drift({.loss = p, .rho = rho, .both = c}), sum, 1e-7) << p << " " << c << " " << rho;
    }
  }
  expect_close(pair_drift({.loss = 0.3, .both = 0.09}), pair_drift({.loss = 0.3}));
}

// The formulae must solve the recursions E_{t+1} = p^2 E_t + 2p (1 - p^{t+1}) and O_{t+1} = p (O_t + 1), where E is P after t
// steps.
TEST(Drift, after_some_steps_solves_the_recursion) {
  for (const double p : {0.0, 0.05, 0.2, 0.5}) {
    double pair = 0, owner = 0;
    for (uint32_t t = 0; t < 30; ++t) {
      EXPECT_NEAR(pair_drift_after(p, t), pair, 1e-12);
      EXPECT_NEAR(owner_drift_after(p, t), owner, 1e-12);
      pair = p * p * pair + 2 * p * (1 - p) * (1 - std::pow(p, t + 1.0)) / (1 - p);
      owner = p * (owner + 1);
    }
    EXPECT_NEAR(pair, pair_drift({.loss = p}), 1e-6);
    EXPECT_NEAR(owner, owner_drift({.loss = p}), 1e-6);
  }
}

TEST(Drift, of_the_whole_vector_counts_pairs_of_ranks) {
  // With N ranks, a shard has N (N - 1) / 2 pairs of ranks. N - 1 of these pairs contain the shard's owner.
  for (const uint32_t n : {2u, 3u, 8u}) {
    const double owner = 3, pair = n == 2 ? 0 : 5;
    const double pairs = n * (n - 1) / 2.0, with_owner = n - 1;
    expect_close(pair_mean(n, owner, pair), (with_owner * owner + (pairs - with_owner) * pair) / pairs);
    // The mean squared distance from the mean is half the mean squared difference over all ordered pairs of ranks. A rank also
    // pairs with itself.
    expect_close(consensus_distance(n, owner, pair), (with_owner * owner + (pairs - with_owner) * pair) / (n * n));
  }
  EXPECT_EQ(pair_mean(2, 3, std::nan("")), 3);
  EXPECT_EQ(consensus_distance(2, 4, std::nan("")), 1);
  EXPECT_EQ(pair_mean(1, 3, 5), 0);
  EXPECT_EQ(consensus_distance(1, 3, 5), 0);
}

TEST(Drift, is_zero_without_loss) {
  for (const auto& law : {DriftLaw{}, {.rho = 0.9}, {.recovery = 0.5}, {.both = 0}, {.stale_max = 4}}) {
    EXPECT_EQ(owner_drift(law), 0);
    EXPECT_EQ(pair_drift(law), 0);
    EXPECT_EQ(fetches_per_step(law), 0);
  }
}

TEST(Drift, is_nan_where_no_formula_is_known) {
  EXPECT_TRUE(std::isnan(pair_drift({.loss = 0.1, .recovery = 0.5, .both = 0.02})));
  EXPECT_TRUE(std::isnan(pair_drift({.loss = 0.1, .both = 0.02, .stale_max = 3})));
  for (const auto& law : {DriftLaw{.loss = 1},
                          {.loss = -0.1},
                          {.loss = std::nan("")},
                          {.loss = 0.1, .rho = 1.1},
                          {.loss = 0.1, .rho = std::nan("")},
                          {.loss = 0.1, .recovery = 1.5},
                          {.loss = 0.1, .recovery = std::nan("")},
                          {.loss = 0.8, .recovery = 0.5},
                          {.loss = 0.1, .both = 0.2},
                          {.loss = 0.9, .both = 0.5}}) {
    EXPECT_TRUE(std::isnan(owner_drift(law)));
    EXPECT_TRUE(std::isnan(pair_drift(law)));
    EXPECT_TRUE(std::isnan(fetches_per_step(law)));
  }
  EXPECT_TRUE(std::isinf(owner_drift({.loss = 0.1, .recovery = 0})));
  EXPECT_TRUE(std::isinf(pair_drift({.loss = 0.1, .recovery = 0})));
  // Recovery 0 and fetching at age 4: ages 0 to 3 of a range with a bad link are equally likely.
  expect_close(owner_drift({.loss = 0.1, .recovery = 0, .stale_max = 4}), 0.1 * (1 + 2 + 3) / 4);
  EXPECT_TRUE(std::isfinite(pair_drift({.loss = 0.1, .recovery = 0, .stale_max = 4})));
  // Even with the largest stale_max the sums end, because terms become negligible.
  expect_close(owner_drift({.loss = 0.2, .stale_max = UINT32_MAX}), owner_drift({.loss = 0.2}), 1e-12);
  expect_close(pair_drift({.loss = 0.2, .rho = 0.9, .stale_max = UINT32_MAX}), pair_drift({.loss = 0.2, .rho = 0.9}), 1e-12);
}

TEST(Drift, recovery_is_found_from_ages) {
  for (const double r : {0.9, 0.5, 0.25, 0.1}) {
    const auto count = [&](int m, double p) { return static_cast<uint64_t>(1e9 * p * r * std::pow(1 - r, m - 1)); };
    std::vector<uint64_t> seen{900'000'000};
    for (int m = 1; m < 300; ++m) seen.push_back(count(m, 0.1));
    EXPECT_NEAR(recovery_from_ages(seen), r, 1e-5);
    // The last entry counts all ranges of age 4 or more.
    std::vector<uint64_t> cut(seen.begin(), seen.begin() + 4);
    cut.push_back(static_cast<uint64_t>(1e8 * std::pow(1 - r, 3)));
    EXPECT_NEAR(recovery_from_ages(cut), r, 1e-5);
    // No range is older than 6, because older ranges are fetched.
    std::vector<uint64_t> limited(seen.begin(), seen.begin() + 7);
    EXPECT_NEAR(recovery_from_ages(limited, 6), r, 1e-5);
  }
  const std::vector<uint64_t> even{1, 5, 5, 5, 5};
  EXPECT_NEAR(recovery_from_ages(even, 4), 0, 1e-9);
}

TEST(Drift, recovery_needs_ages) {
  EXPECT_TRUE(std::isnan(recovery_from_ages({})));
  const std::vector<uint64_t> none{10, 0, 0, 0}, two{10, 5};
  EXPECT_TRUE(std::isnan(recovery_from_ages(none)));
  EXPECT_TRUE(std::isnan(recovery_from_ages(none, 3)));
  EXPECT_TRUE(std::isnan(recovery_from_ages(two)));
  const std::vector<uint64_t> some{10, 5, 1};
  EXPECT_TRUE(std::isnan(recovery_from_ages(some, 3)));
  EXPECT_TRUE(std::isnan(recovery_from_ages(some, 1)));
  EXPECT_EQ(recovery_from_ages(std::vector<uint64_t>{10, 5, 0}), 1);
  EXPECT_EQ(recovery_from_ages(std::vector<uint64_t>{10, 0, 5}), 0);
}

TEST(UpdateStatistics, estimates_second_moment_and_autocorrelation) {
  Random random(21);
  for (const double rho : {0.0, 0.9, -0.4}) {
    UpdateStatistics statistics;
    std::vector<float> updates(256);
    const auto fresh = [&] { return (random.unit() - 0.5) * std::sqrt(12.0); };
    for (auto& u : updates) u = static_cast<float>(0.1 * fresh());
    for (int step = 0; step < 1500; ++step) {
      statistics.add(updates);
      for (auto& u : updates) u = static_cast<float>(rho * u + std::sqrt(1 - rho * rho) * 0.1 * fresh());
    }
    EXPECT_NEAR(statistics.second_moment(), 0.01, 3e-4);
    EXPECT_NEAR(statistics.autocorrelation(), rho, 0.02);
    EXPECT_EQ(statistics.steps(), 1500u);
  }
}

TEST(UpdateStatistics, forgets_updates_older_than_its_window) {
  UpdateStatistics statistics(3);
  EXPECT_TRUE(std::isnan(statistics.second_moment()));
  EXPECT_EQ(statistics.autocorrelation(), 0);
  const auto add = [&](float a, float b) { statistics.add(std::vector{a, b}); };
  add(3, 1);
  EXPECT_EQ(statistics.second_moment(), 5);
  EXPECT_EQ(statistics.autocorrelation(), 0);
  add(1, 3);
  EXPECT_EQ(statistics.second_moment(), 5);
  EXPECT_DOUBLE_EQ(statistics.autocorrelation(), 3 / 5.0);
  add(1, 1), add(1, 1), add(-1, -1);
  EXPECT_EQ(statistics.second_moment(), 1);
  EXPECT_DOUBLE_EQ(statistics.autocorrelation(), 2 / 3.0)
      << "(1 + 3) / 2, 1 and -1; the first pair's second step is still in the window";
  statistics.add(std::vector{2.0f});
  EXPECT_EQ(statistics.second_moment(), 4);
  EXPECT_EQ(statistics.steps(), 1u);
}

}  // namespace
}  // namespace unisono
