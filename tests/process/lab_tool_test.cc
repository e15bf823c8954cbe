// `unisono-lab` as a new user meets it: help, and error messages for wrong words.
#include <gtest/gtest.h>

#include <algorithm>

#include "child_process.h"

namespace unisono::testing {
namespace {

TEST(LabTool, help_lists_the_studies_and_no_internal_command) {
  const auto done = run({UNISONO_LAB, "--help"});
  EXPECT_EQ(done.code, 0);
  for (const char* part : {"simulate churn-trace", "drop-compute plan", "bench compress", "completion"})
    EXPECT_TRUE(contains(done.out, part)) << part;
  EXPECT_FALSE(contains(done.out, "agent "));
}

TEST(LabTool, a_command_of_two_words_has_its_own_page_and_options) {
  for (const auto& words :
       {std::vector<std::string>{UNISONO_LAB, "simulate", "arc", "--help"}, {UNISONO_LAB, "help", "simulate", "arc"}}) {
    const auto done = run(words);
    EXPECT_EQ(done.code, 0);
    for (const char* part : {"Usage: unisono-lab simulate arc", "Examples:", "Exit code", "--feedback"})
      EXPECT_TRUE(contains(done.out, part)) << part;
  }
  for (const auto& words :
       {std::vector<std::string>{UNISONO_LAB, "simulate", "loss", "--help"}, {UNISONO_LAB, "help", "simulate", "loss"}}) {
    const auto done = run(words);
    EXPECT_EQ(done.code, 0);
    for (const char* part : {"Usage: unisono-lab simulate loss", "Examples:", "Exit code", "--stale-max"})
      EXPECT_TRUE(contains(done.out, part)) << part;
  }
  const auto averaging = run({UNISONO_LAB, "simulate", "averaging", "--help"});
  EXPECT_EQ(averaging.code, 0);
  for (const char* part : {"Usage: unisono-lab simulate averaging", "Examples:", "Exit code", "--compare"})
    EXPECT_TRUE(contains(averaging.out, part)) << part;
  const auto elastic = run({UNISONO_LAB, "simulate", "elastic", "--help"});
  EXPECT_EQ(elastic.code, 0);
  for (const char* part : {"Usage: unisono-lab simulate elastic", "Examples:", "Exit code", "--churn"})
    EXPECT_TRUE(contains(elastic.out, part)) << part;
  EXPECT_TRUE(contains(run({UNISONO_LAB, "help", "simulate", "churn-trace"}).out, "Usage: unisono-lab simulate churn-trace"));
  const auto other = run({UNISONO_LAB, "simulate", "arc", "--faults", "kill"});
  EXPECT_EQ(other.code, 2);
  EXPECT_TRUE(contains(other.error, "there is no option '--faults'")) << other.error;
}

TEST(LabTool, a_churn_trace_is_the_same_for_the_same_seed_and_errors_are_named) {
  const auto trace =
      run({UNISONO_LAB, "simulate", "churn-trace", "--peers", "3", "--min", "2", "--duration", "61s", "--seed", "4"});
  EXPECT_EQ(trace.code, 0);
  EXPECT_TRUE(contains(trace.out, "\n0 2 join\n20 ")) << trace.out;
  EXPECT_EQ(std::count(trace.out.begin(), trace.out.end(), '\n'), 2 + 3 + 3) << trace.out;
  EXPECT_EQ(run({UNISONO_LAB, "simulate", "churn-trace", "--peers", "3", "--min", "2", "--duration", "61s", "--seed", "4"}).out,
            trace.out);
  const auto wrong = run({UNISONO_LAB, "simulate", "churn-trace", "--peers", "3", "--min", "4"});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_TRUE(contains(wrong.error, "--min '4': expected a whole number from 1 to 3")) << wrong.error;
}

TEST(LabTool, drop_compute_explains_itself) {
  for (const char* action : {"plan", "search", "simulate"}) {
    const auto done = run({UNISONO_LAB, "help", "drop-compute", action});
    EXPECT_EQ(done.code, 0);
    for (const std::string& part :
         {std::string("Usage: unisono-lab drop-compute ") + action, std::string("Examples:"), std::string("Exit code")})
      EXPECT_TRUE(contains(done.out, part)) << part;
  }
  const auto nothing = run({UNISONO_LAB, "drop-compute"});
  EXPECT_EQ(nothing.code, 2);
  EXPECT_TRUE(contains(nothing.error, "a command is missing; there is plan, search, simulate")) << nothing.error;
  const auto wrong = run({UNISONO_LAB, "drop-compute", "serach"});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_TRUE(contains(wrong.error, "'serach' is none of plan, search, simulate; did you mean 'search'?")) << wrong.error;
}

}  // namespace
}  // namespace unisono::testing
