// Elastic runs of real threads and sockets on this host, through the public interface.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <future>
#include <thread>

#include "unisono/elastic.h"

namespace unisono {

namespace {

constexpr size_t elements = 5000;

ElasticOptions options_of(size_t index, const std::vector<std::string>& seeds, uint32_t min_peers) {
  ElasticOptions options;
  options.run_id = "run-test";
  options.found = seeds.empty();
  options.seeds = seeds;
  options.tensor_elements = {elements - 1000, 1000};
  options.name = "peer " + std::to_string(index);
  options.interface = "127.0.0.1";
  options.max_group = 4;
  options.min_peers = min_peers;
  return options;
}

std::vector<float> values_of(size_t index) {
  std::vector<float> values(elements);
  for (size_t i = 0; i < elements; ++i) values[i] = static_cast<float>(index * 10) + static_cast<float>(i % 7);
  return values;
}

Result<SweepReport> average(Elastic& run, std::vector<float>& values, double weight = 1) {
  const std::span<float> all(values);
  const std::vector<std::span<float>> tensors{all.first(elements - 1000), all.subspan(elements - 1000)};
  return run.average(tensors, weight);
}

// A founder and `count - 1` who join by it.
std::vector<Elastic> start(uint32_t count) {
  std::vector<Elastic> runs;
  auto founder = Elastic::join(options_of(0, {}, count));
  EXPECT_TRUE(founder.ok()) << founder.status().to_string();
  if (!founder.ok()) return runs;
  const auto seeds = founder->status().endpoints;
  runs.push_back(std::move(*founder));
  for (uint32_t index = 1; index < count; ++index) {
    auto one = Elastic::join(options_of(index, seeds, count));
    EXPECT_TRUE(one.ok()) << one.status().to_string();
    if (one.ok()) runs.push_back(std::move(*one));
  }
  return runs;
}

template <typename F>
void on_all(std::vector<Elastic>& runs, F f) {
  std::vector<std::thread> threads;
  for (size_t index = 0; index < runs.size(); ++index) threads.emplace_back([&, index] { f(index, runs[index]); });
  for (auto& thread : threads) thread.join();
}

constexpr Milliseconds plenty{20'000};

}  // namespace

TEST(ElasticRun, one_process_alone_keeps_its_values) {
  auto runs = start(1);
  ASSERT_EQ(runs.size(), 1u);
  ASSERT_TRUE(runs[0].ready(plenty));
  auto values = values_of(3);
  const auto report = average(runs[0], values);
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  EXPECT_TRUE(report->exact);
  EXPECT_EQ(values, values_of(3));
}

TEST(ElasticRun, peers_average_exactly_and_to_the_bit) {
  constexpr uint32_t count = 6;
  auto runs = start(count);
  ASSERT_EQ(runs.size(), count);
  std::vector<std::vector<float>> values(count);
  on_all(runs, [&](size_t index, Elastic& run) {
    ASSERT_TRUE(run.ready(plenty));
    for (int sweep = 0; sweep < 5; ++sweep) {
      values[index] = values_of(index);
      const auto report = average(run, values[index]);
      ASSERT_TRUE(report.ok()) << report.status().to_string();
      EXPECT_TRUE(report->exact) << report->to_string();
    }
  });
  for (size_t index = 0; index < count; ++index) EXPECT_EQ(std::memcmp(values[index].data(), values[0].data(), elements * sizeof(float)), 0) << index;
  for (size_t i = 0; i < elements; ++i) ASSERT_NEAR(values[0][i], 25 + static_cast<float>(i % 7), 1e-4);
}

}  // namespace unisono
