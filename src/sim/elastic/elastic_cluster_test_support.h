// Simulated elastic runs for tests. The vectors are small, their first values are known, and the averaging steps are counted.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "sim/elastic/elastic_cluster.h"

namespace unisono::sim {

inline constexpr size_t few_elements = 300;

inline ElasticClusterOptions options_for(uint32_t peers, uint32_t max_group, uint64_t seed = 1) {
  ElasticClusterOptions options;
  options.settings.run_id = "test";
  options.settings.elements = few_elements;
  options.settings.schema = 77;
  options.settings.max_group = max_group;
  options.settings.min_peers = peers;
  options.seed = seed;
  return options;
}

inline std::vector<float> values_of(uint32_t index, size_t elements) {
  std::vector<float> values(elements);
  Random random(index + 1);
  for (auto& value : values) value = static_cast<float>(random.unit() * 2 - 1);
  return values;
}

// A run that counts the averaging steps of its first `peers` processes.
struct CountedRun {
  CountedRun(uint32_t peers, const ElasticClusterOptions& options,
             std::function<std::vector<float>(uint32_t index)> initial = {})
      : cluster(options), steps(peers), reports(peers), results(peers) {
    cluster.initial =
        initial ? initial : [elements = options.settings.elements](uint32_t index) { return values_of(index, elements); };
    cluster.on_step = [this](uint32_t index, const FinishedStep& step) {
      if (index >= steps.size()) return;
      ++steps[index];
      reports[index] = step.report;
      results[index] = step.values.all();
    };
    for (uint32_t index = 0; index < peers; ++index) cluster.add();
  }
  // Runs until every living peer has made `count` averaging steps. A peer then begins no further step. Returns false if the run
  // has not finished by time `until`.
  bool run_steps(uint32_t count, Nanos until) {
    cluster.should_continue = [this, count](uint32_t index) { return index >= steps.size() || steps[index] < count; };
    return cluster.run(until, [&] {
      for (uint32_t index = 0; index < steps.size(); ++index) {
        if (cluster.peer(index) != nullptr && steps[index] < count) return false;
      }
      return true;
    });
  }
  // Lets the peers continue without a limit of averaging steps.
  void resume() {
    cluster.should_continue = nullptr;
    for (uint32_t index = 0; index < cluster.size(); ++index) cluster.check_continue(index);
  }
  ElasticCluster cluster;
  std::vector<uint32_t> steps;
  std::vector<AveragingReport> reports;
  std::vector<std::vector<float>> results;
};

}  // namespace unisono::sim
