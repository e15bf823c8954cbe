// Elastic runs in real threads with real sockets on this host, through the public API.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <future>
#include <thread>

#include "base/concat.h"
#include "elastic/peer/elastic_group.h"
#include "elastic/seeds/seed_test_support.h"
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
  options.name = concat("peer ", index);
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

// Starts a founder and `count - 1` joiners.
std::vector<Elastic> start(uint32_t count, ElasticOptions::Grid grid = ElasticOptions::Grid::fitted,
                           const std::string& key = "") {
  std::vector<Elastic> runs;
  const auto options = [&](size_t index, const std::vector<std::string>& seeds) {
    auto all = options_of(index, seeds, count);
    all.grid = grid;
    all.key = key;
    // This gather_timeout is short, because groups smaller than max_group wait for all of it.
    if (grid != ElasticOptions::Grid::fitted) all.gather_timeout = Milliseconds{300};
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

TEST(ElasticRun, a_later_joiner_gets_values_and_state) {
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
    values[index][7] += 1;  // the result is the same whether this addition runs during the averaging step or after it
    const auto report = work->wait(plenty);
    ASSERT_TRUE(report.ok()) << report.status().to_string();
    EXPECT_EQ(work->wait().status().code(), Code::invalid) << "its result is taken once";
  });
  EXPECT_FLOAT_EQ(values[0][7], 5 + 1);
  EXPECT_FLOAT_EQ(values[1][7], 5 + 1);
  EXPECT_EQ(values[0][8], values[1][8]);
  EXPECT_FLOAT_EQ(values[0][8], 5 + 1);
}

TEST(ElasticRun, the_error_names_a_seed_at_which_no_process_listens) {
  auto options = options_of(0, {"127.0.0.1:1"}, 1);
  options.join_timeout = Milliseconds(300);
  const auto run = Elastic::join(options);
  ASSERT_FALSE(run.ok());
  EXPECT_EQ(run.status().code(), Code::unavailable);
  EXPECT_TRUE(run.status().message().starts_with("NO_SEED")) << run.status().message();
  EXPECT_NE(run.status().message().find("127.0.0.1:1"), std::string::npos) << run.status().message();
}

// The seed answers as long as it is polled, so there is a link. Its end is never confirmed.
TEST(ElasticRun, joining_ends_at_join_timeout_although_the_seed_has_stopped) {
  const auto seed = test::make_driver(test::options_of("127.0.0.1:1", false));
  ASSERT_NE(seed, nullptr);
  auto options = test::options_of(seed->status(0).endpoints.front(), false);
  options.join_timeout = Milliseconds(1000);
  const auto begin = std::chrono::steady_clock::now();
  auto joining = std::async(std::launch::async, [&] { return Elastic::join(options).status(); });
  EXPECT_TRUE(test::comes_true([&] { return (void)seed->poll(0), seed->status(0).received_bytes > 0; }));
  const auto status = joining.get();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  EXPECT_TRUE(status.message().starts_with("NO_SEED")) << status.message();
  EXPECT_GE(took.count(), 0.7);
  EXPECT_LE(took.count(), 1.5);
}

TEST(ElasticRun, a_value_that_is_not_finite_stays_where_it_is_and_all_reports_name_its_peer) {
  constexpr uint32_t count = 3;
  auto runs = start(count);
  ASSERT_EQ(runs.size(), count);
  on_all(runs, [&](size_t index, Elastic& run) {
    ASSERT_TRUE(run.ready(plenty));
    auto values = values_of(index);
    if (index == 2) values[3] = std::nanf("");
    const auto report = average(run, values);
    ASSERT_TRUE(report.ok()) << report.status().to_string();
    EXPECT_FALSE(report->exact);
    ASSERT_EQ(report->rounds.size(), 1u);
    EXPECT_EQ(report->rounds[0].refused, 1u);
    const std::string named = "peer 2 (values that are not finite in 1 of 16 chunks)";
    EXPECT_EQ(report->rounds[0].absent, std::vector<std::string>{named});
    EXPECT_EQ(report->note, "not exact; absent: " + named);
    EXPECT_NE(report->to_string().find("1 contributions refused; absent: " + named), std::string::npos) << report->to_string();
    const float first = index == 2 ? 20 : 5;  // element 0 is in the chunk with the NaN
    EXPECT_EQ(values[0], first);
    EXPECT_EQ(std::isnan(values[3]), index == 2);
    EXPECT_FLOAT_EQ(values[4999], 10 + 4999 % 7) << "other chunks have the mean of all";
  });
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

TEST(ElasticRun, a_process_without_the_key_is_refused_and_counted) {
  auto options = options_of(0, {}, 1);
  const std::string key(64, 'a'), wrong(64, 'b');
  options.key = key;
  auto founder = Elastic::join(options);
  ASSERT_TRUE(founder.ok()) << founder.status().to_string();
  for (const auto& other : {std::string(), wrong}) {
    auto unauthenticated = options_of(1, founder->status().endpoints, 1);
    unauthenticated.key = other;
    unauthenticated.join_timeout = Milliseconds(1000);
    const auto joined = Elastic::join(unauthenticated);
    ASSERT_FALSE(joined.ok()) << '"' << other << '"';
    EXPECT_EQ(joined.status().code(), Code::invalid) << joined.status().to_string();
    EXPECT_NE(joined.status().message().find("authentication failed"), std::string::npos) << joined.status().message();
  }
  EXPECT_GE(founder->status().refused, 2u);
  auto member = options_of(2, founder->status().endpoints, 1);
  member.key = key;
  EXPECT_TRUE(Elastic::join(member).ok());
}

TEST(ElasticRun, a_key_must_be_well_formed_and_there_if_security_is_required) {
  auto options = options_of(0, {}, 1);
  options.security = Security::required;
  const auto missing = Elastic::join(options);
  EXPECT_EQ(missing.status().code(), Code::invalid);
  EXPECT_NE(missing.status().message().find("there is no key"), std::string::npos) << missing.status().message();
  options.key = "secret";
  const auto malformed = Elastic::join(options);
  EXPECT_EQ(malformed.status().code(), Code::invalid);
  EXPECT_TRUE(malformed.status().message().starts_with("ElasticOptions::key: ")) << malformed.status().message();
  EXPECT_EQ(malformed.status().message().find("secret"), std::string::npos) << malformed.status().message();
}

TEST(ElasticRun, a_peer_that_leaves_is_gone_for_the_others_at_once) {
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
  EXPECT_LT(seconds[0], 1.9);  // gather_timeout is 2 s, so no peer waited for the one that left
  EXPECT_LT(seconds[1], 1.9);
}

// Threads call the run before it leaves, while it leaves, and while its thread ends. Every call must return.
TEST(ElasticRun, all_calls_concurrent_with_leave_return) {
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

TEST(ElasticRun, invalid_calls_are_refused) {
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

TEST(ElasticRun, the_error_names_a_port_that_is_in_use) {
  auto runs = start(1);
  ASSERT_EQ(runs.size(), 1u);
  const auto endpoint = runs[0].status().endpoints.front();
  auto options = options_of(1, {}, 1);
  options.port = static_cast<uint16_t>(std::stoi(endpoint.substr(endpoint.rfind(':') + 1)));
  const auto second = Elastic::join(options);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), Code::unavailable);
}

// Checks that three peers with this key form a group, whatever `base` says about the key.
static void expect_group(const std::string& key, const Options& base) {
  constexpr uint32_t count = 3;
  auto runs = start(count, ElasticOptions::Grid::fitted, key);
  ASSERT_EQ(runs.size(), count);
  std::vector<float> sums(count);
  on_all(runs, [&](size_t index, Elastic& run) {
    ASSERT_TRUE(run.ready(plenty));
    auto values = values_of(index);
    ASSERT_TRUE(average(run, values).ok());
    auto group = run.group(plenty, base);
    ASSERT_TRUE(group.ok()) << group.status().to_string();
    EXPECT_EQ(group->world_size(), count);
    std::vector<float> one{static_cast<float>(index + 1)};
    const auto report = group->all_reduce(std::span(one));
    EXPECT_TRUE(report.ok()) << report.status().to_string();
    sums[index] = one[0];
  });
  for (const float sum : sums) EXPECT_EQ(sum, 6);
}

TEST(ElasticRun, its_peers_can_form_an_ordinary_group) { expect_group("", {}); }

TEST(ElasticRun, peers_with_a_key_form_a_group_with_this_key) {
  Options base;
  base.key = std::string(64, 'b');
  base.security = Security::off;
  expect_group(std::string(64, 'a'), base);
}

// The options of the group say the run's key, or that there is none, so that neither the environment nor the caller decides.
TEST(ElasticRun, the_options_of_a_group_have_the_key_of_the_run) {
  const ElasticGroupLocation location{.layout = {}, .rank = 0, .step = 1, .rendezvous = "group://127.0.0.1:1"};
  const auto key = *SecretKey::draw();
  const auto tls = *TlsContext::make({key});
  Options base;
  base.key = std::string(64, 'b');
  base.security = Security::off;
  const auto with = group_options(location, "run", tls.get(), base);
  EXPECT_EQ(with.key, key.hex());
  EXPECT_EQ(with.security, Security::required);
  base.security = Security::automatic;
  const auto without = group_options(location, "run", nullptr, base);
  EXPECT_EQ(without.key, "");
  EXPECT_EQ(without.security, Security::off) << "its run has warned already";
}

TEST(ElasticRun, a_process_reports_once_that_its_runs_are_unprotected) {
  if (::getenv("UNISONO_SECURITY") != nullptr || ::getenv("UNISONO_KEY_FILE") != nullptr)
    GTEST_SKIP() << "the environment says how";
  std::vector<std::string> texts;
  bool reaches_others = false;
  for (int i = 0; i < 2; ++i) {
    auto options = options_of(0, {}, 1);
    options.interface.clear();
    options.on_event = [&](const Event& event) {
      if (event.kind == EventKind::unprotected) texts.push_back(event.text);
    };
    const auto run = Elastic::join(options);
    ASSERT_TRUE(run.ok()) << run.status().to_string();
    for (const auto& endpoint : run->status().endpoints)
      reaches_others |= !endpoint.starts_with("tcp://127.") && !endpoint.starts_with("tcp://[::1]");
  }
  if (!reaches_others) GTEST_SKIP() << "this host has no other address";
  ASSERT_EQ(texts.size(), 1u);
  EXPECT_TRUE(texts[0].starts_with("this elastic run has no key, and it reaches beyond this host")) << texts[0];
  EXPECT_NE(texts[0].find("UNISONO_KEY_FILE"), std::string::npos) << texts[0];
}

}  // namespace unisono
