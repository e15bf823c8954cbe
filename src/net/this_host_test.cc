#include "net/this_host.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

namespace unisono {
namespace {

TEST(ThisHost, is_known_by_its_boot_and_its_network) {
  const auto host = host_identity();
  ASSERT_TRUE(host.ok()) << host.status().to_string();
  EXPECT_EQ(host->boot.size(), 36u);
  EXPECT_NE(host->network, 0u);
  EXPECT_EQ(*host_identity(), *host);
}

TEST(ThisHost, another_network_name_space_is_another_host) {
  const auto host = host_identity();
  ASSERT_TRUE(host.ok());
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (::unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) ::_exit(2);
    const auto there = host_identity();
    ::_exit(there.ok() && there->boot == host->boot && there->network != host->network ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  // Only a process with this right can have a second network on one host.
  if (WEXITSTATUS(status) == 2) GTEST_SKIP() << "SKIPPED: this process may not make network name spaces";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace unisono
