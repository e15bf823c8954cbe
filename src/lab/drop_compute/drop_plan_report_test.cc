#include "lab/drop_compute/drop_plan_report.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/common/report_test_support.h"

namespace unisono::lab {

using cli::line_with;
using cli::lines_of;

namespace {

// Plan with the numbers of check 4 of docs/design/methods/drop_compute.md.
DropPlan plan_of(uint64_t workers) {
  return {.workers = workers,
          .model = {.micro_batches = 12, .mean = 1, .deviation = .25, .other = .5},
          .trace = {},
          .threshold = {}};
}

const WorkersForecast& row_of(const DropForecast& forecast, uint64_t workers) {
  for (const auto& row : forecast.workers) {
    if (row.workers == workers) return row;
  }
  ADD_FAILURE() << "no row for " << workers << " workers";
  return forecast.workers.front();
}

// The trace of check 8 of docs/design/methods/drop_compute.md: two steps of two workers with three micro-batches. Outside
// computing, each step takes 1 s.
ComputeTrace small_trace() {
  ComputeTrace trace{.workers = 2, .micro_batches = 3, .ends = {1, 2, 3, 1, 3, 6, 2, 3, 4, 1, 2, 3}, .walls = {7, 7, 5, 5}};
  for (auto* times : {&trace.ends, &trace.walls}) {
    for (auto& time : *times) time *= 1'000'000'000;
  }
  return trace;
}

TEST(DropPlanReport, numbers_are_the_documented_ones) {
  const auto forecast = forecast_of(plan_of(200));
  for (const auto& [workers, speedup, by_z] :
       {std::tuple{8, 1.047385, 1.049724}, {200, 1.134733, 1.136019}, {2, .990620, .987686}}) {
    const auto& row = row_of(forecast, static_cast<uint64_t>(workers));
    EXPECT_NEAR(row.threshold, 11.317274, 1e-4);
    EXPECT_NEAR(row.drop, .098715, 2e-5);
    EXPECT_NEAR(row.speedup, speedup, 1e-6) << workers;
    EXPECT_NEAR(row.speedup_closed, by_z, 1e-6) << workers;
  }
  EXPECT_NEAR(row_of(forecast, 200).compute, 14.378143, 1e-6);
  EXPECT_NEAR(row_of(forecast, 200).compute_closed, 14.395014, 1e-6);
  EXPECT_FALSE(forecast.held_by_max_drop);
}

TEST(DropPlanReport, the_verdict_is_off_if_the_gain_is_not_above_one) {
  const auto forecast = forecast_of(plan_of(200));
  EXPECT_EQ(row_of(forecast, 2).off_reason(), "off: what is dropped outweighs the shorter steps (S_eff <= 1)");
  EXPECT_EQ(row_of(forecast, 8).off_reason(), "");
  EXPECT_NE(table_of(forecast_of(plan_of(2))).find("# 2 workers: off: what is dropped"), std::string::npos);
  EXPECT_NE(table_of(forecast_of(plan_of(1))).find("# 1 worker: off: a single worker has no other worker to wait for"),
            std::string::npos);
}

TEST(DropPlanReport, a_given_threshold_is_evaluated_for_every_number_of_workers) {
  auto plan = plan_of(200);
  plan.threshold = 12;
  const auto forecast = forecast_of(plan);
  EXPECT_NEAR(row_of(forecast, 8).speedup_closed, 1.044227, 1e-6);
  EXPECT_NEAR(row_of(forecast, 200).speedup_closed, 1.130071, 1e-6);
  EXPECT_NEAR(forecast.rule_drop, 1 - 11.380362 / 12, 1e-7);
}

TEST(DropPlanReport, the_best_threshold_within_the_bound_is_taken) {
  auto plan = plan_of(200);
  plan.max_drop = .05;
  const auto forecast = forecast_of(plan);
  EXPECT_TRUE(forecast.held_by_max_drop);
  EXPECT_LE(row_of(forecast, 200).drop, .05 + 1e-12);
  EXPECT_NEAR(row_of(forecast, 200).drop, .05, 1e-6) << "beyond tau* the ratio falls, so the least allowed one is the best";
  EXPECT_LT(row_of(forecast, 200).speedup, 1.134733);
  EXPECT_NE(table_of(forecast).find("would drop more than 5.00 %"), std::string::npos);
  const DropPlan traced{.workers = 16, .model = {}, .trace = "trace.csv", .threshold = {}};
  EXPECT_TRUE(forecast_of(traced, small_trace()).held_by_max_drop);
}

TEST(DropPlanReport, rule_after_drops_less_and_reports_no_speedup) {
  auto plan = plan_of(200);
  plan.rule = DropRule::after;
  plan.threshold = 10.6;
  EXPECT_NEAR(forecast_of(plan).rule_drop, 1 - 11.074245 / 12, 1e-7);
  plan.lag = 1;
  const auto forecast = forecast_of(plan);
  EXPECT_NEAR(forecast.rule_drop, 1 - 11.759491 / 12, 1e-7);
  EXPECT_NE(table_of(forecast).find("rule after, lag 1 at that threshold: p = 2.00 %"), std::string::npos)
      << table_of(forecast);
  plan.rule = DropRule::before;
  plan.lag = 0;
  plan.threshold = 11.6;
  EXPECT_NEAR(forecast_of(plan).rule_drop, 1 - 11.074245 / 12, 1e-7) << "after with a threshold lower by the mean";
}

TEST(DropPlanReport, every_output_says_that_speedups_are_those_of_rule_at) {
  const auto forecast = forecast_of(plan_of(200));
  const auto table = table_of(forecast);
  EXPECT_EQ(line_with(table, "     200"), "      200 2.746042 2.765524   14.378 s   14.395 s  1.134733  1.136019") << table;
  EXPECT_NE(table.find("# best threshold 11.317"), std::string::npos) << table;
  EXPECT_NE(table.find("under rule at\n"), std::string::npos);
  const auto lines = lines_of(json_of(forecast));
  EXPECT_EQ(lines[0]["rule_of_speedups"], "at");
  ASSERT_EQ(lines.size(), 1 + forecast.workers.size());
  for (size_t i = 1; i < lines.size(); ++i) EXPECT_EQ(lines[i]["rule"], "at");
  EXPECT_NEAR(lines.back()["speedup"].get<double>(), 1.134733, 1e-6);
  EXPECT_TRUE(lines.back()["off"].is_null());
  EXPECT_EQ(lines[1]["workers"], 2);
  EXPECT_EQ(lines[1]["off"], "what is dropped outweighs the shorter steps (S_eff <= 1)");
  for (const auto& panel : panels_of(forecast)) EXPECT_NE(panel.title.find("rule at"), std::string::npos);
}

TEST(DropPlanReport, a_trace_forecasts_more_workers_and_warns_of_few_records) {
  DropPlan plan{.workers = 16, .model = {}, .trace = "trace.csv", .threshold = {}};
  plan.max_drop = 1;
  const auto forecast = forecast_of(plan, small_trace());
  ASSERT_TRUE(forecast.recorded);
  EXPECT_EQ(forecast.other, 1);
  EXPECT_EQ(forecast.recorded->compute, 5);  // mean of the slowest workers' 6 s and 4 s
  // E[max(A, B)], where A and B are independent draws from the recorded compute times 3, 6, 4, 3
  EXPECT_NEAR(forecast.recorded->independent, 3 * .25 + 4 * (.5625 - .25) + 6 * (1 - .5625), 1e-12);
  EXPECT_TRUE(forecast.workers.back().too_few_records);
  EXPECT_TRUE(std::isnan(forecast.workers.back().factor));
  const auto table = table_of(forecast);
  EXPECT_NE(table.find("# caution: 16 workers are more than a tenth of the 4 recorded times"), std::string::npos) << table;
  const auto lines = lines_of(json_of(forecast));
  EXPECT_EQ(lines[0]["trace"], "trace.csv");
  EXPECT_TRUE(lines.back()["z_exact"].is_null() && lines.back()["too_few_records"].get<bool>());
}

TEST(DropPlanReport, a_trace_evaluates_a_given_threshold) {
  DropPlan plan{.workers = 2, .model = {}, .trace = "trace.csv", .threshold = 3};
  const auto forecast = forecast_of(plan, small_trace());
  const auto& row = forecast.workers.back();
  EXPECT_NEAR(row.drop, 1. / 6, 1e-12);
  EXPECT_NEAR(row.speedup, 5. / 6 * (row.compute + 1) / 4, 1e-12);
}

}  // namespace
}  // namespace unisono::lab
