#include "lab/compressors/convergence_report.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "cli/common/report_test_support.h"

namespace unisono::lab {

using cli::line_with;

namespace {

using sim::Method;
using sim::ProblemKind;

// Returns a result in which the runs of the seeds ended with these values.
ConvergenceResult result_of(Method method, Feedback feedback, const std::vector<double>& values) {
  auto settings = sim::specified_settings(ProblemKind::quadratic);
  settings.method = method;
  settings.feedback = {.kind = feedback, .eta = 1};
  ConvergenceResult result{{settings, {}}, {}};
  for (size_t i = 0; i < values.size(); ++i) {
    result.what.seeds.push_back(settings.seed + i);
    auto& outcome = result.outcomes.emplace_back();
    outcome.value = values[i];
    if (std::isfinite(values[i])) outcome.curve = {{0, 1}, {300, values[i]}};
    else outcome.diverged_in = 12;
  }
  return result;
}
constexpr double no_number = std::numeric_limits<double>::quiet_NaN();

TEST(ConvergenceReport, values_within_their_tolerance_are_ok) {
  const std::vector results{result_of(Method::dense, Feedback::none, {.0023334}),
                            result_of(Method::arc, Feedback::ef14, {.001474})};
  const auto table = table_of(results);
  EXPECT_EQ(line_with(table, "dense"), "        -    dense    -  1.000   0.002333  0.0023325    2.3e-05    ok") << table;
  EXPECT_EQ(line_with(table, "  arc"), "     ef14      arc    4  0.359   0.001474   0.001474    1.5e-05    ok") << table;
  EXPECT_NE(table.find("# 2 of 2 values are as specified in docs/design/methods/arc_top_k.md\n"), std::string::npos);
  EXPECT_EQ(verdicts_of(results).off, 0u);
}

TEST(ConvergenceReport, a_value_outside_its_tolerance_is_flagged) {
  const std::vector results{result_of(Method::dense, Feedback::none, {.0023325}),
                            result_of(Method::arc, Feedback::ef14, {.00150})};
  const auto table = table_of(results);
  EXPECT_TRUE(line_with(table, "  arc").ends_with("0.001474    1.5e-05   OFF")) << table;
  EXPECT_TRUE(line_with(table, "dense").ends_with(" ok"));
  EXPECT_NE(table.find("# 1 of 2 values are as specified in docs/design/methods/arc_top_k.md\n"), std::string::npos);
  EXPECT_EQ(verdicts_of(results).compared, 2u);
  EXPECT_EQ(verdicts_of(results).off, 1u);
}

TEST(ConvergenceReport, a_diverged_run_is_off_and_names_its_step) {
  const std::vector results{result_of(Method::arc, Feedback::ef14, {no_number})};
  EXPECT_NE(table_of(results).find("diverged   0.001474    1.5e-05   OFF  in step 12"), std::string::npos) << table_of(results);
  EXPECT_EQ(verdicts_of(results).off, 1u);
}

TEST(ConvergenceReport, several_seeds_have_mean_and_deviation_and_no_verdict) {
  const std::vector results{result_of(Method::top_k, Feedback::ef14, {.1, .2, .3})};
  const auto spread = spread_of(results[0]);
  EXPECT_DOUBLE_EQ(spread.mean, .2);
  EXPECT_DOUBLE_EQ(spread.deviation, .1);
  const auto table = table_of(results);
  EXPECT_EQ(line_with(table, "  top-k "), "     ef14    top-k    -  0.109     0.2000     0.1000") << table;
  EXPECT_NE(table.find("seeds 3-5"), std::string::npos);
  EXPECT_NE(table.find("# docs/design/methods/arc_top_k.md has no values for these settings."), std::string::npos);
}

TEST(ConvergenceReport, seeds_that_diverged_are_counted_and_not_averaged) {
  const auto result = result_of(Method::arc, Feedback::none, {.5, no_number, .7});
  EXPECT_DOUBLE_EQ(spread_of(result).mean, .6);
  EXPECT_EQ(spread_of(result).diverged, 1u);
  EXPECT_NE(table_of(std::vector{result}).find("1 of 3 diverged"), std::string::npos);
}

TEST(ConvergenceReport, unspecified_settings_are_not_compared) {
  auto result = result_of(Method::arc, Feedback::ef14, {.3});
  result.what.settings.ranks = 16;
  EXPECT_EQ(verdicts_of(std::vector{result}).compared, 0u);
  EXPECT_EQ(table_of(std::vector{result}).find("specified "), std::string::npos);
}

TEST(ConvergenceReport, json_has_every_value_one_line_each) {
  const std::vector results{result_of(Method::arc, Feedback::ef21m, {.00136}),
                            result_of(Method::dense, Feedback::none, {no_number})};
  const auto text = json_of(results);
  std::vector<nlohmann::json> lines;
  for (size_t at = 0; at < text.size(); at = text.find('\n', at) + 1)
    lines.push_back(nlohmann::json::parse(text.substr(at, text.find('\n', at) - at)));
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0]["feedback"], "ef21");
  EXPECT_EQ(lines[0]["kept_rows"], 7);
  EXPECT_EQ(lines[0]["specified"], .00136);
  EXPECT_EQ(lines[0]["ok"], true);
  EXPECT_EQ(lines[0]["runs"][0]["curve"][1], (nlohmann::json{300, .00136}));
  EXPECT_TRUE(lines[0]["deviation"].is_null() && lines[1]["mean"].is_null() && lines[1]["feedback"].is_null());
  EXPECT_EQ(lines[1]["ok"], false);
  EXPECT_EQ(lines[1]["runs"][0]["diverged_in"], 12);
  EXPECT_EQ(lines[2], (nlohmann::json{{"results", 2}, {"compared", 2}, {"off", 1}}));
}

TEST(ConvergenceReport, each_feedback_has_a_panel_and_dense_gradients_are_in_all) {
  const std::vector results{
      result_of(Method::dense, Feedback::none, {.1, .3}), result_of(Method::arc, Feedback::ef14, {.1, .3}),
      result_of(Method::top_k, Feedback::ef14, {.1, .3}), result_of(Method::arc, Feedback::ef21m, {.1, .3})};
  const auto panels = panels_of(results);
  ASSERT_EQ(panels.size(), 2u);
  EXPECT_EQ(panels[0].title, "quadratic, ef14: 8 ranks, 7 of 64 rows, 2 seeds");
  ASSERT_EQ(panels[0].series.size(), 3u);
  ASSERT_EQ(panels[1].series.size(), 2u);
  const auto& line = panels[1].series[1];
  EXPECT_EQ(line.name, "arc");
  EXPECT_EQ(line.colour, panels[0].series[1].colour) << "a method has one colour";
  EXPECT_EQ(line.points.back().x, 300);
  EXPECT_DOUBLE_EQ(line.points.back().y, .2);
  EXPECT_EQ(line.lower.back(), .1);
  EXPECT_EQ(line.upper.back(), .3);
}

TEST(ConvergenceReport, dense_gradients_alone_have_a_panel_too) {
  const auto panels = panels_of(std::vector{result_of(Method::dense, Feedback::none, {.1})});
  ASSERT_EQ(panels.size(), 1u);
  EXPECT_EQ(panels[0].series.size(), 1u);
}

TEST(ConvergenceReport, each_problem_has_a_row_of_panels) {
  auto softmax = result_of(Method::arc, Feedback::ef14, {.6});
  softmax.what.settings.problem = ProblemKind::softmax;
  const auto panels = panels_of(std::vector{result_of(Method::arc, Feedback::ef14, {.1}), softmax});
  ASSERT_EQ(panels.size(), 2u);
  EXPECT_TRUE(panels[0].new_row && panels[1].new_row);
}

}  // namespace
}  // namespace unisono::lab
