#include "lab/loss/loss_plan.h"

#include <gtest/gtest.h>

namespace unisono::lab {

using cli::make_app;
using cli::parse_arguments;

namespace {

// Parses the words after `simulate loss` as the command does.
LossOptions read_loss(const std::vector<std::string>& words) {
  LossOptions options;
  const auto app = make_app(loss_text);
  add_loss_options(*app, options);
  EXPECT_EQ(parse_arguments(*app, words), std::nullopt);
  return options;
}

LossPlan loss_plan_of(const std::vector<std::string>& words) {
  auto plan = make_loss_plan(read_loss(words));
  EXPECT_TRUE(plan.ok()) << plan.status().to_string();
  return plan.ok() ? *std::move(plan) : LossPlan{};
}

void expect_loss_refused(const std::vector<std::string>& words, const std::string& message) {
  const auto plan = make_loss_plan(read_loss(words));
  EXPECT_EQ(plan.status().code(), Code::invalid) << message;
  EXPECT_EQ(plan.status().message(), message);
}

TEST(LossPlan, the_default_plan_has_eight_ranks_and_a_loss_of_a_tenth) {
  const auto plan = loss_plan_of({});
  EXPECT_EQ(plan.settings.ranks.peers, 8u);
  EXPECT_EQ(plan.settings.ranks.model.to_string(), "iid:0.1");
  EXPECT_EQ(plan.settings.ranks.estimator, Estimator::stratified);
  EXPECT_EQ(plan.settings.ranks.on_empty, OnEmpty::hold);
  EXPECT_EQ(plan.settings.burn_in, 400u);
  EXPECT_EQ(plan.seeds, std::vector<uint64_t>{0});
  EXPECT_TRUE(plan.estimates && plan.drift && plan.fixed_point && plan.is_as_specified());
  EXPECT_EQ(plan.steps(), 3u * 4000);
}

TEST(LossPlan, the_plan_follows_the_options) {
  const auto plan = loss_plan_of({"--peers",    "64",     "--loss",      "chain:p=0.1,recovery=0.25",
                                  "--steps",    "10000",  "--seeds",     "3-5",
                                  "--problem",  "drift",  "--estimator", "count",
                                  "--on-empty", "own",    "--stale-max", "8",
                                  "--rho",      "0.9",    "--missed",    "zero",
                                  "--ranges",   "2",      "--elements",  "256",
                                  "--burn-in",  "10",     "--plot",      "a.svg",
                                  "--output",   "a.json", "--jobs",      "2",
                                  "--progress", "off"});
  const auto& s = plan.settings;
  EXPECT_EQ(s.ranks.peers, 64u);
  EXPECT_EQ(s.ranks.model.recovery, .25);
  EXPECT_EQ(s.ranks.estimator, Estimator::count);
  EXPECT_EQ(s.ranks.on_empty, OnEmpty::own);
  EXPECT_EQ(s.ranks.stale_max, 8u);
  EXPECT_EQ(s.rho, .9);
  EXPECT_EQ(s.ranks.missed, sim::Missed::zero);
  EXPECT_EQ(s.ranks.ranges, 2u);
  EXPECT_EQ(s.ranks.elements, 256u);
  EXPECT_EQ(s.burn_in, 10u);
  EXPECT_EQ(s.ranks.seed, 3u);
  EXPECT_EQ(plan.seeds, (std::vector<uint64_t>{3, 4, 5}));
  EXPECT_TRUE(plan.drift && !plan.estimates && !plan.fixed_point && !plan.is_as_specified());
  EXPECT_EQ(plan.steps(), 3u * 10000);
  EXPECT_EQ(plan.jobs, 2u);
  EXPECT_EQ(plan.plot + " " + plan.results.output + " " + plan.progress, "a.svg a.json off");
  EXPECT_EQ(loss_plan_of({"--travel", "differences"}).settings.ranks.travel, sim::Travel::differences);
  EXPECT_EQ(loss_plan_of({"--seeds", "3"}).seeds, (std::vector<uint64_t>{0, 1, 2}));
}

TEST(LossPlan, sizes_fit_the_number_of_ranks_and_each_other) {
  for (const char* peers : {"2", "3", "8", "24", "31", "32", "64", "1024"}) {
    const auto plan = loss_plan_of({"--peers", peers});
    EXPECT_TRUE(sim::check(plan.settings).ok());
    EXPECT_TRUE(plan.settings.ranks.ranges == 1 || plan.settings.ranks.elements >= 128) << peers;
  }
  EXPECT_EQ(loss_plan_of({"--peers", "64", "--ranges", "3"}).settings.ranks.elements, 128u);
  EXPECT_EQ(loss_plan_of({"--peers", "8", "--ranges", "1"}).settings.ranks.elements, 16u);
}

TEST(LossPlan, refuses_unknown_names) {
  expect_loss_refused({"--problem", "drfit"},
                      "--problem 'drfit' is none of all, estimates, drift, fixed-point, network; did you mean 'drift'?");
  expect_loss_refused({"--estimator", "mean"},
                      "--estimator 'mean' is none of stratified, count, count_all, horvitz_thompson, zero_fill");
  expect_loss_refused({"--on-empty", "fail"}, "--on-empty 'fail' is none of hold, own, zero");
  expect_loss_refused({"--travel", "value"}, "--travel 'value' is none of values, differences; did you mean 'values'?");
  expect_loss_refused({"--missed", "x"}, "--missed 'x' is none of stale, zero");
  expect_loss_refused({"--progress", "loud"}, "--progress 'loud' is none of auto, bar, lines, off");
}

TEST(LossPlan, refuses_invalid_and_too_large_numbers) {
  for (const char* wrong : {"0", "1", "1025", "-4", "8x", "99999999999999999999"})
    expect_loss_refused({"--peers=" + std::string(wrong)},
                        "--peers '" + std::string(wrong) + "': expected a whole number from 2 to 1024");
  for (const char* wrong : {"0", "10000001", "1e4"})
    expect_loss_refused({"--steps=" + std::string(wrong)},
                        "--steps '" + std::string(wrong) + "': expected a whole number from 1 to 10000000");
  for (const char* wrong : {"1", "-0.1", "nan", "x"})
    expect_loss_refused({"--rho=" + std::string(wrong)},
                        "--rho '" + std::string(wrong) + "': expected a number from 0 to 0.999");
  for (const char* wrong : {"0", "1001", "7-3", "x", "3-", "0-1000"})
    expect_loss_refused({"--seeds=" + std::string(wrong)},
                        "--seeds '" + std::string(wrong) + "': expected how many, 1 to 1000, or which of them, as in 3-7");
  expect_loss_refused({"--steps", "100", "--burn-in", "100"}, "--burn-in '100': expected a whole number from 0 to 99");
  expect_loss_refused({"--stale-max", "1000001"}, "--stale-max '1000001': expected a whole number from 0 to 1000000");
  expect_loss_refused({"--jobs", "257"}, "--jobs '257': expected a whole number from 1 to 256");
  expect_loss_refused({"--ranges", "4097"}, "--ranges '4097': expected a whole number from 1 to 4096");
}

TEST(LossPlan, refuses_sizes_that_do_not_fit) {
  expect_loss_refused({"--elements", "100"},
                      "--elements '100': expected a multiple of 16, at least 128 with 9 ranges in a shard");
  expect_loss_refused({"--ranges", "2", "--elements", "64"},
                      "--elements '64': expected a multiple of 16, at least 128 with 2 ranges in a shard");
  expect_loss_refused(
      {"--peers", "1024", "--ranges", "4096"},
      "--peers, --ranges, --elements: 1024 ranks with 4096 ranges of 128 elements: more than a simulation can hold");
}

TEST(LossPlan, errors_of_a_loss_model_name_the_wrong_part) {
  expect_loss_refused({"--loss", "1.5"}, "--loss 1.5: bad_loss_model: p=1.5: not a number from 0 to 1");
  expect_loss_refused({"--loss", "links:8>0=0.1"},
                      "--loss links:8>0=0.1: bad_loss_model: names rank 8, but the ranks are 0 to 7");
  expect_loss_refused({"--loss", "1", "--estimator", "horvitz_thompson"},
                      "--estimator horvitz_thompson divides by 1 - p: p must be less than 1");
  expect_loss_refused({"--travel", "differences", "--stale-max", "4"},
                      "--stale-max has no effect with --travel differences: nobody knows how old a copy is");
}

}  // namespace
}  // namespace unisono::lab
