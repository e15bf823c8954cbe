// `unisono launch` where few file descriptors are free.
#include <gtest/gtest.h>

#include <string>

#include "child_process.h"

namespace unisono::testing {
namespace {

// Runs `unisono launch` with 16 ranks that print their number. shell: what the shell does first.
Finished launch_after(const std::string& shell) {
  return run({"sh", "-c", shell + " && exec \"$0\" \"$@\"", UNISONO_TOOL, "launch", "-n", "16", "--", UNISONO_TEST_PROGRAM,
              "environment", "RANK"});
}

// The agent needs more descriptors than a rank. Ranks get the limit of the launcher's caller, and start with it.
TEST(LaunchDescriptors, ranks_start_under_a_limit_that_the_agent_exceeds) {
  const auto done = launch_after("ulimit -S -n 32");
  EXPECT_EQ(done.code, 0) << done.error;
  EXPECT_NE(done.out.find("[15] RANK=15\n"), std::string::npos) << done.out << done.error;
}

TEST(LaunchDescriptors, an_agent_or_launcher_without_free_descriptors_names_the_limit) {
  for (const std::string limit : {"8", "12", "16", "24", "32"}) {
    const auto done = launch_after("ulimit -n " + limit);
    EXPECT_NE(done.code, 0) << limit;
    EXPECT_NE(done.error.find("this process may have " + limit + "; raise the limit with ulimit -n"), std::string::npos)
        << limit << ": " << done.error;
    EXPECT_EQ(done.error.find("Bad file descriptor"), std::string::npos) << done.error;
  }
}

}  // namespace
}  // namespace unisono::testing
