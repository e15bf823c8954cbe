#include "lab/common/option_words.h"

#include <gtest/gtest.h>

namespace unisono::lab {
namespace {

TEST(DropWords, parse_rules_reads_one_rule_or_all) {
  EXPECT_EQ(parse_rules("all").value(), (std::vector{DropRule::after, DropRule::before, DropRule::at}));
  for (const auto rule : {DropRule::after, DropRule::before, DropRule::at})
    EXPECT_EQ(parse_rules(rule_name(rule)).value(), std::vector{rule});
  EXPECT_EQ(parse_rules("befor").status().message(),
            "--rule 'befor' is none of after, before, at, all; did you mean 'before'?");
}

TEST(DropWords, parse_seconds_needs_a_time_with_a_unit) {
  EXPECT_EQ(parse_seconds("--comm", "250ms", false).value(), .25);
  EXPECT_EQ(parse_seconds("--comm", "0", false).value(), 0);
  EXPECT_EQ(parse_seconds("--mean", "40ns", true).value(), 4e-8);
  EXPECT_EQ(parse_seconds("--mean", "0.2ns", true).status().message(), "--mean '0.2ns': expected a time above 0, in whole ns");
  EXPECT_EQ(parse_seconds("--mean", "-1s", true).status().message(), "--mean '-1s' is not a time such as 5s or 200ms");
}

TEST(DropWords, an_empty_choice_has_the_defaults_of_the_library) {
  const auto nothing = drop_choice_of({}, 12);
  ASSERT_TRUE(nothing.ok());
  DropOptions automatic;
  automatic.threshold = DropOptions::Threshold::automatic;
  EXPECT_EQ(*nothing, automatic);
  const auto all = drop_choice_of(
      {.lag = "2", .min_computed = "0", .objective = "total", .slack = "0", .max_drop = "0.05", .min_gain = "0.5"}, 12);
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(all->lag, 2u);
  EXPECT_EQ(all->min_computed, 0u);
  EXPECT_EQ(all->objective, DropOptions::Objective::total);
  EXPECT_EQ(all->slack, 0);
  EXPECT_EQ(all->max_drop, .05);
  EXPECT_EQ(all->min_gain, .5);
}

TEST(DropWords, choice_errors_name_the_wrong_option) {
  const auto message = [](const DropChoiceOptions& options) { return drop_choice_of(options, 12).status().message(); };
  EXPECT_EQ(message({.lag = "13"}), "--lag '13': expected a whole number from 0 to 12");
  EXPECT_EQ(message({.min_computed = "x"}), "--min-computed 'x': expected a whole number from 0 to 12");
  EXPECT_EQ(message({.objective = "mean"}), "--objective 'mean' is none of step_mean, total");
  EXPECT_EQ(message({.max_drop = "2"}), "--max-drop '2': expected a number from 0 to 1");
}

TEST(DropWords, times_are_printed_with_a_unit) {
  EXPECT_EQ(time_text(11.317274), "11.317 s");
  EXPECT_EQ(time_text(.25), "250 ms");
  EXPECT_EQ(time_text(.99999999), "1 s") << "not 1000 ms";
  EXPECT_EQ(time_text(1.5e-5), "15 us");
  EXPECT_EQ(time_text(1.6e-8), "16 ns");
  EXPECT_EQ(time_text(0), "0 s");
  EXPECT_EQ(time_text(8.8e-14), "0 s") << "of whole ns";
  EXPECT_EQ(percent_text(.098715), "9.87 %");
  EXPECT_EQ(plural(1, "micro-batch", "es") + ", " + plural(12, "micro-batch", "es") + ", " + plural(2, "step"),
            "1 micro-batch, 12 micro-batches, 2 steps");
}

TEST(DropWords, numbers_of_workers_are_powers_of_two_and_the_last) {
  EXPECT_EQ(powers_of_two_to(1), std::vector<uint64_t>{1});
  EXPECT_EQ(powers_of_two_to(2), std::vector<uint64_t>{2});
  EXPECT_EQ(powers_of_two_to(8), (std::vector<uint64_t>{2, 4, 8}));
  EXPECT_EQ(powers_of_two_to(12), (std::vector<uint64_t>{2, 4, 8, 12}));
}

}  // namespace
}  // namespace unisono::lab
