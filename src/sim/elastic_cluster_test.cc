// Whole elastic runs in virtual time: every number of peers averages exactly without faults, and with faults nothing hangs, is lost or counted twice.
#include "sim/elastic_cluster.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

namespace unisono::sim {

namespace {

constexpr size_t few_elements = 300;

ElasticClusterOptions options_for(uint32_t peers, uint32_t max_group, uint64_t seed = 1) {
  ElasticClusterOptions options;
  options.settings.run_id = "test";
  options.settings.elements = few_elements;
  options.settings.schema = 77;
  options.settings.max_group = max_group;
  options.settings.min_peers = peers;
  options.seed = seed;
  return options;
}

std::vector<float> values_of(uint32_t index, size_t elements) {
  std::vector<float> values(elements);
  Random random(index + 1);
  for (auto& value : values) value = static_cast<float>(random.unit() * 2 - 1);
  return values;
}

// A run of `peers` whose sweeps are counted.
struct CountedRun {
  CountedRun(uint32_t peers, const ElasticClusterOptions& options) : cluster(options), sweeps(peers), reports(peers), results(peers) {
    cluster.initial = [elements = options.settings.elements](uint32_t index) { return values_of(index, elements); };
    cluster.on_sweep = [this](uint32_t index, const FinishedSweep& sweep) {
      if (index >= sweeps.size()) return;
      ++sweeps[index];
      reports[index] = sweep.report;
      results[index] = sweep.values;
    };
    for (uint32_t index = 0; index < peers; ++index) cluster.add();
  }
  bool run_sweeps(uint32_t count, Nanos until) {
    cluster.goes_on = [this, count](uint32_t index) { return index >= sweeps.size() || sweeps[index] < count; };
    return cluster.run(until, [&] {
      for (uint32_t index = 0; index < sweeps.size(); ++index) {
        if (cluster.peer(index) != nullptr && sweeps[index] < count) return false;
      }
      return true;
    });
  }
  ElasticCluster cluster;
  std::vector<uint32_t> sweeps;
  std::vector<SweepReport> reports;
  std::vector<std::vector<float>> results;
};

}  // namespace

TEST(ElasticCluster, every_number_of_peers_averages_exactly_and_to_the_bit) {
  for (uint32_t peers : {1u, 2u, 3u, 4u, 5u, 7u, 12u, 16u, 17u, 21u}) {
    CountedRun run(peers, options_for(peers, 4));
    ASSERT_TRUE(run.run_sweeps(1, 60 * second)) << peers;
    for (auto& r : run.reports) std::printf("%u: %s\n", peers, r.to_string().c_str());
    std::vector<double> mean(few_elements);
    for (uint32_t index = 0; index < peers; ++index) {
      const auto values = values_of(index, few_elements);
      for (size_t i = 0; i < few_elements; ++i) mean[i] += values[i] / static_cast<double>(peers);
    }
    for (uint32_t index = 0; index < peers; ++index) {
      EXPECT_TRUE(run.reports[index].exact) << peers << ": " << run.reports[index].to_string();
      EXPECT_EQ(std::memcmp(run.results[index].data(), run.results[0].data(), few_elements * sizeof(float)), 0) << peers;
    }
    for (size_t i = 0; i < few_elements; ++i) ASSERT_NEAR(run.results[0][i], mean[i], 1e-6) << peers;
  }
}

}  // namespace unisono::sim
