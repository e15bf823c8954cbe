// `unisono tune` with real ranks, and how groups use its file.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/concat.h"
#include "child_process.h"
#include "group_cluster.h"
#include "testing/temporary_folder.h"

namespace unisono::testing {
namespace {

std::string read(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

Words tune(const Words& more, const std::string& rounds = "1") {
  Words words{UNISONO_TOOL, "tune", "--rounds", rounds, "--round-time", "1ms"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

class Tune : public ::testing::Test {
 protected:
  std::string path(const std::string& name = "file.tuning") const { return folder_.path() + "/" + name; }
  void write(const std::string& text) const { std::ofstream(path()) << text; }
  // Runs a call in a group whose ranks use the given tuning files. Returns the ranks' answers.
  std::vector<Line> ask(const std::string& call, std::string transport = "auto", const std::string& rank_0 = "",
                        const std::string& others = "") {
    ClusterOptions options{.transport = std::move(transport), .wrappers = {}};
    for (size_t rank = 0; rank < 3; ++rank) {
      const auto file = rank == 0 ? rank_0 : others;
      options.wrappers.push_back({"env", file.empty() ? "UNISONO_NO_FILE=1" : "UNISONO_TUNING=" + file});
    }
    Cluster group(3, options);
    auto lines = group.ask_all(call);
    expect_all_ok(lines);
    group.finish();
    return lines;
  }
  const test::TemporaryFolder folder_;
};

TEST_F(Tune, writes_a_file_with_the_group_and_keeps_other_groups) {
  write("unisono tuning 1\nstreams 3\ngroup 7 auto\nreduce max tree\n");
  const auto done = run(tune({"all-reduce", "broadcast", "-n", "3", "--sizes", "1K,512K", "-o", path(), "--progress", "off"}));
  EXPECT_EQ(done.code, 0) << done.error;
  for (const auto* row :
       {"all_reduce           1 KiB", "all_reduce         512 KiB", "broadcast            1 KiB", "broadcast          512 KiB"})
    EXPECT_TRUE(contains(done.out, row)) << row << "\n" << done.out;
  const auto text = read(path());
  EXPECT_EQ(text.find("unisono tuning 1\n# 3 ranks as 3, transport auto, "), 0u) << text;
  EXPECT_TRUE(contains(text, "streams 3\ngroup 7 auto\nreduce max tree\ngroup 3 auto\n")) << text;
  // A group can use the file.
  EXPECT_TRUE(ask("all_reduce:count=250003,check=1", "auto", path(), path())[0].ok());
}

TEST_F(Tune, numbers_of_connections_are_tried_if_every_rank_has_its_own_network) {
  // Some containers allow no network name spaces or no TUN interfaces. `unisono tune` then refuses, so skip this test.
  if (run({"unshare", "--net", "true"}).code != 0 || ::access("/dev/net/tun", R_OK | W_OK) != 0)
    GTEST_SKIP() << "SKIPPED: this process may not make network name spaces and TUN interfaces";
  const auto done = run(tune({"all-reduce", "-n", "2", "--sizes", "64K", "--streams", "1,2", "--rate", "1G", "-o", path()}));
  EXPECT_EQ(done.code, 0) << done.error;
  for (const auto* line : {"with 1 connections per pair of hosts: ", "with 2 connections per pair of hosts: ", "# links: "})
    EXPECT_TRUE(contains(done.out, line)) << done.out;
  const auto text = read(path());
  EXPECT_TRUE(contains(text, "\nstreams ")) << text;
  EXPECT_TRUE(contains(text, "\ngroup 1+1 tcp\n")) << text;
}

TEST_F(Tune, the_file_of_rank_0_applies_on_all_ranks) {
  write(
      "unisono tuning 1\ngroup 3 auto\nall_reduce 400000 halving_doubling\nall_reduce max ring slice 131072\ngroup 3 "
      "tcp\nall_reduce max two_step\n");
  for (const auto& others : {path(), std::string()}) {
    for (const auto& line : ask("all_reduce:count=100000,check=1,order=2", "auto", path(), others))
      EXPECT_EQ(line.value("schedule"), "halving_doubling") << line.text;
    for (const auto& line : ask("all_reduce:count=100001,check=1,order=2", "auto", path(), others))
      EXPECT_EQ(line.value("schedule"), "ring") << line.text;
  }
  for (const auto& line : ask("all_reduce:count=100001,check=1", "tcp", path(), path()))
    EXPECT_EQ(line.value("schedule"), "two_step") << line.text;
  // Tuning files of ranks other than 0 have no effect.
  for (const auto& line : ask("all_reduce:count=100001,check=1,order=2", "auto", "", path()))
    EXPECT_NE(line.value("schedule"), "ring") << line.text;
}

TEST_F(Tune, an_explicit_schedule_and_rank_order_override_the_file) {
  write("unisono tuning 1\ngroup 3 auto\nall_reduce max ring\n");
  for (const auto& line : ask("all_reduce:count=100001,check=1,schedule=2,order=2", "auto", path(), path()))
    EXPECT_EQ(line.value("schedule"), "two_step") << line.text;
  for (const auto& line : ask("all_reduce:count=100001,check=1,order=1", "auto", path(), path()))
    EXPECT_NE(line.value("schedule"), "ring") << line.text;
}

TEST_F(Tune, a_file_that_cannot_be_used_ends_the_join_and_is_named) {
  const auto done =
      run({"env", "UNISONO_TUNING=" + path("none"), UNISONO_TOOL, "bench", "all-reduce", "-n", "2", "--sizes", "1K"});
  EXPECT_NE(done.code, 0);
  EXPECT_TRUE(contains(done.error, "the tuning file '" + path("none") + "' cannot be read: No such file or directory"))
      << done.error;
}

TEST_F(Tune, invalid_options_are_refused_before_anything_starts) {
  const std::pair<Words, const char*> cases[] = {{{"all-to-all"}, "is not tuned; these are"},
                                                 {{"all-reduce", "all-reduce"}, "named twice"},
                                                 {{"--streams", "0,2"}, "--streams"},
                                                 {{"--streams", "17"}, "--streams"},
                                                 {{"--gain", "91"}, "--gain"},
                                                 {{"--rounds", "0"}, "--rounds"},
                                                 {{"--round-time", "0"}, "--round-time"},
                                                 {{"-o", ""}, "-o"}};
  for (const auto& [words, message] : cases) {
    auto all = tune({"-n", "2"});
    all.insert(all.end(), words.begin(), words.end());
    const auto done = run(all);
    EXPECT_EQ(done.code, 2) << message << done.error;
    EXPECT_TRUE(contains(done.error, message)) << done.error;
  }
}

TEST_F(Tune, another_kind_of_file_is_not_overwritten) {
  write("my diary\n");
  const auto done = run(tune({"all-reduce", "-n", "2", "--sizes", "1K", "-o", path()}));
  EXPECT_EQ(done.code, 1);
  EXPECT_TRUE(contains(done.error, "the tuning file '" + path() + "': it does not begin with")) << done.error;
  EXPECT_EQ(read(path()), "my diary\n");
  EXPECT_FALSE(contains(done.out, "all_reduce")) << "it was measured first\n" << done.out;
}

TEST_F(Tune, a_file_too_large_to_be_read_is_not_written) {
  std::string full = "unisono tuning 1\n";
  for (int a = 1; full.size() < 65'400; ++a) full += concat("group ", a, "+99 auto\nall_reduce max ring slice 1048576\n");
  write(full);
  const auto done = run(tune({"all-reduce", "-n", "2", "--sizes", "1K", "-o", path()}));
  EXPECT_EQ(done.code, 1) << done.out;
  EXPECT_TRUE(contains(done.error, path() + " would have 65") && contains(done.error, "65536 that a tuning file may have"))
      << done.error;
  EXPECT_EQ(read(path()), full);
}

// Returns the process whose environment has this job and this rank.
pid_t pid_of_rank(const std::string& job, int rank) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::stringstream text;
    text << std::ifstream(entry.path() / "environ").rdbuf();
    const auto variables = '\0' + text.str();
    if (variables.find('\0' + job + '\0') == std::string::npos) continue;
    if (variables.find(concat(std::string("\0RANK=", 6), rank, '\0')) != std::string::npos)
      return std::stoi(entry.path().filename());
  }
  return -1;
}

TEST_F(Tune, a_killed_rank_is_named_and_the_file_stays_as_it_was) {
  const std::string before = "unisono tuning 1\ngroup 7 auto\nreduce max tree\n", job = "UNISONO_TEST_JOB=" + path();
  write(before);
  ChildProcess job_of_three(tune({"-n", "3", "-o", path()}, "1000"), {.environment = {job}});
  ASSERT_TRUE(job_of_three.wait_for("# 3 ranks as 3")) << job_of_three.error();
  const auto victim = pid_of_rank(job, 1);
  ASSERT_GT(victim, 1);
  ::kill(victim, SIGKILL);
  const auto done = job_of_three.wait();
  EXPECT_FALSE(done.timed_out);
  EXPECT_NE(done.code, 0);
  EXPECT_TRUE(contains(done.error, "rank 1")) << done.error;
  EXPECT_EQ(read(path()), before);
}

}  // namespace
}  // namespace unisono::testing
