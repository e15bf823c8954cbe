#include "lab/drop_compute/drop_search_report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/common/report_test_support.h"

namespace unisono::lab {

using cli::line_with;
using cli::lines_of;
using cli::Series;

namespace {

using Rules = std::vector<DropRule>;
const Rules all_rules{DropRule::after, DropRule::before, DropRule::at};

// Makes a trace from latencies in seconds, [step][worker][micro-batch]. other: time of a step outside computing, seconds.
NamedTrace trace_of(const std::vector<std::vector<std::vector<double>>>& latencies, double other) {
  NamedTrace named{.name = "trace.csv",
                   .trace = {.workers = static_cast<uint32_t>(latencies[0].size()),
                             .micro_batches = static_cast<uint32_t>(latencies[0][0].size()),
                             .ends = {},
                             .walls = {}},
                   .ranks = {}};
  for (const auto& step : latencies) {
    int64_t slowest = 0;
    for (const auto& worker : step) {
      int64_t end = 0;
      for (const double latency : worker) named.trace.ends.push_back(end += std::llround(latency * 1e9));
      slowest = std::max(slowest, end);
    }
    for (size_t i = 0; i < step.size(); ++i) named.trace.walls.push_back(slowest + std::llround(other * 1e9));
  }
  for (uint64_t rank = 0; rank < named.trace.workers; ++rank) named.ranks.push_back(10 + rank);
  return named;
}

// Traces of checks 8 and 12 of docs/design/methods/drop_compute.md.
NamedTrace small_named_trace() { return trace_of({{{1, 1, 1}, {1, 2, 3}}, {{2, 1, 1}, {1, 1, 1}}}, 1); }
NamedTrace slow_trace() {
  std::vector<std::vector<double>> step(8, std::vector<double>(12, 1));
  step[7].assign(12, 2);
  return trace_of({step, step, step}, .5);
}

DropSearchResult search_in(NamedTrace trace, const Rules& rules, double max_drop) {
  DropOptions choice;
  choice.threshold = DropOptions::Threshold::automatic;
  choice.slack = 0;
  choice.max_drop = max_drop;
  return search_result({.trace = "trace.csv", .rules = rules, .choice = choice}, std::move(trace));
}

TEST(DropSearchReport, thresholds_and_speedups_are_the_documented_ones) {
  const auto result = search_in(small_named_trace(), all_rules, 1);
  EXPECT_EQ(result.study.rules[0].outcome.best.threshold_ns, 2'000'000'000);
  EXPECT_EQ(result.study.rules[1].outcome.best.threshold_ns, 3'333'333'333);
  for (size_t rule = 0; rule < 2; ++rule) {
    EXPECT_TRUE(result.study.rules[rule].on());
    EXPECT_NEAR(result.study.rules[rule].outcome.best.step, 1.25, 1e-9);
  }
  const auto table = table_of(result);
  EXPECT_EQ(line_with(table, " after "),
            "          after        2 s  16.67 %   1.2500   1.2500    16.67 % (rank 10)        4 s        0 s")
      << table;
  EXPECT_NE(line_with(table, "   at "), "");
  EXPECT_NE(line_with(table, "   at ").find("off: "), std::string::npos)
      << "with what is left of micro-batches it gains nothing\n"
      << table;
  EXPECT_NE(table.find("# trace.csv: 2 workers, 2 steps, 3 micro-batches of each\n"), std::string::npos) << table;
}

TEST(DropSearchReport, the_oracle_is_shown_as_a_bound) {
  const auto result = search_in(small_named_trace(), all_rules, 1);
  for (const auto& rule : result.study.rules)
    EXPECT_GE(result.study.oracle.step, rule.on() && rule.rule == DropRule::at ? rule.outcome.best.step : 1);
  EXPECT_NEAR(result.study.oracle.step, 1.25, 1e-9);
  EXPECT_NE(table_of(result).find("oracle (bound)"), std::string::npos);
}

TEST(DropSearchReport, a_straggler_is_named_by_its_rank_with_advice) {
  for (const double max_drop : {.1, .05}) {
    const auto result = search_in(slow_trace(), {DropRule::after}, max_drop);
    const auto& rule = result.study.rules[0];
    EXPECT_EQ(rule.outcome.best.threshold_ns, max_drop == .1 ? 11'000'000'000 : 14'000'000'000);
    EXPECT_NEAR(rule.outcome.best.step, max_drop == .1 ? 147. / 80 : 1127. / 792, 1e-9);
    EXPECT_TRUE(rule.straggles);
    const auto warnings = warnings_of(result);
    ASSERT_EQ(warnings.size(), 1u);
    EXPECT_EQ(warnings[0], std::string("persistent_straggler: under rule after rank 17 drops ") +
                               (max_drop == .1 ? "50.00 %" : "33.33 %") +
                               " of its micro-batches, more than three times what the others do: its data are under-used; give "
                               "it fewer micro-batches, about 6 where the others have 12");
    EXPECT_NE(table_of(result).find("# warning: persistent_straggler"), std::string::npos);
    EXPECT_NE(table_of(result).find("# rank 17 is the slowest on average: 2.00 times the others\n"), std::string::npos)
        << table_of(result);
  }
}

TEST(DropSearchReport, workers_that_are_alike_are_no_stragglers) {
  EXPECT_TRUE(warnings_of(search_in(small_named_trace(), all_rules, 1)).empty());
}

TEST(DropSearchReport, the_reason_to_drop_nothing_is_reported) {
  const auto result = search_in(trace_of({{{1, 1}, {1, 1}}, {{1, 1}, {1, 1}}}, 1), all_rules, .1);
  for (const auto& rule : result.study.rules) EXPECT_FALSE(rule.on()) << rule_name(rule.rule);
  const auto table = table_of(result);
  for (const char* rule : {"after", "before", "at"})
    EXPECT_NE(line_with(table, std::string("    ") + rule + " ").find("off: "), std::string::npos) << table;
  const auto one = search_in(trace_of({{{1, 1, 10}}}, 1), {DropRule::at}, 1);
  EXPECT_FALSE(one.study.rules[0].on()) << "one worker waits for nobody";
  EXPECT_FALSE(one.study.rules[0].outcome.off.empty());
}

TEST(DropSearchReport, json_has_every_value_one_line_each) {
  const auto lines = lines_of(json_of(search_in(slow_trace(), all_rules, .1)));
  EXPECT_EQ(lines[0]["kind"], "trace");
  EXPECT_EQ(lines[0]["workers"], 8);
  EXPECT_EQ(lines[0]["slowest_rank"], 17);
  ASSERT_GE(lines.size(), 6u);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(lines[1 + i]["rule"], rule_name(all_rules[i]));
  EXPECT_EQ(lines[1]["threshold_ns"], 11'000'000'000);
  EXPECT_EQ(lines[1]["drop"], 1. / 16);
  EXPECT_EQ(lines[1]["drop_most_rank"], 17);
  EXPECT_EQ(lines[1]["drop_by_worker"][7], .5);
  EXPECT_TRUE(lines[1]["persistent_straggler"].get<bool>());
  EXPECT_EQ(lines[4]["kind"], "oracle");
  EXPECT_EQ(lines[5]["kind"], "warning");
}

TEST(DropSearchReport, plots_show_every_rule_and_the_chosen_thresholds) {
  const auto panels = panels_of(search_in(slow_trace(), all_rules, .1));
  ASSERT_EQ(panels.size(), 4u);
  EXPECT_TRUE(panels[2].new_row && !panels[1].new_row && !panels[3].new_row) << "two in a row";
  for (const char* name : {"after", "before", "at", "after: 11 s", "oracle (bound)"}) {
    EXPECT_TRUE(std::any_of(panels[1].series.begin(), panels[1].series.end(), [&](const Series& series) {
      return series.name == name;
    })) << name;
  }
}

}  // namespace
}  // namespace unisono::lab
