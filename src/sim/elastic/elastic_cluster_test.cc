// Whole elastic runs in virtual time. Without faults, averages are exact for any number of peers. With faults, no peer hangs,
// and no value is lost or counted twice.
#include "sim/elastic/elastic_cluster.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "sim/elastic/elastic_cluster_test_support.h"

namespace unisono::sim {

TEST(ElasticCluster, every_number_of_peers_averages_exactly_and_to_the_bit) {
  for (uint32_t peers : {1u, 2u, 3u, 4u, 5u, 7u, 12u, 16u, 17u, 21u}) {
    CountedRun run(peers, options_for(peers, 4));
    ASSERT_TRUE(run.run_steps(1, 60 * second)) << peers;
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

TEST(ElasticCluster, weights_count) {
  CountedRun run(7, options_for(7, 4));
  run.cluster.prepare = [](uint32_t index, std::vector<float>&) { return static_cast<double>(index + 1); };
  ASSERT_TRUE(run.run_steps(1, 60 * second));
  std::vector<double> mean(few_elements);
  for (uint32_t index = 0; index < 7; ++index) {
    const auto values = values_of(index, few_elements);
    for (size_t i = 0; i < few_elements; ++i) mean[i] += values[i] * (index + 1) / 28.0;
  }
  for (size_t i = 0; i < few_elements; ++i) ASSERT_NEAR(run.results[3][i], mean[i], 1e-6);
}

TEST(ElasticCluster, every_peer_may_be_a_client_or_a_reducer_beside_ordinary_ones) {
  auto options = options_for(6, 8);
  options.settings.min_peers = 5;  // a reducer has no values and does not count towards min_peers
  CountedRun run(4, options);
  auto client = options.settings, reducer = options.settings;
  client.role = ElasticRole::client;
  reducer.role = ElasticRole::reducer;
  const auto client_index = run.cluster.add(client, 0), reducer_index = run.cluster.add(reducer, 0);
  ASSERT_TRUE(run.run_steps(3, 60 * second));
  EXPECT_TRUE(run.reports[0].exact) << run.reports[0].to_string();
  double mean = 0;
  for (uint32_t index : {0u, 1u, 2u, 3u, client_index}) mean += values_of(index, few_elements)[17] / 5.0;
  EXPECT_NEAR(run.results[1][17], mean, 1e-6);
  for (uint32_t index = 0; index < 4; ++index) {
    for (const auto& id : run.cluster.peer(index)->keeper().holders("any/key"))
      EXPECT_NE(run.cluster.index_of(id), client_index);
  }
  // The client owned no chunk, so it sent its values but no results. The reducer had no values. See check A34 of
  // docs/design/methods/moshpit.md.
  EXPECT_LT(run.cluster.network().bytes_from(client_index), run.cluster.network().bytes_from(0));
  EXPECT_TRUE(run.cluster.values(reducer_index).empty());
}

TEST(ElasticCluster, a_joiner_gets_the_runs_state_and_ends_its_first_whole_step_with_the_mean) {
  CountedRun run(6, options_for(6, 4));
  ASSERT_TRUE(run.run_steps(3, 60 * second));
  run.cluster.should_continue = nullptr;
  for (uint32_t index = 0; index < 6; ++index)
    run.cluster.network().at(run.cluster.now(), [&run, index] { run.cluster.check_continue(index); });
  std::map<uint64_t, std::vector<float>> of_step;
  bool compared = false;
  const auto joiner = run.cluster.add(run.cluster.now() + second);
  run.cluster.prepare = [&](uint32_t index, std::vector<float>& values) {
    if (index == joiner) std::fill(values.begin(), values.end(), std::numeric_limits<float>::quiet_NaN());
    else values[5] = static_cast<float>(index);
    return 1.0;
  };
  run.cluster.on_step = [&](uint32_t index, const FinishedStep& step) {
    if (index != joiner) of_step[step.report.step] = step.values.all();
    if (index != joiner || compared || !std::ranges::all_of(step.replaced, [](bool replaced) { return replaced; })) return;
    compared = true;
    EXPECT_FALSE(step.report.exact) << "the mean is not over what this peer has";
    for (const float value : step.values.all()) EXPECT_TRUE(std::isfinite(value));
  };
  ASSERT_TRUE(run.cluster.run(run.cluster.now() + 60 * second, [&] { return compared; }));
}

TEST(ElasticCluster, without_absences_each_peer_reports_once_that_one_flat_group_sends_less) {
  CountedRun run(9, options_for(9, 4));
  std::map<uint32_t, std::vector<uint64_t>> said;  // by peer: the averaging steps whose report contains the note
  std::map<uint32_t, uint64_t> steps;
  run.cluster.on_step = [&](uint32_t index, const FinishedStep& step) {
    ++steps[index];
    if (step.report.note.find("in the last 100 averaging steps 0 % of the members of groups were absent") != std::string::npos)
      said[index].push_back(steps[index]);
  };
  ASSERT_TRUE(run.cluster.run(1000 * second, [&] {
    return steps.size() == 9 && std::ranges::all_of(steps, [](const auto& one) { return one.second >= 250; });
  }));
  ASSERT_EQ(said.size(), 9u);
  for (const auto& [index, when] : said) EXPECT_EQ(when, std::vector<uint64_t>{100}) << index;
}

TEST(ElasticCluster, peers_that_were_cut_off_rejoin) {
  auto options = options_for(9, 4);
  options.links.silence = 3 * second;
  options.compute = 200 * millisecond;
  CountedRun run(9, options);
  ASSERT_TRUE(run.run_steps(2, 60 * second));
  run.resume();
  run.cluster.network().cut({0, 1, 2});
  run.cluster.run(run.cluster.now() + 60 * second);
  // Each side continued as a separate group.
  EXPECT_EQ(run.cluster.peer(0)->keeper().roster().present().size(), 3u);
  EXPECT_EQ(run.cluster.peer(5)->keeper().roster().present().size(), 6u);
  const auto before = run.steps;
  run.cluster.network().heal();
  ASSERT_TRUE(run.cluster.run(run.cluster.now() + 90 * second, [&] { return run.cluster.settled(); }));
  run.cluster.run(run.cluster.now() + 20 * second);
  for (uint32_t index = 0; index < 9; ++index) {
    EXPECT_GT(run.steps[index], before[index]);
    EXPECT_TRUE(run.reports[index].exact) << index << ": " << run.reports[index].to_string();
  }
}

TEST(ElasticCluster, a_resumed_process_averages_with_the_others_again) {
  auto options = options_for(6, 4);
  options.compute = 200 * millisecond;
  CountedRun run(6, options);
  ASSERT_TRUE(run.run_steps(2, 60 * second));
  run.resume();
  run.cluster.network().stop(3);
  run.cluster.run(run.cluster.now() + 20 * second);
  const auto before = run.steps;
  run.cluster.network().go_on(3);
  run.cluster.run(run.cluster.now() + 40 * second);
  for (uint32_t index = 0; index < 6; ++index) {
    EXPECT_GT(run.steps[index], before[index] + 10) << index;
    EXPECT_TRUE(run.reports[index].exact) << index << ": " << run.reports[index].to_string();
  }
}

TEST(ElasticCluster, no_peer_waits_for_one_that_left) {
  auto options = options_for(8, 4);
  options.compute = 200 * millisecond;
  CountedRun run(8, options);
  ASSERT_TRUE(run.run_steps(2, 60 * second));
  run.resume();
  run.cluster.leave(2);
  double longest = 0;
  run.cluster.on_step = [&](uint32_t, const FinishedStep& step) { longest = std::max(longest, step.report.seconds); };
  run.cluster.run(run.cluster.now() + 30 * second);
  EXPECT_TRUE(run.cluster.peer(2)->left());
  EXPECT_LT(longest, 0.5);
  EXPECT_TRUE(run.cluster.settled());
}

}  // namespace unisono::sim
