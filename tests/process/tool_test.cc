// The command line as a new user meets it: help, version, and error messages for wrong words.
#include <gtest/gtest.h>

#include "child_process.h"
#include "unisono/version.h"

namespace unisono::testing {
namespace {

TEST(Tool, help_goes_to_standard_output_and_has_examples) {
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
  for (const char* command : {"launch", "bench", "top", "explain", "trace", "metrics", "simulate", "codec", "key", "rendezvous",
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

TEST(Tool, the_version_names_the_tool_and_the_commit) {
  const auto done = run({UNISONO_TOOL, "--version"});
  EXPECT_EQ(done.code, 0);
  EXPECT_TRUE(done.out.starts_with("unisono " UNISONO_VERSION " (")) << done.out;
  // the version ends with the commit or "unknown" in parentheses
  EXPECT_TRUE(done.out.ends_with(")\n") && !contains(done.out, "()")) << done.out;
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
