// `unisono launch --rate`, --loss and --delay: any program over links that the launcher emulates.
#include <gtest/gtest.h>
#include <unistd.h>

#include "child_process.h"

namespace unisono::testing {
namespace {

Finished launch(const Words& options, const Words& program) {
  Words words{UNISONO_TOOL, "launch"};
  words.insert(words.end(), options.begin(), options.end());
  words.push_back("--");
  words.insert(words.end(), program.begin(), program.end());
  return run(words);
}

class LaunchLinks : public ::testing::Test {
 protected:
  void SetUp() override {
    // Emulated links need TUN interfaces in network name spaces. Some containers allow neither. `unisono launch` then refuses,
    // so skip these tests.
    const bool possible = run({"unshare", "--net", "true"}).code == 0 && ::access("/dev/net/tun", R_OK | W_OK) == 0;
    if (!possible) GTEST_SKIP() << "SKIPPED: this process may not make network name spaces and TUN interfaces";
  }
};

TEST_F(LaunchLinks, each_rank_is_a_host_of_its_own_with_one_link) {
  const auto done =
      launch({"-n", "3", "--rate", "100M"},
             {"sh", "-c",
              "echo $RANK $(cat /proc/sys/kernel/hostname) $UNISONO_TRANSPORT $MASTER_ADDR $(grep -c link0 /proc/net/dev)"});
  EXPECT_EQ(done.code, 0) << whole(done);
  for (const std::string rank : {"0", "1", "2"}) {
    EXPECT_TRUE(contains(done.out, "[" + rank + "] " + rank + " rank-" + rank + " tcp 10.77.0.1 1\n")) << whole(done);
  }
}

TEST_F(LaunchLinks, ranks_inherit_the_key_of_the_job) {
  const auto done = launch({"-n", "2", "--rate", "1G"}, {"sh", "-c", "cat /proc/self/fd/$UNISONO_KEY_FD | wc -c"});
  EXPECT_EQ(done.code, 0) << whole(done);
  for (const std::string rank : {"0", "1"}) EXPECT_TRUE(contains(done.out, "[" + rank + "] 64\n")) << whole(done);
}

// The program has no options for emulated links. Its group must still use them, and each operation must take their delay.
TEST_F(LaunchLinks, groups_of_any_program_go_over_the_links) {
  const auto done = launch({"-n", "2", "--delay", "20ms", "--no-prefix"},
                           {UNISONO_TOOL, "bench", "all-reduce", "--sizes", "1K", "--iters", "3", "--progress", "off"});
  EXPECT_EQ(done.code, 0) << whole(done);
  EXPECT_TRUE(contains(done.out, "ranks: rank-0 x1, rank-1 x1")) << done.out;
  EXPECT_TRUE(contains(done.out, " 0 OK")) << done.out;
  const auto row = done.out.find("  1024 ");
  ASSERT_NE(row, std::string::npos) << done.out;
  double microseconds = 0;
  ASSERT_EQ(std::sscanf(done.out.c_str() + row, "%*s %*s %*s %*s %*s %lf", &microseconds), 1) << done.out;
  EXPECT_GE(microseconds, 20'000);
}

TEST_F(LaunchLinks, a_rank_may_end_before_others_and_the_exit_code_is_that_of_the_failed_rank) {
  const auto done = launch({"-n", "3", "--rate", "1G"}, {"sh", "-c", "test $RANK != 1 || exit 7"});
  EXPECT_EQ(done.code, 7) << whole(done);
  EXPECT_TRUE(contains(done.error, "rank 1 ")) << done.error;
}

TEST_F(LaunchLinks, a_program_that_does_not_exist_is_named) {
  const auto done = launch({"-n", "2", "--loss", "1%"}, {"./no-such-program"});
  EXPECT_EQ(done.code, 127) << whole(done);
  EXPECT_TRUE(contains(done.error, "cannot start './no-such-program': No such file or directory")) << done.error;
}

// Lowers the limit of network name spaces inside a new user name space, so that no other process is affected.
TEST_F(LaunchLinks, an_unprivileged_user_learns_what_they_require) {
  const auto done =
      run({"unshare", "--user", "--map-root-user", "sh", "-c",
           "echo 0 > /proc/sys/user/max_net_namespaces && exec \"$0\" launch -n 2 --rate 100M -- true", UNISONO_TOOL});
  EXPECT_EQ(done.code, 1) << whole(done);
  EXPECT_TRUE(
      contains(done.error, "--rate, --loss and --delay are not possible here: this process may not make network name spaces"))
      << done.error;
}

TEST(LaunchLinksWords, contradicting_options_are_refused_before_anything_starts) {
  const std::pair<Words, const char*> wrong[] = {
      {{"--rate", "slow"}, "--rate"},
      {{"--delay", "soon"}, "--delay"},
      {{"--loss", "2"}, "--loss"},
      {{"--rate", "1G", "--hosts", "a:2"}, "not for --hosts"},
      {{"--rate", "1G", "--transport", "shm"}, "--transport shm"},
      {{"--rate", "1G", "--interface", "eth0"}, "omit --rendezvous and --interface"}};
  for (const auto& [options, said] : wrong) {
    Words all{"-n", "2"};
    all.insert(all.end(), options.begin(), options.end());
    const auto done = launch(all, {"true"});
    EXPECT_EQ(done.code, 2) << said;
    EXPECT_TRUE(contains(done.error, said)) << done.error;
  }
}

TEST(LaunchLinksWords, an_emulated_rank_without_a_launcher_is_refused) {
  const auto done = run({UNISONO_TOOL, "emulated-rank", "--", "true"});
  EXPECT_EQ(done.code, 2);
  EXPECT_TRUE(contains(done.error, "unisono launch starts this, with --rate")) << done.error;
}

}  // namespace
}  // namespace unisono::testing
