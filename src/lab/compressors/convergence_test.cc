// Training with compressed gradients reaches the values of checks 18, 25 and 26 of docs/design/methods/arc_top_k.md.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "lab/compressors/training_run.h"

namespace unisono::sim {
namespace {

TrainingSettings settings_of(ProblemKind problem, Method method, const FeedbackOptions& feedback, uint32_t sketch_rank = 4) {
  auto settings = specified_settings(problem);
  settings.method = method;
  settings.feedback = feedback;
  settings.sketch_rank = sketch_rank;
  return settings;
}

void expect_specified(const TrainingSettings& settings) {
  const auto specified = specified_value(settings);
  ASSERT_TRUE(specified);
  const auto outcome = run_training(settings);
  ASSERT_TRUE(outcome.ok()) << outcome.status().to_string();
  EXPECT_NEAR(outcome->value, specified->value, specified->tolerance)
      << "method " << static_cast<int>(settings.method) << ", feedback " << static_cast<int>(settings.feedback.kind) << ", eta "
      << settings.feedback.eta << ", r " << settings.sketch_rank;
}

// Check 25 of docs/design/methods/arc_top_k.md: final distance from the minimum, for each method and feedback.
TEST(Convergence, training_converges_on_a_quadratic) {
  for (const FeedbackOptions& feedback :
       {FeedbackOptions{.kind = Feedback::none}, {.kind = Feedback::ef14}, {.kind = Feedback::ef21m, .eta = 1}}) {
    for (const auto method : {Method::arc, Method::exact, Method::random_k, Method::top_k})
      expect_specified(settings_of(ProblemKind::quadratic, method, feedback));
  }
  expect_specified(settings_of(ProblemKind::quadratic, Method::dense, {}));
}

double length(std::span<const float> values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum);
}

// Check 18 of docs/design/methods/arc_top_k.md: the residual must stay below the proven bound of 16.7712. This run reaches
// 4.730.
TEST(Convergence, residual_of_the_mean_is_bounded) {
  const auto settings = settings_of(ProblemKind::quadratic, Method::exact, {.kind = Feedback::ef14});
  const auto problem = make_problem(settings.problem, settings.ranks, settings.seed);
  const auto made = make_training_ranks(ranks_options(settings));
  ASSERT_TRUE(made.ok());
  std::vector<double> weights(facts_of(settings.problem).matrix.elements()), gradient(weights.size());
  double largest_gradient = 0, worst = 0;
  for (uint64_t step = 0; step < settings.steps; ++step) {
    std::vector<float> mean(weights.size());
    for (uint32_t i = 0; i < settings.ranks; ++i) {
      problem->gradient(weights, step, i, gradient);
      (*made)->set_gradient(i, gradient);
      for (size_t k = 0; k < mean.size(); ++k) mean[k] += static_cast<float>(gradient[k] / settings.ranks);
    }
    largest_gradient = std::max(largest_gradient, length(mean));
    const auto out = (*made)->step(step);
    ASSERT_TRUE(out.ok());
    worst = std::max(worst, length((*made)->residual(0)) / largest_gradient);
    for (size_t k = 0; k < weights.size(); ++k) weights[k] -= settings.step_size * (*out)[k];
  }
  EXPECT_LE(worst, 16.7712);
  EXPECT_NEAR(worst, 4.730, .0473);
}

// Check 26 of docs/design/methods/arc_top_k.md: final loss of a softmax regression, for each method and feedback.
struct SoftmaxCase {
  const char* name;
  FeedbackOptions feedback;
};
void PrintTo(const SoftmaxCase& c, std::ostream* out) { *out << c.name; }

class LongConvergence : public testing::TestWithParam<SoftmaxCase> {};

TEST_P(LongConvergence, training_converges_on_a_softmax_regression) {
  const auto& feedback = GetParam().feedback;
  for (const uint32_t sketch_rank : {1u, 4u, 16u})
    expect_specified(settings_of(ProblemKind::softmax, Method::arc, feedback, sketch_rank));
  for (const auto method : {Method::exact, Method::random_k, Method::top_k})
    expect_specified(settings_of(ProblemKind::softmax, method, feedback));
}

INSTANTIATE_TEST_SUITE_P(With, LongConvergence,
                         testing::Values(SoftmaxCase{"ef14", {.kind = Feedback::ef14}},
                                         SoftmaxCase{"ef21m", {.kind = Feedback::ef21m, .eta = .1f}},
                                         SoftmaxCase{"ef21", {.kind = Feedback::ef21m, .eta = 1}},
                                         SoftmaxCase{"none", {.kind = Feedback::none}}),
                         [](const auto& tested) { return std::string(tested.param.name); });

TEST(LongDenseConvergence, dense_training_converges_on_a_softmax_regression) {
  expect_specified(settings_of(ProblemKind::softmax, Method::dense, {}));
}

}  // namespace
}  // namespace unisono::sim
