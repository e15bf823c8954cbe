#include "lab/elastic/elastic_plan.h"

#include <gtest/gtest.h>

namespace unisono::lab {

using cli::make_app;
using cli::parse_arguments;

namespace {

// Parses the words after `simulate elastic` as the command does.
ElasticOptionTexts read_elastic(const std::vector<std::string>& words) {
  ElasticOptionTexts typed;
  const auto app = make_app(elastic_text);
  add_elastic_options(*app, typed);
  EXPECT_EQ(parse_arguments(*app, words), std::nullopt);
  return typed;
}

ElasticPlan elastic_plan_of(const std::vector<std::string>& words, std::string_view trace = {}) {
  auto plan = make_elastic_plan(read_elastic(words), trace);
  EXPECT_TRUE(plan.ok()) << plan.status().to_string();
  return plan.ok() ? *std::move(plan) : ElasticPlan{};
}

void expect_elastic_refused(const std::vector<std::string>& words, const std::string& message, std::string_view trace = {}) {
  const auto plan = make_elastic_plan(read_elastic(words), trace);
  EXPECT_EQ(plan.status().code(), Code::invalid) << message;
  EXPECT_EQ(plan.status().message(), message);
}

TEST(ElasticPlan, the_default_plan_has_64_peers_that_join_at_the_start_and_stay) {
  const auto plan = elastic_plan_of({});
  EXPECT_EQ(plan.study.peers, 64u);
  EXPECT_EQ(plan.study.steps, 20u);
  EXPECT_EQ(plan.study.absence, 0);
  EXPECT_EQ(plan.study.until, 0);
  EXPECT_TRUE(plan.study.trace.events.empty());
  EXPECT_EQ(plan.study.cluster.settings.min_peers, 64u);
  EXPECT_EQ(plan.study.cluster.settings.max_group, 32u);
  EXPECT_EQ(plan.study.cluster.links.bytes_per_second, 0);
  EXPECT_EQ(plan.runs(), 1u);
  EXPECT_EQ(plan.repeat_command, "unisono-lab simulate elastic");
  EXPECT_TRUE(sim::check(plan.study_of(0)).ok());
}

TEST(ElasticPlan, the_plan_follows_the_options) {
  const auto plan =
      elastic_plan_of({"--peers",          "40",  "--averaging-steps", "7",    "--absence",  "0.02",      "--away",    "500ms",
                       "--max-group",      "8",   "--rounds",          "3",    "--grid",     "published", "--times",   "wan",
                       "--min-peers",      "30",  "--max-peers",       "50",   "--elements", "99",        "--compute", "1s",
                       "--compute-jitter", "2ms", "--delay",           "20ms", "--jitter",   "1ms",       "--rate",    "100M",
                       "--limit",          "2h",  "--seeds",           "3-5",  "--plot",     "a",         "--output",  "b",
                       "--jobs",           "2",   "--progress",        "off"});
  const auto& study = plan.study;
  const auto& settings = study.cluster.settings;
  EXPECT_EQ(study.peers, 40u);
  EXPECT_EQ(study.steps, 7u);
  EXPECT_EQ(study.absence, .02);
  EXPECT_EQ(study.away, 500 * millisecond);
  EXPECT_EQ(study.limit, 7200 * second);
  EXPECT_EQ(settings.max_group, 8u);
  EXPECT_EQ(settings.rounds, 3u);
  EXPECT_EQ(settings.grid, GridKind::published);
  EXPECT_EQ(settings.times.gather_timeout, ElasticTimes::wan().gather_timeout);
  EXPECT_EQ(settings.min_peers, 30u);
  EXPECT_EQ(settings.max_peers, 50u);
  EXPECT_EQ(settings.elements, 99u);
  EXPECT_EQ(study.cluster.compute, second);
  EXPECT_EQ(study.cluster.compute_jitter, 2 * millisecond);
  EXPECT_EQ(study.cluster.links.delay, 20 * millisecond);
  EXPECT_EQ(study.cluster.links.jitter, millisecond);
  EXPECT_EQ(study.cluster.links.bytes_per_second, 12.5e6);
  EXPECT_EQ(plan.runs(), 3u);
  EXPECT_EQ(plan.study_of(4).cluster.seed, 4u);
  EXPECT_EQ(plan.jobs, 2u);
  EXPECT_EQ(plan.plot + " " + plan.results.output + " " + plan.progress, "a b off");
}

TEST(ElasticPlan, the_repeat_command_omits_options_without_influence) {
  EXPECT_EQ(elastic_plan_of({"--peers", "9", "--churn", "period=5s", "--seeds", "3-5", "--plot", "a", "--output", "b", "--json",
                             "--jobs", "2", "--progress", "off", "--max-group", "32"})
                .repeat_command,
            "unisono-lab simulate elastic --peers 9 --churn period=5s");
  EXPECT_EQ(elastic_plan_of({"--trace", "my churn.txt", "--averaging-steps", "3"}, "0 0 join\n").repeat_command,
            "unisono-lab simulate elastic --averaging-steps 3 --trace 'my churn.txt'");
}

TEST(ElasticPlan, a_trace_sets_the_peers_and_the_end_of_the_run) {
  const auto plan = elastic_plan_of(
      {"--trace", "t"}, "0 0 join\n0 1 join\n0 2 join\n5 9 join\n6 0 stop\n6 1 kill\n6.5 0 continue\n7 2 leave\n30 2 join\n");
  EXPECT_EQ(plan.study.trace.events.size(), 9u);
  EXPECT_TRUE(plan.whole_trace);
  EXPECT_EQ(plan.study.until, 30 * second);
  EXPECT_EQ(plan.study.limit, 3630 * second);
  EXPECT_EQ(plan.study.steps, 1u);
  EXPECT_EQ(plan.study.cluster.settings.min_peers, 2u) << "two were at work at any time";
  const auto counted =
      elastic_plan_of({"--trace", "t", "--averaging-steps", "5", "--min-peers", "3"}, "0 0 join\n0 1 join\n5 2 join\n");
  EXPECT_FALSE(counted.whole_trace);
  EXPECT_EQ(counted.study.until, 0);
  EXPECT_EQ(counted.study.steps, 5u);
  EXPECT_EQ(counted.study.cluster.settings.min_peers, 3u);
  EXPECT_EQ(elastic_plan_of({"--trace", "t"}, "4 7 join\n").study.cluster.settings.min_peers, 1u);
  EXPECT_EQ(elastic_plan_of({"--trace", "t"}, "0 7 join\n").study.steps, 20u) << "it has no end to wait for";
}

TEST(ElasticPlan, churn_is_drawn_for_each_seed) {
  const auto plan =
      elastic_plan_of({"--peers", "9", "--churn", "period=2s,duration=1m,kill=0.5,stop=0.25,law=poisson", "--seeds", "1-2"});
  ASSERT_TRUE(plan.churn.has_value());
  EXPECT_EQ(plan.churn->peers, 9u);
  EXPECT_EQ(plan.churn->peers_min, 5u);
  EXPECT_EQ(plan.churn->period, 2 * second);
  EXPECT_EQ(plan.churn->stop_share, .25);
  EXPECT_EQ(plan.churn->law, sim::ChurnPlan::Law::poisson);
  EXPECT_EQ(plan.study.until, 60 * second);
  EXPECT_EQ(plan.study.cluster.settings.min_peers, 5u);
  const auto one = plan.study_of(1).trace, other = plan.study_of(2).trace;
  EXPECT_NE(one, other);
  EXPECT_EQ(one, plan.study_of(1).trace);
  EXPECT_EQ(elastic_plan_of({"--churn", "min=3"}).study.cluster.settings.min_peers, 3u);
}

TEST(ElasticPlan, errors_of_a_trace_name_the_line_and_the_peer) {
  expect_elastic_refused({"--trace", "t"}, "--trace t, line 2: not_there: peer 5", "0 0 join\n1 5 kill\n");
  expect_elastic_refused({"--trace", "t"}, "--trace t, line 2: out_of_order: the line before is later", "2 0 join\n1 1 join\n");
  expect_elastic_refused({"--trace", "t"}, "--trace t, line 1: bad_peer: \"5000\" is no number below 4096", "0 5000 join\n");
  expect_elastic_refused({"--trace", "t"}, "--trace t, line 2: already_there: peer 0", "0 0 join\n1 0 join\n");
  expect_elastic_refused({"--trace", "t"}, "--trace t: no peer joins", "# seconds peer what\n\n");
  expect_elastic_refused({"--trace", "t"}, "--trace t: no peer joins", "");
}

TEST(ElasticPlan, errors_name_the_wrong_option_and_its_valid_values) {
  expect_elastic_refused({"--peers", "0"}, "--peers '0': expected a whole number from 1 to 4096");
  expect_elastic_refused({"--peers", "4097"}, "--peers '4097': expected a whole number from 1 to 4096");
  expect_elastic_refused({"--peers", "9", "--max-peers", "8"}, "--peers 9 are more than --max-peers 8");
  expect_elastic_refused({"--peers", "9", "--min-peers", "10"}, "--min-peers '10': expected a whole number from 1 to 9");
  expect_elastic_refused({"--churn", "period=5s", "--max-peers", "8"},
                         "the run waits for 32 peers before it begins, which is more than --max-peers 8");
  expect_elastic_refused({"--averaging-steps", "0"}, "--averaging-steps '0': expected a whole number from 1 to 10000000");
  expect_elastic_refused({"--elements", "0"}, "--elements '0': expected a whole number from 1 to 16777216");
  expect_elastic_refused({"--max-group", "3"}, "--max-group '3': expected a whole number from 4 to 128");
  expect_elastic_refused({"--rounds", "65"}, "--rounds '65': expected a whole number from 0 to 64");
  expect_elastic_refused({"--absence", "1.5"}, "--absence '1.5': expected a number from 0 to 1");
  expect_elastic_refused({"--absence", "1"}, "--absence 1: then no peer is ever there; expected a share below 1");
  expect_elastic_refused({"--away", "1us"}, "--away '1us': expected a time from 1 ms to 2592000 s");
  expect_elastic_refused({"--compute", "0"}, "--compute '0': expected a time from 1 us to 2592000 s");
  expect_elastic_refused({"--delay", "slow"}, "--delay 'slow' is not a time such as 5s or 200ms");
  expect_elastic_refused({"--rate", "1"},
                         "--rate '1': expected bits per second, such as 100M or 1G (powers of 1000), at least 8K");
  expect_elastic_refused({"--grid", "square"}, "--grid 'square' is none of fitted, published, chunk_keys");
  expect_elastic_refused({"--times", "moon"}, "--times 'moon' is none of lan, wan");
  expect_elastic_refused({"--seeds", "5-3"}, "--seeds '5-3': expected one, or a range as in 0-9, of at most 10000");
  expect_elastic_refused({"--seeds", "0-10000"}, "--seeds '0-10000': expected one, or a range as in 0-9, of at most 10000");
  expect_elastic_refused({"--progress", "loud"}, "--progress 'loud' is none of auto, bar, lines, off");
  expect_elastic_refused({"--trace", "t", "--churn", "period=5s"},
                         "--trace and --churn both set which peers come and go: give one of them", "0 0 join\n");
  expect_elastic_refused({"--trace", "t", "--peers", "5"}, "--peers cannot be set with --trace, which lists the peers",
                         "0 0 join\n");
  expect_elastic_refused({"--churn", "pace=5s"},
                         "--churn pace=5s: bad_option: option \"pace\" is none of period, duration, kill, stop, min, law");
  expect_elastic_refused({"--churn", "period=soon"},
                         "--churn period=soon: bad_option: period=soon: 'soon' is not a time such as 5s or 200ms");
  expect_elastic_refused(
      {"--churn", "kill=0.7,stop=0.7"},
      "--churn kill=0.7,stop=0.7: bad_option: kill_share and stop_share are shares, and their sum is at most 1");
  expect_elastic_refused({"--peers", "4", "--churn", "min=5"},
                         "--churn min=5: bad_option: peers_min=5 is not between 1 and peers=4");
}

}  // namespace
}  // namespace unisono::lab
