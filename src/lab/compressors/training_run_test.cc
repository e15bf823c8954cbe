#include "lab/compressors/training_run.h"

#include <gtest/gtest.h>

#include <cmath>

namespace unisono::sim {
namespace {

constexpr Method all_methods[] = {Method::dense, Method::arc, Method::exact, Method::random_k, Method::top_k};

TrainingSettings short_settings(ProblemKind problem, Method method, uint64_t steps) {
  auto settings = specified_settings(problem);
  settings.method = method;
  settings.feedback = {.kind = Feedback::ef14};
  settings.steps = steps;
  return settings;
}

double value_of(const TrainingSettings& settings) {
  const auto outcome = run_training(settings);
  EXPECT_TRUE(outcome.ok()) << outcome.status().to_string();
  return outcome.ok() ? outcome->value : 0;
}

TEST(Training, gradients_are_those_of_the_quadratic_that_is_measured) {
  // With step size 1 and dense gradients, one step reaches the minimum.
  for (const uint32_t ranks : {1u, 2u, 5u, 16u}) {
    auto settings = short_settings(ProblemKind::quadratic, Method::dense, 1);
    settings.ranks = ranks;
    settings.step_size = 1;
    EXPECT_LT(value_of(settings), 1e-6) << ranks;
  }
}

TEST(Training, gradients_are_those_of_the_softmax_loss_that_is_measured) {
  constexpr uint32_t ranks = 3;
  const auto problem = make_problem(ProblemKind::softmax, ranks, 5);
  const auto size = facts_of(ProblemKind::softmax).matrix.elements();
  std::vector<double> weights(size), gradient(size), mean(size);
  for (size_t k = 0; k < size; ++k) weights[k] = .3 * std::sin(static_cast<double>(k));
  // Eight steps use each sample once: a rank has 64 samples and uses 8 per step.
  for (uint64_t step = 0; step < 8; ++step) {
    for (uint32_t i = 0; i < ranks; ++i) {
      problem->gradient(weights, step, i, gradient);
      for (size_t k = 0; k < size; ++k) mean[k] += gradient[k] / (8 * ranks);
    }
  }
  for (const size_t k : {0u, 33u, 1000u, 2047u}) {
    auto right = weights, left = weights;
    right[k] += 1e-5;
    left[k] -= 1e-5;
    EXPECT_NEAR((problem->measure(right) - problem->measure(left)) / 2e-5, mean[k], 1e-7) << k;
  }
}

TEST(Training, any_number_of_ranks_trains_with_any_method) {
  for (const auto problem : {ProblemKind::quadratic, ProblemKind::softmax}) {
    for (const auto method : all_methods) {
      for (const uint32_t ranks : {1u, 3u}) {
        auto settings = short_settings(problem, method, 40);
        settings.ranks = ranks;
        const double start = problem == ProblemKind::quadratic ? 1 : std::log(64.0);
        EXPECT_LT(value_of(settings), start) << static_cast<int>(method) << " with " << ranks;
      }
    }
  }
}

TEST(Training, all_rows_kept_is_dense_training) {
  for (const auto method : all_methods) {
    auto settings = short_settings(ProblemKind::quadratic, method, 50);
    settings.ratio_ppm = 1'000'000;
    EXPECT_NEAR(value_of(settings), value_of(short_settings(ProblemKind::quadratic, Method::dense, 50)), 1e-5)
        << static_cast<int>(method);
  }
}

TEST(Training, the_seed_determines_the_training) {
  auto settings = short_settings(ProblemKind::quadratic, Method::arc, 30);
  const double once = value_of(settings);
  EXPECT_EQ(value_of(settings), once);
  settings.seed += 1;
  EXPECT_NE(value_of(settings), once);
}

TEST(Training, the_curve_begins_at_the_start_and_ends_with_the_last_step) {
  auto settings = short_settings(ProblemKind::quadratic, Method::arc, 33);
  uint64_t reported = 0;
  const auto outcome = run_training(settings, {.curve_points = 10, .progress = [&](uint64_t steps) { reported += steps; }});
  ASSERT_TRUE(outcome.ok());
  EXPECT_EQ(outcome->curve.front().step, 0u);
  EXPECT_EQ(outcome->curve.front().value, 1);
  EXPECT_EQ(outcome->curve.back().step, 33u);
  EXPECT_EQ(outcome->curve.back().value, outcome->value);
  EXPECT_EQ(reported, 32u);
  EXPECT_EQ(value_of(settings), outcome->value) << "what is measured on the way changes nothing";
}

TEST(Training, divergence_is_reported_with_its_step_and_is_no_error) {
  for (const auto method : all_methods) {
    auto settings = short_settings(ProblemKind::quadratic, method, 400);
    settings.step_size = 1e3;
    const auto outcome = run_training(settings);
    ASSERT_TRUE(outcome.ok()) << outcome.status().to_string();
    EXPECT_TRUE(outcome->diverged_in && *outcome->diverged_in < 400) << static_cast<int>(method);
    EXPECT_TRUE(std::isnan(outcome->value));
  }
}

TEST(Training, refuses_options_that_feedback_or_compressor_refuse) {
  for (const auto method : {Method::arc, Method::top_k}) {
    auto settings = short_settings(ProblemKind::quadratic, method, 1);
    settings.feedback = {.kind = Feedback::ef21m, .eta = 1.5f};
    EXPECT_EQ(run_training(settings).status().code(), Code::invalid);
    settings = short_settings(ProblemKind::quadratic, method, 1);
    settings.ratio_ppm = 0;
    EXPECT_EQ(run_training(settings).status().code(), Code::invalid);
  }
}

TEST(Training, sent_elements_counts_the_elements_of_a_step) {
  const auto sent = [](Method method) {
    return sent_elements(ranks_options(short_settings(ProblemKind::quadratic, method, 1)));
  };
  EXPECT_EQ(sent(Method::dense), 1024u);
  EXPECT_EQ(sent(Method::arc), 7u * 16 + 64 * 4);
  for (const auto method : {Method::exact, Method::random_k, Method::top_k}) EXPECT_EQ(sent(method), 7u * 16);
}

TEST(SpecifiedValue, allows_only_values_within_its_tolerance) {
  const SpecifiedValue value{.value = 2, .tolerance = .5};
  EXPECT_TRUE(value.allows(1.5) && value.allows(2.5));
  EXPECT_FALSE(value.allows(1.49) || value.allows(2.51) || value.allows(std::nan("")));
}

TEST(SpecifiedValue, is_known_only_for_the_specified_settings) {
  auto settings = specified_settings(ProblemKind::softmax);
  settings.feedback = {.kind = Feedback::ef21m, .eta = .1f};
  ASSERT_TRUE(specified_value(settings));
  EXPECT_EQ(specified_value(settings)->value, .5787);
  EXPECT_EQ(specified_value(settings)->tolerance, .001);
  for (const auto change :
       {+[](TrainingSettings& s) { s.ranks = 9; }, +[](TrainingSettings& s) { s.seed = 32; },
        +[](TrainingSettings& s) { s.steps = 999; }, +[](TrainingSettings& s) { s.step_size = .4; },
        +[](TrainingSettings& s) { s.ratio_ppm = 200'000; }, +[](TrainingSettings& s) { s.sketch_rank = 2; },
        +[](TrainingSettings& s) { s.feedback.eta = .2f; }}) {
    auto other = settings;
    change(other);
    EXPECT_FALSE(specified_value(other));
  }
}

TEST(SpecifiedValue, ignores_settings_without_effect) {
  auto settings = specified_settings(ProblemKind::quadratic);
  settings.method = Method::dense;
  settings.ratio_ppm = 500'000;
  settings.feedback = {.kind = Feedback::ef21m, .eta = .3f};
  ASSERT_TRUE(specified_value(settings));
  EXPECT_NEAR(specified_value(settings)->tolerance, 2.3325e-5, 1e-12);
  settings = specified_settings(ProblemKind::quadratic);
  settings.feedback = {.kind = Feedback::ef14, .eta = .7f};
  settings.ratio_ppm = 105'000;  // keeps 7 of 64 rows, as the specified ratio does
  EXPECT_TRUE(specified_value(settings));
  settings.method = Method::random_k;
  settings.sketch_rank = 9;
  EXPECT_TRUE(specified_value(settings));
}

}  // namespace
}  // namespace unisono::sim
