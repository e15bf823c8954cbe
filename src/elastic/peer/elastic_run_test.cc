// Elastic runs with real threads and sockets on this host, through the public API.
#include <gtest/gtest.h>

#include <atomic>
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

Result<AveragingReport> average(Elastic& run, std::vector<float>& values, double weight = 1) {
  const std::span<float> all(values);
  const std::vector<std::span<float>> tensors{all.first(elements - 1000), all.subspan(elements - 1000)};
  return run.average(tensors, weight);
}

// A founder and `count - 1` joiners.
std::vector<Elastic> start(uint32_t count, ElasticOptions::Grid grid = ElasticOptions::Grid::fitted) {
  std::vector<Elastic> runs;
  const auto options = [&](size_t index, const std::vector<std::string>& seeds) {
    auto all = options_of(index, seeds, count);
    all.grid = grid;
    if (grid != ElasticOptions::Grid::fitted) all.gather_timeout = Milliseconds{300};  // small groups wait for it
    return all;
  };
  auto founder = Elastic::join(options(0, {}));
  EXPECT_TRUE(founder.ok()) << founder.status().to_string();
  if (!founder.ok()) return runs;
  const auto seeds = founder->status().endpoints;
  runs.push_back(std::move(*founder));
  for (uint32_t index = 1; index < count; ++index) {
    auto one = Elastic::join(options(index, seeds));
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
    for (int step = 0; step < 5; ++step) {
      values[index] = values_of(index);
      const auto report = average(run, values[index]);
      ASSERT_TRUE(report.ok()) << report.status().to_string();
      EXPECT_TRUE(report->exact) << report->to_string();
    }
  });
  for (size_t index = 0; index < count; ++index)
    EXPECT_EQ(std::memcmp(values[index].data(), values[0].data(), elements * sizeof(float)), 0) << index;
  for (size_t i = 0; i < elements; ++i) ASSERT_NEAR(values[0][i], 25 + static_cast<float>(i % 7), 1e-4);
}

TEST(ElasticRun, groups_may_follow_from_keys) {
  auto runs = start(5, ElasticOptions::Grid::chunk_keys);
  ASSERT_EQ(runs.size(), 5u);
  on_all(runs, [&](size_t index, Elastic& run) {
    ASSERT_TRUE(run.ready(plenty));
    auto values = values_of(index);
    const auto report = average(run, values);
    ASSERT_TRUE(report.ok()) << report.status().to_string();
    EXPECT_EQ(report->dims, (std::vector<uint32_t>{4, 4}));
    EXPECT_FALSE(report->exact) << report->to_string();
    EXPECT_NE(report->note.find("the grid chunk_keys is exact only if full"), std::string::npos) << report->note;
    for (size_t i = 0; i < elements; ++i) {
      ASSERT_GE(values[i], static_cast<float>(i % 7) - 1e-3f);
      ASSERT_LE(values[i], 40 + static_cast<float>(i % 7) + 1e-3f);
    }
  });
}

TEST(ElasticRun, who_joins_later_gets_values_and_state) {
  auto runs = start(3);
  ASSERT_EQ(runs.size(), 3u);
  std::vector<std::vector<float>> values(3);
  on_all(runs, [&](size_t index, Elastic& run) {
    ASSERT_TRUE(run.ready(plenty));
    values[index] = values_of(index);
    EXPECT_TRUE(run.set_state({{"steps", std::vector<std::byte>(8, std::byte{42})}}).ok());
    EXPECT_TRUE(average(run, values[index]).ok());
  });
  auto late = Elastic::join(options_of(9, runs[1].status().endpoints, 3));
  ASSERT_TRUE(late.ok()) << late.status().to_string();
  const auto& state = late->state();
  ASSERT_TRUE(state.loaded) << state.note;
  EXPECT_EQ(state.values, values[0]);
  EXPECT_EQ(state.step, 0);
  ASSERT_EQ(state.blobs.size(), 1u);
  EXPECT_EQ(state.blobs[0].first, "steps");
  EXPECT_EQ(state.blobs[0].second, std::vector<std::byte>(8, std::byte{42}));
}

TEST(ElasticRun, local_steps_during_an_averaging_step_are_kept) {
  auto runs = start(2);
  ASSERT_EQ(runs.size(), 2u);
  std::vector<std::vector<float>> values{values_of(0), values_of(1)};
  on_all(runs, [&](size_t index, Elastic& run) {
    ASSERT_TRUE(run.ready(plenty));
    const std::span<float> all(values[index]);
    auto work = run.average_async({all.first(elements - 1000), all.subspan(elements - 1000)});
    ASSERT_TRUE(work.ok());
    values[index][7] += 1;  // the same result whether this happens during the averaging step or after it
    const auto report = work->wait(plenty);
    ASSERT_TRUE(report.ok()) << report.status().to_string();
    EXPECT_EQ(work->wait().status().code(), Code::invalid) << "its result is taken once";
  });
  EXPECT_FLOAT_EQ(values[0][7], 5 + 1);
  EXPECT_FLOAT_EQ(values[1][7], 5 + 1);
  EXPECT_EQ(values[0][8], values[1][8]);
  EXPECT_FLOAT_EQ(values[0][8], 5 + 1);
}

TEST(ElasticRun, a_seed_that_nobody_listens_at_is_named) {
  auto options = options_of(0, {"127.0.0.1:1"}, 1);
  options.join_timeout = Milliseconds(300);
  const auto run = Elastic::join(options);
  ASSERT_FALSE(run.ok());
  EXPECT_EQ(run.status().code(), Code::unavailable);
  EXPECT_TRUE(run.status().message().starts_with("NO_SEED")) << run.status().message();
  EXPECT_NE(run.status().message().find("127.0.0.1:1"), std::string::npos) << run.status().message();
}

TEST(ElasticRun, another_run_at_the_seed_is_an_error) {
  auto runs = start(1);
  ASSERT_EQ(runs.size(), 1u);
  auto options = options_of(1, runs[0].status().endpoints, 1);
  options.run_id = "another";
  options.join_timeout = Milliseconds(2000);
  const auto other = Elastic::join(options);
  ASSERT_FALSE(other.ok());
  EXPECT_TRUE(other.status().message().starts_with("RUN_ID_MISMATCH")) << other.status().message();
}

TEST(ElasticRun, other_tensors_are_an_error) {
  auto runs = start(1);
  ASSERT_EQ(runs.size(), 1u);
  auto options = options_of(1, runs[0].status().endpoints, 1);
  options.tensor_elements = {elements};
  const auto other = Elastic::join(options);
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.status().code(), Code::invalid);
  EXPECT_TRUE(other.status().message().starts_with("SCHEMA_MISMATCH")) << other.status().message();
}

TEST(ElasticRun, who_does_not_know_the_run_key_stays_outside_and_is_counted) {
  auto options = options_of(0, {}, 1);
  options.run_key = "secret";
  auto founder = Elastic::join(options);
  ASSERT_TRUE(founder.ok()) << founder.status().to_string();
  for (const char* key : {"", "wrong"}) {
    auto unauthenticated = options_of(1, founder->status().endpoints, 1);
    unauthenticated.run_key = key;
    unauthenticated.join_timeout = Milliseconds(1000);
    EXPECT_FALSE(Elastic::join(unauthenticated).ok()) << '"' << key << '"';
  }
  EXPECT_GE(founder->status().refused, 2u);
  auto member = options_of(2, founder->status().endpoints, 1);
  member.run_key = "secret";
  EXPECT_TRUE(Elastic::join(member).ok());
}

TEST(ElasticRun, who_leaves_is_gone_for_the_others_at_once) {
  auto runs = start(3);
  ASSERT_EQ(runs.size(), 3u);
  on_all(runs, [](size_t, Elastic& run) { ASSERT_TRUE(run.ready(plenty)); });
  ASSERT_TRUE(runs[2].leave().ok());
  auto values = values_of(2);
  EXPECT_EQ(average(runs[2], values).status().code(), Code::unavailable);
  EXPECT_TRUE(runs[2].leave().ok());
  EXPECT_EQ(runs[2].status().phase, "ended");
  runs.pop_back();
  std::vector<double> seconds(2);
  on_all(runs, [&](size_t index, Elastic& run) {
    auto mine = values_of(index);
    const auto report = average(run, mine);
    ASSERT_TRUE(report.ok());
    seconds[index] = report->seconds;
  });
  EXPECT_LT(seconds[0], 1.9);  // shorter than gather_timeout
  EXPECT_LT(seconds[1], 1.9);
}

// The calls come before it leaves, meanwhile, and while its thread ends.
TEST(ElasticRun, calls_beside_one_that_leaves_all_end) {
  for (int attempt = 0; attempt < 20; ++attempt) {
    auto runs = start(1);
    ASSERT_EQ(runs.size(), 1u);
    ASSERT_TRUE(runs[0].ready(plenty));
    std::atomic<int> begun = 0;
    std::atomic<bool> left = false;
    std::vector<std::thread> callers;
    for (size_t caller = 0; caller < 4; ++caller) {
      callers.emplace_back([&, caller] {
        auto values = values_of(caller);
        const std::span<float> all(values);
        while (!left) {
          auto call = runs[0].average_async({all.first(elements - 1000), all.subspan(elements - 1000)});
          ++begun;
          if (!call.ok()) continue;
          EXPECT_NE(call->wait(plenty).status().code(), Code::late);
        }
      });
    }
    while (begun < 10) std::this_thread::yield();
    EXPECT_TRUE(runs[0].leave().ok());
    left = true;
    for (auto& caller : callers) caller.join();
  }
}

TEST(ElasticRun, calls_that_make_no_sense_are_refused) {
  auto runs = start(1);
  ASSERT_EQ(runs.size(), 1u);
  ASSERT_TRUE(runs[0].ready(plenty));
  std::vector<float> few(10);
  EXPECT_EQ(runs[0].average(few).status().code(), Code::invalid);
  auto values = values_of(0);
  EXPECT_EQ(average(runs[0], values, -1).status().code(), Code::invalid);
  EXPECT_EQ(average(runs[0], values, std::nan("")).status().code(), Code::invalid);
  EXPECT_FALSE(runs[0].set_state(std::vector<std::pair<std::string, std::vector<std::byte>>>(2)).ok()) << "two of one name";
}

TEST(ElasticRun, a_port_that_is_taken_is_named) {
  auto runs = start(1);
  ASSERT_EQ(runs.size(), 1u);
  const auto endpoint = runs[0].status().endpoints.front();
  auto options = options_of(1, {}, 1);
  options.port = static_cast<uint16_t>(std::stoi(endpoint.substr(endpoint.rfind(':') + 1)));
  const auto second = Elastic::join(options);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), Code::unavailable);
}

TEST(ElasticRun, its_peers_are_an_ordinary_group_when_they_like) {
  constexpr uint32_t count = 3;
  auto runs = start(count);
  ASSERT_EQ(runs.size(), count);
  std::vector<float> sums(count);
  on_all(runs, [&](size_t index, Elastic& run) {
    ASSERT_TRUE(run.ready(plenty));
    auto values = values_of(index);
    ASSERT_TRUE(average(run, values).ok());
    auto group = run.group(plenty);
    ASSERT_TRUE(group.ok()) << group.status().to_string();
    EXPECT_EQ(group->world_size(), count);
    std::vector<float> one{static_cast<float>(index + 1)};
    const auto report = group->all_reduce(std::span(one));
    EXPECT_TRUE(report.ok()) << report.status().to_string();
    sums[index] = one[0];
  });
  for (const float sum : sums) EXPECT_EQ(sum, 6);
}

}  // namespace unisono
