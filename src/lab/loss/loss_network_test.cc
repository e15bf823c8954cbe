// Tests the problem `network`: how options become a plan, and how measurements become verdicts, tables, JSON and plots.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "lab/loss/loss_network_report.h"

namespace unisono::lab {

using cli::svg;

namespace {

LossOptions options_of(const std::string& network) {
  LossOptions options;
  options.network = network;
  return options;
}

// Returns the result of a fictitious run in which 8 ranks completed 100 operations without errors.
NetworkResult result_of(const std::string& network, const std::string& loss = "0.1") {
  auto options = options_of(network.empty() ? "rate=1G" : network);
  options.loss = loss;
  options.steps = "100";
  NetworkResult result{.plan = make_loss_plan(options).value(), .outcome = {}};
  auto& o = result.outcome;
  o.datagram_bytes = 1472;
  o.ranges = 94;
  o.operations = 100;
  o.members = 8;
  o.ended = {{Code::ok, 800}};
  o.durations_us = {1000, 2000, 3000, 4000};
  o.contributions = {.expected = 1000, .missing = 100, .repaired = 10, .phases = 400, .over = 0, .longest = .7};
  o.results = {.expected = 1000, .missing = 0, .repaired = 100, .phases = 400, .over = 3, .longest = 1.4};
  o.ranges_full = 40;
  o.ranges_short = 60;
  o.effective = 7.1;
  o.data = {sim::DatagramFates{.sent = 50'000, .delivered = 44'900, .lost = 5000, .overflowed = 100},
            sim::DatagramFates{.sent = 50'000, .delivered = 45'000, .lost = 5000}};
  o.by_distance.assign(8, {.expected = 100, .missing = 10});
  o.by_distance[0] = {};
  for (int i = 0; i < 20; ++i) o.deviation.add(i % 2 == 0 ? 1e-3 : -1e-3, 1), o.square.add(.02, 1);
  for (uint64_t i = 0; i < 100; ++i)
    o.curve.push_back({.number = i, .median_us = 2000, .longest_us = 3000, .overflowed = .002, .missing = .1});
  for (const auto& fault : result.plan.network->model.faults)
    o.faults.push_back({.fault = fault,
                        .happened = true,
                        .removed = true,
                        .first_named = 100 * millisecond,
                        .last_named = 105 * millisecond,
                        .named_by = 7,
                        .to_be_named_by = 7});
  return result;
}

LossCheck check_named(const NetworkResult& result, const std::string& what) {
  const auto checks = checks_of(result);
  for (const auto& check : checks) {
    if (check.what == what) return check;
  }
  ADD_FAILURE() << what;
  return {};
}

TEST(LossNetwork, network_options_make_a_network_plan) {
  auto options = options_of("rate=100M,kill=3@2s");
  options.lossy = "loss_budget=0.2";
  options.bytes = "256K";
  auto plan = make_loss_plan(options).value();
  ASSERT_TRUE(plan.network);
  EXPECT_FALSE(plan.estimates || plan.drift || plan.fixed_point);
  EXPECT_EQ(plan.network->model.bits_per_second, 100'000'000u);
  EXPECT_EQ(plan.network->delivery.loss_budget, .2);
  EXPECT_EQ(plan.network->bytes, 256u << 10);
  EXPECT_EQ(plan.network->operations, 200u);
  EXPECT_EQ(plan.network->burn_in, 50u);
  EXPECT_EQ(plan.steps(), 200u);
  options = {};
  options.problem = "network";
  options.steps = "40";
  plan = make_loss_plan(options).value();
  EXPECT_EQ(plan.network->model, sim::UdpModel());
  EXPECT_EQ(plan.network->burn_in, 20u);
  EXPECT_FALSE(make_loss_plan({}).value().network);
}

TEST(LossNetwork, options_of_the_other_kind_of_run_are_refused) {
  const auto why = [](auto change) {
    LossOptions options = options_of("rate=1G");
    change(options);
    return make_loss_plan(options).status().message();
  };
  EXPECT_EQ(why([](auto& o) { o.estimator = "count"; }),
            "--estimator has no effect in the problem network, whose options are --network, --lossy and --bytes");
  EXPECT_EQ(why([](auto& o) { o.network = "", o.bytes = "1M"; }), "--bytes needs --network or --problem network");
  EXPECT_EQ(why([](auto& o) { o.problem = "drift"; }),
            "--problem drift has no network; without --problem, or with --problem network, --network is run");
  EXPECT_EQ(
      why([](auto& o) { o.network = "rate=x"; }),
      "--network rate=x: bad_network: rate=x: expected bits per second, such as 100M or 1G (powers of 1000), at least 8K");
  EXPECT_NE(why([](auto& o) { o.lossy = "loss_budget=2"; }).find("--lossy loss_budget=2: "), std::string::npos);
  EXPECT_NE(why([](auto& o) { o.peers = "1000"; }).find("--peers '1000'"), std::string::npos);
  EXPECT_NE(why([](auto& o) { o.loss = "iid:0.1,dead=1@5"; }).find("--network dead=3@2s"), std::string::npos);
}

TEST(LossNetwork, a_faultless_outcome_is_ok) {
  const auto result = result_of("kill=3@2s");
  for (const auto& check : checks_of(result)) EXPECT_NE(check.verdict, CheckVerdict::off) << check.what;
  EXPECT_EQ(check_named(result, "kill=3@2s: named by").verdict, CheckVerdict::ok);
  EXPECT_EQ(check_named(result, "kill=3@2s: named by").note,
            "named after 100 ms, by all after 105 ms; the group re-formed without it");
  EXPECT_EQ(check_named(result, "share lost on links").verdict, CheckVerdict::ok);
  EXPECT_EQ(check_named(result, "share dropped before ports in (incast)").verdict, CheckVerdict::ok);
  EXPECT_NEAR(check_named(result, "duration p50, ms").measured, 2, 1e-9);
  EXPECT_NEAR(check_named(result, "duration p99, ms").measured, 4, 1e-9);
}

TEST(LossNetwork, forbidden_events_are_off) {
  const auto off = [](const std::string& what, auto change, const std::string& network = "") {
    auto result = result_of(network);
    change(result.outcome);
    EXPECT_EQ(check_named(result, what).verdict, CheckVerdict::off) << what;
  };
  off("results unlike another rank's", [](auto& o) { o.differing = 1; });
  off("elements beyond all contributions", [](auto& o) { o.out_of_range = 1; });
  off("failed while no peer was away", [](auto& o) { o.failed_without_fault = 1; });
  off("runs that did not end", [](auto& o) { o.is_stuck = true; });
  off("contributions longer than t_hard", [](auto& o) { o.contributions.over = 1; });
  off("delayed by absence beyond 2 t_hard", [](auto& o) { o.delayed = 5, o.delayed_over = 1; });
  off("healthy ranks named by others", [](auto& o) { o.wrongly_named = 1; });
  off("share lost on links", [](auto& o) { o.data[0].lost = 6000; });
  off("share dropped before ports in (incast)", [](auto& o) { o.data[0].overflowed = 600; });
  off(
      "kill=3@2s: named by", [](auto& o) { o.faults[0].named_by = 6; }, "kill=3@2s");
  off("deviation of the mean", [](auto& o) {
    for (int i = 0; i < 20; ++i) o.deviation.add(.5, 1);
  });
}

TEST(LossNetwork, checks_without_enough_data_get_no_verdict) {
  EXPECT_EQ(check_named(result_of("queue=64K"), "share dropped before ports in (incast)").verdict, CheckVerdict::none);
  EXPECT_EQ(check_named(result_of("slow=1x5"), "deviation of the mean").verdict, CheckVerdict::none);
  EXPECT_EQ(check_named(result_of("", "joint:p=0.1,both=0.05"), "share lost on links").verdict, CheckVerdict::none);
  auto bursts = result_of("", "gilbert_elliott:p=0.1,burst=8");
  bursts.outcome.failed_without_fault = 3;
  EXPECT_EQ(check_named(bursts, "failed while no peer was away").verdict, CheckVerdict::none);
  auto early = result_of("dead=3@2s");
  early.outcome.faults[0].happened = false;
  EXPECT_EQ(check_named(early, "dead=3@2s: named by").note, "the run ended before the fault; the group re-formed without it");
  early = result_of("dead=3@2s");
  early.outcome.faults[0].removed = false;
  EXPECT_EQ(check_named(early, "dead=3@2s: named by").verdict, CheckVerdict::unsure);
}

// A sender with more missing data weighs less. The formula predicts the resulting deviation, so it is no error of the
// estimator.
TEST(LossNetwork, a_deviation_that_unequal_delivery_explains_is_ok) {
  auto result = result_of("");
  result.outcome.by_distance[1].missing = 40;
  result.outcome.deviation = {};
  for (int i = 0; i < 200; ++i) result.outcome.deviation.add(i % 2 == 0 ? .071 : .075, 1);
  const auto check = check_named(result, "deviation of the mean");
  EXPECT_NEAR(check.formula, .0729, 1e-3);
  EXPECT_EQ(check.verdict, CheckVerdict::ok) << check.formula << " measured " << check.measured << " allowed " << check.allowed;
  EXPECT_EQ(check.note, "by what is missing of senders, 0.1 to 0.4");
}

TEST(LossNetwork, table_json_and_plots_have_every_check) {
  auto result = result_of("kill=3@2s");
  result.outcome.ended[Code::peer_lost] = 7;
  const auto checks = checks_of(result);
  const auto table = table_of(result, checks);
  EXPECT_NE(table.find("# 8 ranks over UDP, rate=1G,queue=256K,delay=50us,kill=3@2s; loss iid:0.1; delivery as of a call\n"),
            std::string::npos)
      << table;
  EXPECT_NE(table.find("7 peer_lost"), std::string::npos);
  EXPECT_NE(table.find(" 0 OFF"), std::string::npos);
  std::vector<nlohmann::json> lines;
  const auto text = json_of(result, checks);
  for (size_t at = 0; at < text.size(); at = text.find('\n', at) + 1)
    lines.push_back(nlohmann::json::parse(text.substr(at, text.find('\n', at) - at)));
  ASSERT_EQ(lines.size(), checks.size() + 5);
  EXPECT_EQ(lines[0]["network"], "rate=1G,queue=256K,delay=50us,kill=3@2s");
  EXPECT_EQ(lines[1]["kind"], "check");
  const auto& fault = lines[lines.size() - 4];
  EXPECT_EQ(fault["fault"], "kill=3@2s");
  EXPECT_EQ(fault["last_named_ns"], 105'000'000);
  EXPECT_EQ(lines[lines.size() - 2]["calls"]["peer_lost"], 7);
  EXPECT_EQ(lines.back()["off"], 0);
  const auto panels = panels_of(result);
  ASSERT_EQ(panels.size(), 2u);
  EXPECT_EQ(panels[0].series[1].points.size(), 100u);
  EXPECT_EQ(panels[1].series[0].points.size(), 50u) << "what is missing while everything is repaired says nothing";
}

TEST(LossNetwork, a_run_without_successful_calls_has_dashes_and_nulls) {
  auto result = result_of("");
  result.outcome = {};
  result.outcome.by_distance.resize(8);
  const auto checks = checks_of(result);
  EXPECT_EQ(table_of(result, checks).find("nan"), std::string::npos) << table_of(result, checks);
  EXPECT_EQ(json_of(result, checks).find("nan"), std::string::npos);
  EXPECT_EQ(svg(panels_of(result)).find("nan"), std::string::npos);
}

}  // namespace
}  // namespace unisono::lab
