#include "lab/drop_compute/drop_study.h"

#include <gtest/gtest.h>

#include <cmath>

namespace unisono::lab {
namespace {

// The trace of check 8 of docs/design/methods/drop_compute.md: two steps of two workers with three micro-batches. Outside
// computing, each step takes 1 s.
ComputeTrace small_trace() {
  ComputeTrace trace{.workers = 2, .micro_batches = 3, .ends = {1, 2, 3, 1, 3, 6, 2, 3, 4, 1, 2, 3}, .walls = {7, 7, 5, 5}};
  for (auto* times : {&trace.ends, &trace.walls}) {
    for (auto& time : *times) time *= 1'000'000'000;
  }
  return trace;
}

TraceStudy study_in(const ComputeTrace& trace, double max_drop,
                    const std::vector<DropRule>& rules = {DropRule::after, DropRule::before, DropRule::at}) {
  DropOptions choice;
  choice.threshold = DropOptions::Threshold::automatic;
  choice.slack = 0;
  choice.max_drop = max_drop;
  return study_of(trace, choice, rules);
}

TEST(DropStudy, options_without_effect_on_a_rule_are_reset) {
  DropOptions options;
  options.lag = 2;
  options.min_computed = 3;
  EXPECT_EQ(options_for(DropRule::after, options).lag, 2u);
  EXPECT_EQ(options_for(DropRule::after, options).min_computed, 3u);
  EXPECT_EQ(options_for(DropRule::before, options).lag, 0u);
  EXPECT_EQ(options_for(DropRule::before, options).min_computed, 3u);
  EXPECT_EQ(options_for(DropRule::at, options).lag, 0u);
  EXPECT_EQ(options_for(DropRule::at, options).min_computed, 1u);
}

TEST(DropStudy, step_times_follow_the_rule_and_include_the_time_outside_computing) {
  const auto study = study_in(small_trace(), 1);
  EXPECT_EQ(study.rules[0].step_times, (std::vector<double>{4, 4})) << "the running micro-batch is waited for";
  ASSERT_TRUE(study.rules[2].found());
  const double threshold = static_cast<double>(study.rules[2].outcome.best.threshold_ns) / 1e9;
  EXPECT_EQ(study.rules[2].step_times, (std::vector<double>{std::min(threshold, 6.) + 1, std::min(threshold, 4.) + 1}))
      << "nothing is waited for";
  EXPECT_EQ(study.compute_times, (std::vector<double>{6, 4}));
  EXPECT_EQ(study.step_mean(), 6);
  EXPECT_EQ(study.other, 1);
}

TEST(DropStudy, the_slowest_worker_is_compared_with_the_others) {
  const auto study = study_in(small_trace(), 1);
  EXPECT_EQ(study.worker_means, (std::vector<double>{3.5, 4.5}));
  EXPECT_EQ(study.slowest, 1u);
  EXPECT_NEAR(study.slowness, 4.5 / 3.5, 1e-12);
}

TEST(DropStudy, the_oracle_keeps_within_the_bound_too) {
  const auto study = study_in(small_trace(), 1);
  EXPECT_NEAR(study.oracle.step, 1.25, 1e-9);
  EXPECT_GT(study.oracle.drop, .1);
  EXPECT_LE(study_in(small_trace(), .1).oracle.drop, .1);
  EXPECT_EQ(study_in(small_trace(), 0).oracle.threshold_ns, 0) << "none";
}

TEST(DropStudy, a_single_worker_has_slowness_one) {
  const ComputeTrace trace{.workers = 1, .micro_batches = 2, .ends = {1'000, 3'000}, .walls = {4'000}};
  const auto study = study_in(trace, 1);
  EXPECT_EQ(study.slowness, 1);
  for (const auto& rule : study.rules) EXPECT_FALSE(rule.on() || rule.straggles);
}

TEST(DropStudy, histograms_have_every_value_once) {
  const auto panel = compute_panel(small_trace());
  ASSERT_EQ(panel.series.size(), 2u);
  for (const auto& series : panel.series) {
    double sum = 0;
    for (size_t i = 1; i + 1 < series.points.size(); i += 2) sum += series.points[i].y;
    EXPECT_NEAR(sum, 100, 1e-9) << series.name;
  }
  const ComputeTrace alike{.workers = 2, .micro_batches = 1, .ends = {5, 5}, .walls = {5, 5}};
  const auto drawn = compute_panel(alike);
  for (const auto& point : drawn.series[0].points) EXPECT_TRUE(std::isfinite(point.x) && std::isfinite(point.y));
}

TEST(DropStudy, step_times_are_plotted_as_cumulative_shares) {
  const auto panel = step_times_panel(
      {{.name = "a", .colour = "#000000", .times = {3, 1, 2, 4}}, {.name = "none", .colour = "#000000", .times = {}}});
  ASSERT_EQ(panel.series.size(), 1u);
  const auto& points = panel.series[0].points;
  ASSERT_EQ(points.size(), 5u);
  EXPECT_EQ(points[2].x, 2);
  EXPECT_EQ(points[2].y, 50);
  EXPECT_EQ(points[4].x, 4);
  EXPECT_EQ(points[4].y, 100);
}

TEST(DropStudy, curves_are_thinned_but_keep_their_best_points) {
  ComputeTrace trace{.workers = 4, .micro_batches = 8, .ends = {}, .walls = {}};
  uint64_t state = 1;
  for (int step = 0; step < 100; ++step) {
    for (int worker = 0; worker < 4; ++worker) {
      int64_t end = 0;
      for (int m = 0; m < 8; ++m)
        trace.ends.push_back(
            end += static_cast<int64_t>(500'000 + (state = state * 6364136223846793005u + 1442695040888963407u) % 1'000'000));
      trace.walls.push_back(12'000'000);
    }
  }
  const auto study = study_in(trace, 1, {DropRule::after});
  const auto panel = thresholds_panel(trace, study);
  const auto& curve = panel.series[1];
  EXPECT_EQ(curve.name, "after");
  EXPECT_LE(curve.points.size(), 302u);
  double best = 0;
  for (const auto& point : curve.points) best = std::max(best, point.y);
  EXPECT_NEAR(best, study.rules[0].outcome.highest, 1e-12);
}

}  // namespace
}  // namespace unisono::lab
