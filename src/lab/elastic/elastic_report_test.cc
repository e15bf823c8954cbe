#include "lab/elastic/elastic_report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

namespace unisono::lab {

using cli::Point;
using cli::svg;

namespace {

ElasticResult result_of(const ElasticOptionTexts& words, std::string_view trace = {}) {
  auto plan = make_elastic_plan(words, trace);
  EXPECT_TRUE(plan.ok()) << plan.status().to_string();
  ElasticResult result{.plan = plan.ok() ? *plan : ElasticPlan{}, .runs = {}};
  for (uint64_t seed = result.plan.seeds.first; seed <= result.plan.seeds.last; ++seed) {
    auto run = sim::study_elastic(result.plan.study_of(seed));
    EXPECT_TRUE(run.ok()) << run.status().to_string();
    result.runs.push_back(run.ok() ? *std::move(run) : sim::ElasticStudyResult{});
  }
  return result;
}

std::vector<nlohmann::json> lines_of(const ElasticResult& result) {
  std::istringstream lines(json_of(result));
  std::vector<nlohmann::json> values;
  for (std::string line; std::getline(lines, line);) values.push_back(nlohmann::json::parse(line));
  return values;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(ElasticReport, table_has_the_results_of_a_run) {
  const auto result = result_of({.peers = "12", .steps = "4", .max_group = "4"});
  const auto text = table_of(result);
  EXPECT_TRUE(contains(text,
                       "# 12 peers, groups of up to 4: a grid of 4x3; 1024 numbers each; links of 100 us\n# 100 ms between two "
                       "averaging steps; 4 steps; seed 0\n#\n run formed         after "))
      << text;
  EXPECT_TRUE(
      contains(text, "\n peers              12 joined, 0 of them loaded the run's state; 0 killed, 0 left, stopped 0 times\n"))
      << text;
  EXPECT_TRUE(contains(text, "\n steps of peers     48, 100 % exact\n")) << text;
  EXPECT_TRUE(contains(text, "\n rounds of peers    96 averaged\n")) << text;
  EXPECT_TRUE(contains(text, "\n replayed           96 rounds of peers in 28 groups: ")) << text;
  EXPECT_TRUE(contains(text, "\n#\n# nothing was wrong\n")) << text;
  EXPECT_TRUE(is_correct(result));
}

TEST(ElasticReport, a_grid_of_keys_is_exact_if_it_is_full_and_says_so_if_it_is_not) {
  const auto full = table_of(result_of({.peers = "16", .steps = "2", .max_group = "4", .grid = "chunk_keys"}));
  EXPECT_TRUE(contains(full, "a grid of 4x4;")) << full;
  EXPECT_TRUE(contains(full, "\n steps of peers     32, 100 % exact\n")) << full;
  EXPECT_FALSE(contains(full, "not exact")) << full;
  const auto other = table_of(result_of({.peers = "9", .steps = "2", .max_group = "4", .grid = "chunk_keys"}));
  EXPECT_TRUE(contains(other, "\n# chunk_keys: not exact with 9 peers, even if nobody is absent; only N = 4^d is\n")) << other;
  EXPECT_TRUE(contains(other, "\n# nothing was wrong\n")) << other;
}

TEST(ElasticReport, several_seeds_have_a_line_each_and_their_sum) {
  const auto result = result_of({.peers = "6", .steps = "3", .seeds = "7-9"});
  const auto text = table_of(result);
  EXPECT_TRUE(contains(text,
                       "; 3 steps; seeds 7-9\n#\n#  seed     formed      ended   peers     steps   exact    "
                       " median        p99    longest\n      7 "))
      << text;
  EXPECT_TRUE(contains(text, "\n      9 ")) << text;
  EXPECT_TRUE(contains(text, "\n steps of peers     54, 100 % exact\n")) << text;
  EXPECT_TRUE(contains(text, "\n# nothing was wrong in 3 runs\n")) << text;
}

TEST(ElasticReport, problems_are_shown_with_the_command_that_reproduces_them) {
  auto result = result_of({.peers = "4", .steps = "2", .seeds = "3-4"});
  EXPECT_TRUE(is_correct(result));
  result.runs[1].completed = false;
  result.runs[1].problem = "peer 3 did not join: ROSTER_FULL";
  result.runs[1].replay.wrong = 12;
  result.runs[1].replay.examples = {"averaging step 1: a bit differs"};
  EXPECT_TRUE(is_correct(result.runs[0]));
  EXPECT_FALSE(is_correct(result));
  const auto text = table_of(result);
  EXPECT_TRUE(contains(text, "  NOT WITHIN ITS LIMIT\n")) << text;
  EXPECT_TRUE(contains(text, "#\n# seed 4:\n#   did not end within ")) << text;
  EXPECT_TRUE(contains(
      text,
      "\n#   peer 3 did not join: ROSTER_FULL\n#   wrong 12 times in rounds, as\n#     averaging step 1: a bit "
      "differs\n#   again: unisono-lab simulate elastic --peers 4 --averaging-steps 2 --seeds 4\n# 1 of 2 runs WRONG\n"))
      << text;
  EXPECT_FALSE(contains(text, "nothing was wrong")) << text;
  EXPECT_EQ(lines_of(result).back(), (nlohmann::json{{"kind", "verdict"}, {"runs", 2}, {"right", 1}}));
  for (auto change :
       {+[](sim::ElasticStudyResult& run) { run.completed = false; }, +[](sim::ElasticStudyResult& run) { run.problem = "p"; },
        +[](sim::ElasticStudyResult& run) { run.replay.wrong = 1; }}) {
    auto run = result.runs[0];
    change(run);
    EXPECT_FALSE(is_correct(run));
  }
}

TEST(ElasticReport, shares_are_100_percent_of_all_only) {
  auto result = result_of({.peers = "4", .steps = "2"});
  result.runs[0].steps = 100'000;
  result.runs[0].exact = 99'999;
  EXPECT_TRUE(contains(table_of(result), " 100000, 99.9 % exact\n")) << table_of(result);
  result.runs[0].exact = 1;
  EXPECT_TRUE(contains(table_of(result), " 100000, 0.1 % exact\n")) << table_of(result);
  result.runs[0].exact = 0;
  EXPECT_TRUE(contains(table_of(result), " 100000, 0 % exact\n")) << table_of(result);
}

TEST(ElasticReport, events_after_the_end_of_the_run_are_counted) {
  const auto text = table_of(result_of({.steps = "3", .trace = "t"}, "0 0 join\n0 1 join\n100 1 leave\n101 5 join\n"));
  EXPECT_TRUE(contains(text, ", before 2 events of the trace\n")) << text;
}

TEST(ElasticReport, the_same_seed_gives_the_same_json_to_the_byte) {
  const ElasticOptionTexts words{.peers = "10",
                                 .absence = "0.05",
                                 .churn = "period=1s,duration=20s,stop=0.3,kill=0.5",
                                 .compute_jitter = "5ms",
                                 .jitter = "100us",
                                 .rate = "100M",
                                 .seeds = "1-2"};
  const auto one = json_of(result_of(words)), other = json_of(result_of(words));
  EXPECT_EQ(one, other);
  EXPECT_FALSE(contains(one, "real"));
  auto third = words;
  third.seeds = "3-4";
  EXPECT_NE(one, json_of(result_of(third)));
}

TEST(ElasticReport, every_line_of_json_is_a_value_with_all_that_the_table_has) {
  const auto values = lines_of(result_of({.peers = "12", .steps = "4", .max_group = "4", .seeds = "0-1"}));
  ASSERT_EQ(values.size(), 4u);
  EXPECT_EQ(values[0]["kind"], "elastic");
  EXPECT_EQ(values[0]["dims"], (std::vector<uint32_t>{4, 3}));
  EXPECT_EQ(values[0]["steps"], 4);
  const auto& run = values[2];
  EXPECT_EQ(run["seed"], 1);
  EXPECT_EQ(run["right"], true);
  EXPECT_EQ(run["steps"], 48);
  EXPECT_EQ(run["outcomes"]["averaged"], 96);
  EXPECT_EQ(run["replay"]["rounds"], 96);
  EXPECT_EQ(run["replay"]["examples"].size(), 0u);
  EXPECT_EQ(run["by_step"].size(), 4u);
  EXPECT_EQ(run["by_step"][3]["peers"], 12);
  EXPECT_EQ(run["present"].back()["peers"], 12);
  EXPECT_GE(run["step_seconds"]["max"], run["step_seconds"]["median"]);
  EXPECT_EQ(values[3]["right"], 2);
}

TEST(ElasticReport, one_or_two_peers_one_step_and_one_number_are_runs_too) {
  for (const char* peers : {"1", "2"}) {
    const auto result = result_of({.peers = peers, .steps = "1", .elements = "1"});
    EXPECT_TRUE(is_correct(result)) << table_of(result);
    EXPECT_EQ(result.runs[0].exact, result.runs[0].steps);
    EXPECT_TRUE(contains(table_of(result), "; 1 number each; ")) << table_of(result);
    EXPECT_EQ(lines_of(result).size(), 3u);
    EXPECT_FALSE(svg(panels_of(result)).empty());
  }
}

TEST(ElasticReport, a_run_that_never_begins_is_reported) {
  const auto result = result_of({.trace = "t", .min_peers = "2", .limit = "1m"}, "0 0 join\n0 1 join\n0 1 kill\n");
  EXPECT_FALSE(is_correct(result));
  const auto text = table_of(result);
  EXPECT_TRUE(contains(text, "\n run formed         never\n run ended          after 60 s\n")) << text;
  EXPECT_TRUE(contains(text, "\n steps of peers     none\n time of a step     -\n rounds of peers    none\n")) << text;
  EXPECT_TRUE(
      contains(text,
               "\n# seed 0:\n#   did not end within 60 s\n#   again: unisono-lab simulate elastic --trace t --min-peers "
               "2 --limit 1m --seeds 0\n"))
      << text;
  EXPECT_EQ(lines_of(result)[1]["completed"], false);
  EXPECT_FALSE(svg(panels_of(result)).empty());
}

TEST(ElasticReport, plots_are_over_virtual_time) {
  const auto panels = panels_of(result_of({.trace = "t"}, "0 0 join\n0 1 join\n0 2 join\n4 2 kill\n8 7 join\n"));
  ASSERT_EQ(panels.size(), 4u);
  ASSERT_EQ(panels[0].series.size(), 2u);
  EXPECT_EQ(panels[0].series[0].name, "longest");
  EXPECT_EQ(panels[0].series[0].points.size(), panels[1].series[0].points.size());
  for (const auto& point : panels[1].series[0].points) EXPECT_TRUE(point.y >= 0 && point.y <= 100) << point.y;
  const auto& there = panels[2].series[0].points;  // a staircase: each change has two points
  ASSERT_EQ(there.size(), 6u);
  EXPECT_EQ(there[1].x, 4);
  EXPECT_EQ(there[1].y, 3);
  EXPECT_EQ(there[2].x, 4);
  EXPECT_EQ(there[2].y, 2);
  EXPECT_EQ(there.back().y, 3);
  EXPECT_TRUE(panels[2].new_row);
  EXPECT_FALSE(panels[3].series[0].points.empty());
}

TEST(ElasticReport, plots_of_many_steps_have_a_limited_number_of_points) {
  const auto result = result_of({.peers = "2", .steps = "1000"});
  const auto panels = panels_of(result);
  const auto& points = panels[0].series[0].points;
  EXPECT_LE(points.size(), 400u);
  EXPECT_GT(points.size(), 200u);
  EXPECT_TRUE(std::ranges::is_sorted(points, {}, &Point::x));
}

TEST(ElasticReport, plots_of_several_seeds_show_the_first_ten_in_different_colours) {
  const auto panels = panels_of(result_of({.peers = "2", .steps = "2", .seeds = "5-16"}));
  for (const auto& panel : panels) EXPECT_EQ(panel.series.size(), 10u);
  EXPECT_EQ(panels[0].title, "Longest time of an averaging step");
  EXPECT_EQ(panels[0].series[9].name, "seed 14");
}

}  // namespace
}  // namespace unisono::lab
