#include "lab/compressors/convergence_plan.h"

#include <gtest/gtest.h>

namespace unisono::lab {

using cli::make_app;
using cli::parse_arguments;

namespace {

using sim::Method;
using sim::ProblemKind;

// Parses the words after `simulate arc` as the command does.
ConvergenceOptions read_convergence(const std::vector<std::string>& words) {
  ConvergenceOptions options;
  const auto app = make_app(convergence_text);
  add_convergence_options(*app, options);
  EXPECT_EQ(parse_arguments(*app, words), std::nullopt);
  return options;
}

ConvergencePlan convergence_plan_of(const std::vector<std::string>& words) {
  auto plan = make_convergence_plan(read_convergence(words));
  EXPECT_TRUE(plan.ok()) << plan.status().to_string();
  return plan.ok() ? *std::move(plan) : ConvergencePlan{};
}

void expect_convergence_refused(const std::vector<std::string>& words, const std::string& message) {
  const auto plan = make_convergence_plan(read_convergence(words));
  EXPECT_EQ(plan.status().code(), Code::invalid) << message;
  EXPECT_EQ(plan.status().message(), message);
}

TEST(ConvergencePlan, the_default_plan_has_every_documented_value_once) {
  const auto plan = convergence_plan_of({});
  size_t quadratic = 0;
  for (const auto& one : plan.cases) {
    EXPECT_TRUE(sim::specified_value(one.settings));
    EXPECT_EQ(one.seeds, std::vector<uint64_t>{one.settings.seed});
    quadratic += one.settings.problem == ProblemKind::quadratic;
  }
  EXPECT_EQ(quadratic, 1u + 3 * 4);
  EXPECT_EQ(plan.cases.size(), quadratic + 1 + 4 * 6);
  EXPECT_EQ(plan.steps(), 13u * 300 + 25 * 1000);
}

TEST(ConvergencePlan, the_plan_follows_the_options) {
  const auto plan = convergence_plan_of(
      {"--problem",  "softmax",  "--ranks",      "16",      "--ratio", "0.05",    "--rank",   "2",           "--feedback",
       "ef14,ef21m", "--method", "arc,random-k", "--seeds", "5",       "--steps", "20",       "--step-size", "0.25",
       "--eta",      "0.3",      "--jobs",       "2",       "--plot",  "a.svg",   "--output", "a.json"});
  ASSERT_EQ(plan.cases.size(), 4u);
  for (const auto& one : plan.cases) {
    const auto& s = one.settings;
    EXPECT_EQ(s.problem, ProblemKind::softmax);
    EXPECT_EQ(s.ranks, 16u);
    EXPECT_EQ(s.ratio_ppm, 50'000u);
    EXPECT_EQ(s.steps, 20u);
    EXPECT_EQ(s.step_size, .25);
    EXPECT_EQ(one.seeds, (std::vector<uint64_t>{31, 32, 33, 34, 35}));
  }
  EXPECT_EQ(plan.cases[0].settings.method, Method::arc);
  EXPECT_EQ(plan.cases[0].settings.sketch_rank, 2u);
  EXPECT_EQ(plan.cases[0].settings.feedback.kind, Feedback::ef14);
  EXPECT_EQ(plan.cases[3].settings.method, Method::random_k);
  EXPECT_EQ(plan.cases[3].settings.feedback.eta, .3f);
  EXPECT_EQ(plan.steps(), 4u * 5 * 20);
  EXPECT_EQ(plan.jobs, 2u);
  EXPECT_EQ(plan.plot + " " + plan.results.output, "a.svg a.json");
}

TEST(ConvergencePlan, rows_can_be_set_instead_of_their_share) {
  for (uint32_t kept = 1; kept <= 64; ++kept) {
    const auto plan = convergence_plan_of(
        {"--kept", std::to_string(kept), "--problem", "quadratic", "--method", "arc", "--feedback", "none"});
    ASSERT_EQ(plan.cases.size(), 1u);
    EXPECT_EQ(kept_rows({.ratio_ppm = plan.cases[0].settings.ratio_ppm}, 64), kept);
  }
}

TEST(ConvergencePlan, seeds_are_a_count_or_a_range) {
  const auto seeds = [](const char* text) {
    return convergence_plan_of({"--problem", "quadratic", "--method", "dense", "--seeds", text}).cases.at(0).seeds;
  };
  EXPECT_EQ(seeds("1"), std::vector<uint64_t>{3});
  EXPECT_EQ(seeds("3"), (std::vector<uint64_t>{3, 4, 5}));
  EXPECT_EQ(seeds("7-8"), (std::vector<uint64_t>{7, 8}));
  EXPECT_EQ(seeds("17-17"), std::vector<uint64_t>{17});
}

TEST(ConvergencePlan, repeated_names_are_trained_once) {
  EXPECT_EQ(convergence_plan_of({"--problem", "quadratic", "--method", "top-k,top_k", "--feedback", "ef14,ef14"}).cases.size(),
            1u);
  EXPECT_EQ(convergence_plan_of(
                {"--problem", "quadratic", "--method", "arc", "--rank", "4,4,2", "--feedback", "ef21,ef21m", "--eta", "1"})
                .cases.size(),
            2u);
  EXPECT_EQ(convergence_plan_of({"--problem", "quadratic", "--method", "dense,exact", "--feedback", "none,ef14"}).cases.size(),
            3u)
      << "dense has no feedback";
}

TEST(ConvergencePlan, methods_and_feedbacks_have_the_names_of_their_options) {
  EXPECT_EQ(method_name(Method::random_k), "random-k");
  EXPECT_EQ(feedback_name({.kind = Feedback::ef21m, .eta = .1f}), "ef21m");
  EXPECT_EQ(feedback_name({.kind = Feedback::ef21m, .eta = 1}), "ef21");
}

TEST(ConvergencePlan, refuses_unknown_names) {
  expect_convergence_refused({"--problem", "cubic"}, "--problem 'cubic' is none of quadratic, softmax");
  expect_convergence_refused({"--method", "arc,randon-k"},
                             "--method 'randon-k' is none of dense, arc, exact, random-k, top-k; did you mean 'random-k'?");
  expect_convergence_refused({"--feedback", "none,"}, "--feedback '' is none of none, ef14, ef21, ef21m");
  expect_convergence_refused({"--progress", "loud"}, "--progress 'loud' is none of auto, bar, lines, off");
}

TEST(ConvergencePlan, refuses_wrong_numbers_of_ranks) {
  for (const char* wrong : {"0", "1025", "8x", "-1"})
    expect_convergence_refused({"--ranks=" + std::string(wrong)},
                               "--ranks '" + std::string(wrong) + "': expected a whole number from 1 to 1024");
}

TEST(ConvergencePlan, refuses_wrong_shares_of_rows) {
  for (const char* wrong : {"0", "1.1", "nan", "inf", "0.1x", "1e-9", "-0.1"})
    expect_convergence_refused({"--ratio=" + std::string(wrong)},
                               "--ratio '" + std::string(wrong) + "': expected a share of the rows, from 0.000001 to 1");
}

TEST(ConvergencePlan, refuses_wrong_numbers_of_rows) {
  for (const char* wrong : {"0", "65", "7.5"})
    expect_convergence_refused({"--kept", wrong}, "--kept '" + std::string(wrong) + "': expected a whole number from 1 to 64");
  expect_convergence_refused({"--kept", "3", "--ratio", "0.1"}, "--ratio and --kept say the same: give one of them");
}

TEST(ConvergencePlan, refuses_wrong_sketch_ranks) {
  for (const char* wrong : {"0", "1025", "x"})
    expect_convergence_refused({"--rank", "4," + std::string(wrong)},
                               "--rank '" + std::string(wrong) + "': expected a whole number from 1 to 1024");
  expect_convergence_refused({"--rank", "4", "--method", "exact,top-k"}, "--rank needs --method arc");
}

TEST(ConvergencePlan, refuses_wrong_weights) {
  for (const char* wrong : {"0", "1.5", "x", "nan"})
    expect_convergence_refused({"--feedback", "ef21m", "--eta", wrong},
                               "--eta '" + std::string(wrong) + "': expected a weight above 0, at most 1");
  expect_convergence_refused({"--feedback", "ef14,ef21", "--eta", "0.3"},
                             "--eta is for ef21m, and --feedback ef14,ef21 does not name it");
  expect_convergence_refused({"--problem", "quadratic", "--eta", "0.3"}, "--eta is for ef21m: name it with --feedback");
}

TEST(ConvergencePlan, refuses_wrong_seeds) {
  for (const char* wrong : {"0", "1001", "7-3", "0-1000", "x", "3-"})
    expect_convergence_refused(
        {"--seeds", wrong}, "--seeds '" + std::string(wrong) + "': expected how many, 1 to 1000, or which of them, as in 3-7");
}

TEST(ConvergencePlan, refuses_wrong_steps_step_sizes_and_jobs) {
  for (const char* wrong : {"0", "1000001", "x"})
    expect_convergence_refused({"--steps", wrong},
                               "--steps '" + std::string(wrong) + "': expected a whole number from 1 to 1000000");
  for (const char* wrong : {"0", "-1", "inf", "x", "2e9"})
    expect_convergence_refused({"--step-size=" + std::string(wrong)},
                               "--step-size '" + std::string(wrong) + "': expected a number above 0, at most 1e9");
  for (const char* wrong : {"0", "257", "x"})
    expect_convergence_refused({"--jobs", wrong}, "--jobs '" + std::string(wrong) + "': expected a whole number from 1 to 256");
}

TEST(ConvergencePlan, refuses_options_that_dense_gradients_do_not_use) {
  for (const auto& [name, value] : {std::pair{"--feedback", "ef14"}, {"--ratio", "0.1"}, {"--kept", "3"}, {"--eta", "0.1"}}) {
    expect_convergence_refused({"--method", "dense", name, value},
                               std::string(name) + " does not apply to dense gradients, and --method names no other method");
  }
}

}  // namespace
}  // namespace unisono::lab
