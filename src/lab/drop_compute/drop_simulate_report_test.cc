#include "lab/drop_compute/drop_simulate_report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace unisono::lab {
namespace {

using Kind = sim::Remedy::Kind;

// Eight workers with constant times, one of them twice as slow: check 12 of docs/design/methods/drop_compute.md.
DropSimulation slow_worker() {
  DropSimulation simulation{
      .settings = {.model = {.law = sim::DelayModel::Law::constant, .base = 1, .slow_worker = 7, .slow_factor = 2},
                   .workers = 8,
                   .micro_batches = 12,
                   .other = .5,
                   .steps = 69,
                   .seed = 0},
      .measured_from = 50,
      .rules = {DropRule::after},
      .choice = {},
      .fixed = {}};
  simulation.choice.threshold = DropOptions::Threshold::automatic;
  return simulation;
}

const RemedyResult& result_of(const DropSimulationResult& result, const std::string& label) {
  for (const auto& remedy : result.remedies) {
    if (label_of(result, remedy) == label) return remedy;
  }
  ADD_FAILURE() << label << " is missing";
  return result.remedies.front();
}

TEST(DropSimulateReport, every_remedy_is_run_under_the_same_delays) {
  auto simulation = slow_worker();
  simulation.fixed = 14;
  uint64_t last = 0, all = 0;
  const auto result = simulate_remedies(simulation, [&](uint64_t steps, uint64_t all_steps, const std::string&) {
    EXPECT_EQ(steps, ++last);
    all = all_steps;
  });
  EXPECT_EQ(last, all) << "progress ends where it is all done";
  const auto& automatic = result_of(result, "auto, after").outcome;
  EXPECT_NEAR(automatic.step, 147. / 80, 1e-9);
  EXPECT_NEAR(automatic.predicted_step, 147. / 80, 1e-9);
  EXPECT_NEAR(automatic.drop, 1. / 16, 1e-9);
  EXPECT_EQ(automatic.threshold, 11);
  EXPECT_NEAR(result_of(result, "14 s, after").outcome.step, 1127. / 792, 1e-9);
  EXPECT_EQ(result_of(result, "no remedy").outcome.total, 1);
  EXPECT_NEAR(result_of(result, "backup workers, 1 of 8").outcome.total, 7. / 8 * 24.5 / 12.5, 1e-9);
  EXPECT_NEAR(result_of(result, "rebalanced").outcome.total, 24.5 / 13.5, 1e-9)
      << "13 micro-batches for each, 5 for the slow one";
  EXPECT_EQ(result_of(result, "rebalanced").outcome.drop, 0);
  EXPECT_GE(result_of(result, "oracle (bound)").outcome.total, 1);
  const auto& random = result_of(result, "as many at random");
  EXPECT_NEAR(random.remedy.share, result_of(result, "14 s, after").outcome.drop, 1e-12) << "as the first threshold does";
  EXPECT_LT(random.outcome.total, 1);
}

TEST(DropSimulateReport, the_number_of_jobs_changes_nothing) {
  auto simulation = slow_worker();
  simulation.settings.model = {.law = sim::DelayModel::Law::paper};
  const auto one = table_of(simulate_remedies(simulation, nullptr));
  simulation.jobs = 3;
  EXPECT_EQ(table_of(simulate_remedies(simulation, nullptr)), one);
}

TEST(DropSimulateReport, without_thresholds_nothing_is_dropped_at_random_either) {
  auto simulation = slow_worker();
  simulation.drops = false;
  const auto result = simulate_remedies(simulation, nullptr);
  for (const auto& remedy : result.remedies)
    EXPECT_TRUE(remedy.remedy.kind != Kind::drop_compute && remedy.remedy.kind != Kind::random);
}

TEST(DropSimulateReport, every_line_names_its_rule_and_why_it_is_off) {
  auto simulation = slow_worker();
  simulation.rules = {DropRule::after, DropRule::before, DropRule::at};
  simulation.settings.model.slow_worker = -1;
  const auto table = table_of(simulate_remedies(simulation, nullptr));
  for (const char* label : {"auto, after", "auto, before", "auto, at"}) {
    const auto at = table.find(label);
    ASSERT_NE(at, std::string::npos) << table;
    EXPECT_NE(table.substr(at, table.find('\n', at) - at).find("off: "), std::string::npos) << table;
  }
}

TEST(DropSimulateReport, a_warning_names_the_straggler) {
  const auto table = table_of(simulate_remedies(slow_worker(), nullptr));
  EXPECT_NE(table.find("# warning: auto, after: "), std::string::npos) << table;
  EXPECT_NE(table.find("persistent_straggler"), std::string::npos) << table;
}

TEST(DropSimulateReport, json_has_every_value_one_line_each) {
  const auto text = json_of(simulate_remedies(slow_worker(), nullptr));
  std::vector<nlohmann::json> lines;
  for (size_t at = 0; at < text.size(); at = text.find('\n', at) + 1)
    lines.push_back(nlohmann::json::parse(text.substr(at, text.find('\n', at) - at)));
  EXPECT_EQ(lines[0]["kind"], "simulation");
  EXPECT_EQ(lines[0]["steps"], 20);
  EXPECT_EQ(lines[1]["remedy"], "no remedy");
  EXPECT_TRUE(lines[1]["rule"].is_null() && lines[1]["predicted_total"].is_null());
  EXPECT_EQ(lines[2]["rule"], "after");
  EXPECT_EQ(lines[2]["automatic"], true);
  EXPECT_EQ(lines[2]["threshold_s"], 11);
  EXPECT_NEAR(lines[2]["predicted_step"].get<double>(), 147. / 80, 1e-9);
  EXPECT_EQ(lines[3]["backups"], 1);
}

TEST(DropSimulateReport, plots_show_the_simulation) {
  const auto panels = panels_of(simulate_remedies(slow_worker(), nullptr));
  ASSERT_EQ(panels.size(), 4u);
  EXPECT_TRUE(panels[2].new_row);
  EXPECT_EQ(panels[2].series.front().name, "no remedy");
  // Numbers of workers below 8 are left out, because the slow worker has rank 7.
  EXPECT_EQ(panels[3].series.front().points.front().x, 8);
  EXPECT_EQ(panels[3].series.front().points.back().x, 256);
}

}  // namespace
}  // namespace unisono::lab
