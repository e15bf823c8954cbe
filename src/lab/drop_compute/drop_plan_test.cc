#include "lab/drop_compute/drop_plan.h"

#include <gtest/gtest.h>

namespace unisono::lab {

using cli::make_app;
using cli::parse_arguments;

namespace {

Result<DropPlan> read_drop_plan(const std::vector<std::string>& words) {
  DropPlanOptions options;
  const auto app = make_app(drop_plan_text);
  add_drop_plan_options(*app, options);
  EXPECT_EQ(parse_arguments(*app, words), std::nullopt);
  return make_drop_plan(options);
}

// Parses the required options and `words`.
Result<DropPlan> read_with(std::vector<std::string> words) {
  words.insert(words.begin(), {"-n", "200", "-m", "12", "--mean", "1s", "--sd", "250ms", "--comm", "500ms"});
  return read_drop_plan(words);
}

void expect_drop_plan_refused(const Result<DropPlan>& plan, const std::string& message) {
  EXPECT_EQ(plan.status().code(), Code::invalid) << message;
  EXPECT_EQ(plan.status().message(), message);
}

TEST(DropPlan, the_plan_follows_the_options) {
  const auto plan = read_drop_plan({"--workers", "200", "--micro-batches", "12", "--mean", "1s", "--sd", "250ms", "--comm",
                                    "0.5", "--rule", "after", "--lag", "2", "--max-drop", "0.05", "--threshold", "11300ms"});
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->workers, 200u);
  EXPECT_EQ(plan->model.micro_batches, 12u);
  EXPECT_EQ(plan->model.mean, 1);
  EXPECT_EQ(plan->model.deviation, .25);
  EXPECT_EQ(plan->model.other, .5);
  EXPECT_EQ(plan->rule, DropRule::after);
  EXPECT_EQ(plan->lag, 2u);
  EXPECT_EQ(plan->max_drop, .05);
  EXPECT_EQ(plan->threshold, 11.3);
}

TEST(DropPlan, the_default_plan_has_the_library_s_bound_and_rule_at) {
  const auto plan = read_with({});
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->rule, DropRule::at);
  EXPECT_EQ(plan->max_drop, DropOptions{}.max_drop);
  EXPECT_FALSE(plan->threshold);
}

TEST(DropPlan, reads_a_trace_instead_of_a_law) {
  const auto plan = read_drop_plan({"--from-trace", "trace.csv", "--workers", "10000"});
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->trace, "trace.csv");
  EXPECT_EQ(plan->workers, 10'000u);
  expect_drop_plan_refused(read_drop_plan({"--from-trace", "trace.csv", "--workers", "10001"}),
                           "--workers '10001': expected a whole number from 1 to 10000");
  expect_drop_plan_refused(read_drop_plan({"--from-trace", "trace.csv", "--workers", "8", "--mean", "1s"}),
                           "--mean comes from the trace: leave it out");
  expect_drop_plan_refused(
      read_drop_plan({"--from-trace", "trace.csv", "--workers", "8", "--rule", "after"}),
      "--from-trace forecasts rule at; for rule after of the recorded workers: unisono-lab drop-compute search trace.csv");
}

TEST(DropPlan, errors_name_the_missing_option) {
  expect_drop_plan_refused(read_drop_plan({}), "--workers is missing: how many a step waits for");
  expect_drop_plan_refused(read_drop_plan({"-n", "8"}),
                           "--micro-batches is missing: of each worker in a step; or --from-trace FILE");
  expect_drop_plan_refused(read_drop_plan({"-n", "8", "-m", "12", "--mean", "1s", "--sd", "1ms"}),
                           "--comm is missing: what a step takes beside computing; or --from-trace FILE");
}

TEST(DropPlan, refuses_impossible_values) {
  expect_drop_plan_refused(read_with({"--lag", "1"}), "--lag needs --rule after");
  expect_drop_plan_refused(read_with({"--rule", "after", "--lag", "12"}), "--lag '12': expected a whole number from 0 to 11");
  expect_drop_plan_refused(read_with({"--rule", "all"}), "--rule 'all' is none of at, after, before");
  expect_drop_plan_refused(read_with({"--threshold", "0"}), "--threshold '0': expected a time above 0, in whole ns");
  expect_drop_plan_refused(read_with({"--max-drop", "10%"}), "--max-drop '10%': expected a number from 0 to 1");
  expect_drop_plan_refused(read_drop_plan({"-n", "0", "-m", "12", "--mean", "1s", "--sd", "1ms", "--comm", "0"}),
                           "--workers '0': expected a whole number from 1 to 1000000");
  expect_drop_plan_refused(read_drop_plan({"-n", "8", "-m", "12", "--mean", "1s", "--sd", "0", "--comm", "0"}),
                           "--sd '0': expected a time above 0, in whole ns");
  expect_drop_plan_refused(read_drop_plan({"-n", "8", "-m", "12", "--mean", "1s", "--sd", "1ns", "--comm", "0"}),
                           "--sd 1ns is too small for 12 micro-batches of 1s: all workers would take the same time, so a "
                           "threshold would gain nothing");
  expect_drop_plan_refused(read_drop_plan({"-n", "8", "-m", "12", "--mean", "1x", "--sd", "1", "--comm", "0"}),
                           "--mean '1x' is not a time such as 5s: units are ns, us, ms, s, m, h");
}

}  // namespace
}  // namespace unisono::lab
