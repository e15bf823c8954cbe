// The command line as a newcomer meets it: help, version, wrong words.
#include <gtest/gtest.h>

#include <algorithm>

#include "child_process.h"
#include "unisono/version.h"

namespace unisono::testing {
namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(Tool, help_is_data_and_teaches_by_example) {
  for (const char* word : {"--help", "-h", "help"}) {
    const auto done = run({UNISONO_TOOL, word});
    EXPECT_EQ(done.code, 0);
    EXPECT_EQ(done.error, "");
    for (const char* part : {"launch", "bench", "rendezvous", "unisono launch -n 4 -- ./train"})
      EXPECT_TRUE(contains(done.out, part)) << part;
    EXPECT_FALSE(contains(done.out, "agent ")) << "internal commands are not advertised";
  }
}

TEST(Tool, every_command_explains_itself_with_examples_and_exit_codes) {
  for (const char* command : {"launch", "bench", "top", "explain", "trace", "metrics", "simulate", "drop-compute", "rendezvous",
                              "completion", "man"}) {
    for (const auto& words : {std::vector<std::string>{UNISONO_TOOL, command, "--help"}, {UNISONO_TOOL, "help", command}}) {
      const auto done = run(words);
      EXPECT_EQ(done.code, 0);
      EXPECT_EQ(done.error, "");
      for (const char* part : {"Usage: unisono", "Examples:", "Exit code"})
        EXPECT_TRUE(contains(done.out, part)) << command << part;
    }
  }
}

TEST(Tool, a_command_of_two_words_has_a_page_and_options_of_its_own) {
  for (const auto& words :
       {std::vector<std::string>{UNISONO_TOOL, "simulate", "arc", "--help"}, {UNISONO_TOOL, "help", "simulate", "arc"}}) {
    const auto done = run(words);
    EXPECT_EQ(done.code, 0);
    for (const char* part : {"Usage: unisono simulate arc", "Examples:", "Exit code", "--feedback"})
      EXPECT_TRUE(contains(done.out, part)) << part;
  }
  const auto behind = run({UNISONO_TOOL, "simulate", "--seeds", "1", "arc"});
  EXPECT_EQ(behind.code, 2);
  EXPECT_TRUE(contains(behind.error, "arc comes first, and takes options of its own: unisono simulate arc [OPTIONS]"))
      << behind.error;
  for (const auto& words :
       {std::vector<std::string>{UNISONO_TOOL, "simulate", "loss", "--help"}, {UNISONO_TOOL, "help", "simulate", "loss"}}) {
    const auto done = run(words);
    EXPECT_EQ(done.code, 0);
    for (const char* part : {"Usage: unisono simulate loss", "Examples:", "Exit code", "--stale-max"})
      EXPECT_TRUE(contains(done.out, part)) << part;
  }
  const auto averaging = run({UNISONO_TOOL, "simulate", "averaging", "--help"});
  EXPECT_EQ(averaging.code, 0);
  for (const char* part : {"Usage: unisono simulate averaging", "Examples:", "Exit code", "--compare"})
    EXPECT_TRUE(contains(averaging.out, part)) << part;
  const auto elastic = run({UNISONO_TOOL, "simulate", "elastic", "--help"});
  EXPECT_EQ(elastic.code, 0);
  for (const char* part : {"Usage: unisono simulate elastic", "Examples:", "Exit code", "--churn"})
    EXPECT_TRUE(contains(elastic.out, part)) << part;
  EXPECT_TRUE(contains(run({UNISONO_TOOL, "help", "simulate", "churn-trace"}).out, "Usage: unisono simulate churn-trace"));
  const auto other = run({UNISONO_TOOL, "simulate", "arc", "--faults", "kill"});
  EXPECT_EQ(other.code, 2);
  EXPECT_TRUE(contains(other.error, "there is no option '--faults'")) << other.error;
}

TEST(Tool, a_churn_trace_is_the_same_for_the_same_seed_and_names_what_is_wrong) {
  const auto trace =
      run({UNISONO_TOOL, "simulate", "churn-trace", "--peers", "3", "--min", "2", "--duration", "61s", "--seed", "4"});
  EXPECT_EQ(trace.code, 0);
  EXPECT_TRUE(contains(trace.out, "\n0 2 join\n20 ")) << trace.out;
  EXPECT_EQ(std::count(trace.out.begin(), trace.out.end(), '\n'), 2 + 3 + 3) << trace.out;
  EXPECT_EQ(
      run({UNISONO_TOOL, "simulate", "churn-trace", "--peers", "3", "--min", "2", "--duration", "61s", "--seed", "4"}).out,
      trace.out);
  const auto wrong = run({UNISONO_TOOL, "simulate", "churn-trace", "--peers", "3", "--min", "4"});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_TRUE(contains(wrong.error, "peers_min=4 is not between 1 and peers=3")) << wrong.error;
}

TEST(Tool, drop_compute_says_what_it_can_do) {
  for (const char* action : {"plan", "search", "simulate"}) {
    const auto done = run({UNISONO_TOOL, "help", "drop-compute", action});
    EXPECT_EQ(done.code, 0);
    for (const std::string& part :
         {std::string("Usage: unisono drop-compute ") + action, std::string("Examples:"), std::string("Exit code")})
      EXPECT_TRUE(contains(done.out, part)) << part;
  }
  const auto nothing = run({UNISONO_TOOL, "drop-compute"});
  EXPECT_EQ(nothing.code, 2);
  EXPECT_TRUE(contains(nothing.error, "what is to be done? plan, search or simulate")) << nothing.error;
  const auto wrong = run({UNISONO_TOOL, "drop-compute", "serach"});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_TRUE(contains(wrong.error, "'serach' is none of plan, search, simulate; did you mean 'search'?")) << wrong.error;
}

TEST(Tool, the_version_is_told) {
  const auto done = run({UNISONO_TOOL, "--version"});
  EXPECT_EQ(done.code, 0);
  EXPECT_TRUE(done.out.starts_with("unisono " UNISONO_VERSION " (")) << done.out;
  EXPECT_TRUE(done.out.ends_with(")\n") && !contains(done.out, "()")) << done.out;  // the commit, or "unknown"
}

TEST(Tool, without_a_command_the_overview_goes_to_standard_error) {
  const auto done = run({UNISONO_TOOL});
  EXPECT_EQ(done.code, 2);
  EXPECT_EQ(done.out, "");
  EXPECT_TRUE(contains(done.error, "Commands:"));
}

TEST(Tool, a_mistyped_command_is_answered_with_the_right_one) {
  const auto done = run({UNISONO_TOOL, "lanuch", "-n", "2"});
  EXPECT_EQ(done.code, 2);
  EXPECT_TRUE(contains(done.error, "Did you mean 'launch'?")) << done.error;
  EXPECT_FALSE(contains(run({UNISONO_TOOL, "xyzzy"}).error, "Did you mean"));
}

TEST(Tool, an_agent_without_a_launcher_ends) { EXPECT_FALSE(run({UNISONO_TOOL, "agent"}).timed_out); }

}  // namespace
}  // namespace unisono::testing
