#include "lab/averaging/averaging_report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

namespace unisono::lab {
namespace {

AveragingResult result_of(const AveragingOptions& options, bool curve = false) {
  auto plan = make_averaging_plan(options);
  EXPECT_TRUE(plan.ok()) << plan.status().to_string();
  AveragingResult result{.plan = plan.ok() ? *plan : AveragingPlan{}, .means = {}};
  for (const auto& one : result.plan.cases()) {
    const auto means =
        sim::average_restarts(one, {.restarts = result.plan.restarts, .targets = result.plan.targets, .curve = curve});
    EXPECT_TRUE(means.ok()) << means.status().to_string();
    result.means.push_back(means.ok() ? *means : sim::AveragingMeans{});
  }
  return result;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(AveragingReport, table_has_rounds_of_every_algorithm_and_what_was_sent) {
  const auto text = table_of(result_of({.absences = "0,0.005"}));
  EXPECT_TRUE(contains(text,
                       "# 10 restarts of each, seeds 0-9; groups of up to 32\n# rounds until the variance of all peers' "
                       "numbers is below 1e-09 (below 0.0001); 50 at most"))
      << text;
  EXPECT_TRUE(contains(text, "\n    512       0     1.0 (1.0)   50.0 (50.0)")) << text;
  EXPECT_TRUE(contains(text, "   47.6 (15.6)     6.1 (3.0)     8.8 (3.8)     6.5 (3.0)     2.0 (2.0)\n")) << text;
  EXPECT_TRUE(contains(text, "3.82\n    512   0.005         21.76")) << text;
}

TEST(AveragingReport, table_names_inexact_algorithms_and_why_runs_ended) {
  const auto text =
      table_of(result_of({.peers = "512,1024", .absences = "0.01", .algorithms = "all-reduce,published,chunk-keys,fitted"}));
  EXPECT_TRUE(contains(text, "# published, chunk-keys: not exact with 512 peers, even if nobody is absent; only N = 32^d is\n"))
      << text;
  EXPECT_TRUE(contains(
      text, "# fitted: grids of 23x22 for 512, 32x32 for 1024; exact after a round along each axis, if nobody is absent\n"))
      << text;
  EXPECT_TRUE(contains(text, "# 17 of 100 runs had not come below 1e-09 after 50 rounds\n")) << text;
  const auto full = table_of(result_of({.peers = "1024", .absences = "0", .algorithms = "published"}));
  EXPECT_FALSE(contains(full, "not exact")) << full;
}

// Expected numbers are from docs/design/methods/moshpit.md: formulae F5, F3, F4 and F7, checks A16, A17, A19 and A32.
TEST(AveragingReport, table_has_the_formulae) {
  const auto text = table_of(result_of({.peers = "512,1024", .absences = "0.01", .algorithms = "fitted", .restarts = "1"}));
  EXPECT_TRUE(contains(text, "    512    0.01        43.49     0.037428     0.051016            -")) << text;
  EXPECT_TRUE(contains(text, "   1024    0.01        49.96     0.039335     0.040273     0.040273    6.466e-04\n")) << text;
}

TEST(AveragingReport, every_line_of_json_is_a_value_with_all_that_the_table_has) {
  std::istringstream lines(json_of(result_of({.peers = "512", .absences = "0.001", .algorithms = "fitted,published"})));
  std::vector<nlohmann::json> values;
  for (std::string line; std::getline(lines, line);) values.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(values.size(), 1u + 3 + 1);
  EXPECT_EQ(values[0]["place_seed"], 12345);
  EXPECT_EQ(values[1]["algorithm"], "random");
  EXPECT_EQ(values[1]["exact_if_all_are_there"], false);
  EXPECT_EQ(values[2]["exact_if_all_are_there"], false);  // the published grid, because 512 is not 32^d
  EXPECT_EQ(values[3]["exact_if_all_are_there"], true);
  EXPECT_NEAR(values[3]["targets"][0]["rounds"].get<double>(), 3.1, 1e-12);
  EXPECT_EQ(values[3]["targets"][1]["variance"], 1e-4);
  EXPECT_FALSE(values[3].contains("variances"));
  EXPECT_EQ(values[4]["dims"], (std::vector<uint32_t>{23, 22}));
  EXPECT_TRUE(values[4]["published_first_variance"].is_null());
}

TEST(AveragingReport, plots_have_a_panel_for_each_absence_and_number_of_peers) {
  const auto result = result_of(
      {.peers = "64,81", .absences = "0.01,0", .algorithms = "fitted,gossip", .restarts = "2", .max_group = "9"}, true);
  const auto variance = variance_panels_of(result);
  ASSERT_EQ(variance.size(), 4u);
  EXPECT_EQ(variance[3].title, "Mean variance, 81 peers, absence 0");
  EXPECT_FALSE(variance[0].new_row || variance[1].new_row || variance[3].new_row);
  EXPECT_TRUE(variance[2].new_row);
  ASSERT_EQ(variance[3].series.size(), 3u);            // gossip, random (added by the plan), fitted
  EXPECT_EQ(variance[3].series[2].points.size(), 3u);  // after rounds 0, 1 and 2; then fitted is exact, and the curve ends
  EXPECT_EQ(variance[3].series[2].points.back().y, 1e-20);
  EXPECT_EQ(variance[3].series[0].points.size(), 51u);
  const auto absence = absence_panels_of(result);
  ASSERT_EQ(absence.size(), 2u);
  EXPECT_EQ(absence[1].series[2].points.front().x, 0);
  EXPECT_EQ(absence[1].series[2].points.front().y, 2);
}

}  // namespace
}  // namespace unisono::lab
