// Up to 1000 peers are killed at random while others join. Every averaging step of the living peers must end soon, and memory
// must stay bounded. This is check A29 of docs/design/methods/moshpit.md.
#include <gtest/gtest.h>

#include <algorithm>

#include "sim/elastic/elastic_cluster_test_support.h"

namespace unisono::sim {

namespace {

struct Deaths {
  explicit Deaths(uint64_t seed, uint32_t count) : random(seed), run(count, options(seed, count), begin) {
    run.cluster.on_step = [this](uint32_t, const FinishedStep& step) {
      longest = std::max(longest, step.report.seconds);
      exact += step.report.exact ? 1 : 0;
      ++steps;
      const auto values = step.values.all();
      wrong += values[0] != 1 ? 1 : 0;
      for (const float value : values) wrong += value < -1 || value > 1 ? 1 : 0;
    };
  }
  static std::vector<float> begin(uint32_t index) {
    auto values = values_of(index, few_elements);
    values[0] = 1;  // all peers contribute 1 here, so every mean must be 1
    return values;
  }
  static ElasticClusterOptions options(uint64_t seed, uint32_t count) {
    auto options = options_for(count, 4, seed);
    options.compute = 50 * millisecond;
    options.compute_jitter = 30 * millisecond;
    return options;
  }
  // Kills one peer and adds another.
  void one() {
    std::vector<uint32_t> live;
    for (uint32_t index = 0; index < run.cluster.size(); ++index) {
      if (run.cluster.peer(index) != nullptr) live.push_back(index);
    }
    run.cluster.kill(live[random.below(live.size())]);
    run.cluster.add(run.cluster.now() + static_cast<Nanos>(random.below(2 * second)));
    run.cluster.run(run.cluster.now() + 500 * millisecond + static_cast<Nanos>(random.below(3 * second)));
    held = std::max(held, most_held());
  }
  size_t most_held() {
    size_t most = 0;
    for (uint32_t index = 0; index < run.cluster.size(); ++index) {
      if (auto* peer = run.cluster.peer(index)) most = std::max(most, peer->held_bytes());
    }
    return most;
  }

  Random random;
  CountedRun run;
  double longest = 0;
  uint64_t steps = 0, exact = 0, wrong = 0;
  size_t held = 0;
};

void check(uint64_t seed, uint32_t deaths) {
  Deaths job(seed, 12);
  job.run.cluster.run(5 * second);
  ASSERT_GT(job.exact, 0u);
  for (uint32_t death = 0; death < deaths; ++death) job.one();
  EXPECT_EQ(job.wrong, 0u) << "seed " << seed;
  EXPECT_LE(job.longest, 4.5) << "seed " << seed;
  // A peer may hold contributions and results of two rounds, the current and the previous one. It may also hold early messages.
  EXPECT_LE(job.held, 8 * few_elements * sizeof(float) + (1u << 16)) << "seed " << seed;
  // The run recovers: all peers are in one layout, and averages are exact again.
  const auto settled = [&] { return job.run.cluster.settled(); };
  EXPECT_TRUE(job.run.cluster.run(job.run.cluster.now() + 60 * second, settled)) << "seed " << seed;
  job.run.cluster.run(job.run.cluster.now() + 5 * second);
  const auto before = job.exact, steps_before = job.steps;
  job.run.cluster.run(job.run.cluster.now() + 2 * second);
  EXPECT_EQ(job.exact - before, job.steps - steps_before) << "seed " << seed;
  EXPECT_GT(job.steps, steps_before);
}

}  // namespace

TEST(ElasticDeaths, no_peer_waits_long_and_no_value_is_wrong) { check(1, 8); }

TEST(LongElasticDeaths, a_thousand_deaths) {
  for (uint64_t seed = 10; seed < 20; ++seed) check(seed, 100);
}

}  // namespace unisono::sim
