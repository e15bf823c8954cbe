// Records of real processes that run, hang, stop and die.
#include <filesystem>

#include "base/concat.h"
#include "group_cluster.h"

namespace unisono::testing {
namespace {

std::vector<std::string> with_pids(std::vector<std::string> words, Cluster& group) {
  words.insert(words.begin(), UNISONO_TOOL);
  for (size_t rank = 0; rank < group.size(); ++rank) words.insert(words.end(), {"--pid", std::to_string(group[rank].pid())});
  return words;
}

// Repeats the command until its output contains `part`, because a record shows an event with a short delay.
Finished ask_until(const std::vector<std::string>& words, const std::string& part) {
  const auto until = now_ns() + int64_t{20} * slowness * 1'000'000'000;
  for (;;) {
    auto done = run(words);
    if (contains(done.out, part)) return done;
    if (now_ns() < until) continue;
    ADD_FAILURE() << "it does not say " << part << ":\n" << done.out << done.error;
    return done;
  }
}

std::string rank_text(Cluster& group, size_t rank) { return concat("rank ", rank, " (host "); }

class Records : public ::testing::TestWithParam<std::string> {};

TEST_P(Records, of_living_ranks_show_which_rank_has_not_called_and_which_ranks_wait) {
  Cluster group(3, {.transport = GetParam()});
  expect_all_ok(group.ask_all("all_reduce:count=1000"));
  const std::vector<size_t> early{0, 1};
  const auto numbers = group.send_command(early, "all_reduce:count=1000");
  const auto explained = ask_until(with_pids({"explain"}, group), "ranks 0, 1 have waited for it");
  EXPECT_EQ(explained.code, 1);
  EXPECT_TRUE(contains(explained.out, "* " + rank_text(group, 2))) << explained.out;
  EXPECT_TRUE(contains(explained.out,
                       concat("pid ", group[2].pid(), ") has not called all_reduce 1: it is computing, after all_reduce 0")))
      << explained.out;
  EXPECT_TRUE(contains(explained.out, "all_reduce 1: waits for ")) << explained.out;
  EXPECT_EQ(count_of(explained.out, "* "), 1u) << explained.out;
  const auto top = run(with_pids({"top", "--once", "--interval", "20ms"}, group));
  EXPECT_EQ(top.code, 0) << top.error;
  EXPECT_TRUE(contains(top.out, "\n!   2 ") && contains(top.out, "\n    0 ") && contains(top.out, "computing")) << top.out;
  EXPECT_TRUE(contains(run(with_pids({"top", "--once", "--json"}, group)).out, "\"late\":true")) << top.out;
  expect_all_ok(group.ask({2}, "all_reduce:count=1000"));
  expect_all_ok(group.answers(early, numbers));
  const auto after = run(with_pids({"explain"}, group));
  EXPECT_EQ(after.code, 0) << after.out;
  EXPECT_TRUE(contains(after.out, "Nothing is wrong")) << after.out;
  group.finish();
}

TEST_P(Records, name_a_stopped_rank) {
  Cluster group(3, {.transport = GetParam()});
  expect_all_ok(group.ask_all("all_reduce:count=1000"));
  group[2].signal(SIGSTOP);
  ASSERT_TRUE(group[2].wait_stopped());
  const auto numbers = group.send_command({0, 1}, "all_reduce:count=100000");
  const auto explained = ask_until(with_pids({"explain"}, group), "waited for it for");
  EXPECT_TRUE(contains(explained.out, "* " + rank_text(group, 2)) &&
              contains(explained.out, "is stopped (by SIGSTOP or a debugger), after all_reduce 0"))
      << explained.out;
  EXPECT_EQ(count_of(explained.out, "* "), 1u) << explained.out;
  group[2].signal(SIGCONT);
  expect_all_ok(group.ask({2}, "all_reduce:count=100000"));
  expect_all_ok(group.answers({0, 1}, numbers));
  group.finish();
}

TEST_P(Records, in_a_folder_name_a_killed_rank_after_all_are_gone) {
  const test::TemporaryFolder folder;
  std::string pid;
  {
    Cluster group(3, {.transport = GetParam(), .environment = {"UNISONO_RECORD_DIR=" + folder.path() + "/records"}});
    pid = std::to_string(group[2].pid());
    const auto number = group[2].send_command("all_reduce:count=1000000,iters=1000000");
    const auto others = group.send_command({0, 1}, "all_reduce:count=1000000,iters=1000000");
    ASSERT_TRUE(group[2].has_begun(number));
    group[2].signal(SIGKILL);
    EXPECT_TRUE(group[2].wait().by_signal);
    for (const auto& line : group.answers({0, 1}, others)) EXPECT_EQ(line.code(), "peer_lost") << line.text;
    group.finish({0, 1});
  }
  const auto explained = run({UNISONO_TOOL, "explain", folder.path() + "/records"});
  EXPECT_EQ(explained.code, 1);
  EXPECT_TRUE(contains(explained.out, "rank 2 (host ") &&
              contains(explained.out, "pid " + pid + ") is gone without having left the group"))
      << explained.out;
  EXPECT_EQ(count_of(explained.out, "is gone without"), 1u) << explained.out;
  EXPECT_TRUE(contains(explained.out, "ended as peer_lost at rank")) << explained.out;
  const auto trace = run({UNISONO_TOOL, "trace", folder.path() + "/records"});
  EXPECT_EQ(trace.code, 0);
  EXPECT_TRUE(trace.out.starts_with("{") && contains(trace.out, "rank 2 (host ") && contains(trace.out, "peer_lost"))
      << trace.out.substr(0, 500);
}

TEST_P(Records, that_cannot_be_in_their_folder_are_reported_once_in_the_log_and_in_explain) {
  const std::string folder = "/proc/no/such";
  Cluster group(2, {.transport = GetParam(), .environment = {"UNISONO_RECORD_DIR=" + folder}});
  expect_all_ok(group.ask_all("all_reduce:count=1000"));
  const auto text = concat("the record of this group is not in UNISONO_RECORD_DIR (", folder,
                           "), so it is lost when this process ends: No such file or directory (", folder, ")");
  const auto explained = ask_until(with_pids({"explain"}, group), "warning: " + text);
  EXPECT_EQ(count_of(explained.out, text), 2u) << "one event of each rank:\n" << explained.out;
  const auto top = run(with_pids({"top", "--once"}, group));
  EXPECT_TRUE(contains(top.out, "warning: " + text)) << top.out;
  group.finish();
  for (size_t rank = 0; rank < 2; ++rank) {
    const auto errors = group[rank].output();
    EXPECT_EQ(count_of(errors, concat("unisono: warning: ", text, " (record_unavailable; rank ", rank)), 1u) << errors;
  }
}

TEST_P(Records, show_calls_that_differed_and_operations_that_were_late) {
  const test::TemporaryFolder folder;
  Cluster group(3, {.transport = GetParam(), .environment = {"UNISONO_RECORD_DIR=" + folder.path()}});
  const std::vector<std::string> explain{UNISONO_TOOL, "explain", folder.path()};
  std::vector<size_t> numbers;
  for (size_t rank = 0; rank < 3; ++rank)
    numbers.push_back(group[rank].send_command(rank == 1 ? "all_gather:count=1000" : "all_reduce:count=1000"));
  for (const auto& line : group.answers({0, 1, 2}, numbers)) EXPECT_EQ(line.code(), "invalid") << line.text;
  auto explained = run(explain);
  EXPECT_TRUE(contains(explained.out, "* Operation 0 was not the same on all ranks: rank 1 called all_gather(f32, "))
      << explained.out;
  EXPECT_TRUE(contains(explained.out, ", ranks 0, 2 called all_reduce(f32 sum, 4000 bytes)")) << explained.out;
  for (const auto& line : group.ask({0, 1}, "all_reduce:count=1000,timeout=300")) EXPECT_EQ(line.code(), "late") << line.text;
  explained = run(explain);
  EXPECT_TRUE(contains(explained.out, "all_reduce 1 ended as late at ranks 0, 1")) << explained.out;
  EXPECT_TRUE(contains(explained.out, "waited for: rank 2")) << explained.out;
  group.finish();
}

INSTANTIATE_TEST_SUITE_P(Transports, Records, ::testing::Values("shm", "tcp"), name_of);

TEST(Record, counters_are_in_the_api_and_in_metrics_and_begin_anew_after_re_forming) {
  Cluster group(3);
  expect_all_ok(group.ask_all("all_reduce:count=1000,iters=100"));
  expect_all_ok(group.ask_all("barrier"));
  for (size_t rank = 0; rank < 3; ++rank) {
    const auto counters = group[rank].ask("counters");
    EXPECT_EQ(counters.number("begun"), 101) << counters.text;
    EXPECT_EQ(counters.number("ended"), 101) << counters.text;
    EXPECT_EQ(counters.number("kinds"), 2) << counters.text;
    EXPECT_EQ(counters.value(concat("link", rank)), "self") << counters.text;
    EXPECT_EQ(counters.number(concat("sent", rank)), 0) << counters.text;
    const auto other = std::to_string((rank + 1) % 3);
    EXPECT_EQ(counters.value("link" + other), "shm") << counters.text;
    EXPECT_GE(counters.number("sent" + other), 100 * 1000 * 4 / 3) << counters.text;
    EXPECT_GE(counters.number("got" + other), 100 * 1000 * 4 / 3) << counters.text;
  }
  const auto metrics = run(with_pids({"metrics"}, group));
  EXPECT_EQ(metrics.code, 0) << metrics.error;
  EXPECT_EQ(count_of(metrics.out, ",collective=\"all_reduce\"} 100\n"), 6u) << "operations, and their times: " << metrics.out;
  EXPECT_TRUE(metrics.out.ends_with("# EOF\n"));
  group[2].signal(SIGKILL);
  EXPECT_TRUE(group[2].wait().by_signal);
  expect_all_ok(group.ask({0, 1}, "reform"));
  EXPECT_EQ(group[0].ask("counters").number("begun"), 0);
  group.finish({0, 1});
}

TEST(Record, a_requested_record_that_does_not_exist_is_a_failure) {
  const auto nobody = run({UNISONO_TOOL, "metrics", "/no/such/record"});
  EXPECT_EQ(nobody.code, 1);
  EXPECT_TRUE(contains(nobody.error, "/no/such/record: No such file or directory")) << nobody.error;
}

TEST(Record, is_dumped_on_request) {
  Cluster group(2);
  expect_all_ok(group.ask_all("all_reduce:count=10,iters=5"));
  const auto path = group.folder() + "/rank0";
  expect_all_ok(group.ask({0}, "dump:path=" + path));
  EXPECT_TRUE(contains(run({UNISONO_TOOL, "explain", path}).out, "all_reduce 4"));
  const auto refused = group[1].ask("dump:path=/no/such/folder");
  EXPECT_EQ(refused.code(), "unavailable") << refused.text;
  EXPECT_TRUE(refused.says("/no/such/folder")) << refused.text;
  group.finish();
}

TEST(Record, is_not_kept_if_it_is_switched_off) {
  Cluster group(2, {.environment = {"UNISONO_RECORD=0"}});
  expect_all_ok(group.ask_all("all_reduce:count=1000,iters=10"));
  EXPECT_EQ(group[0].ask("counters").number("kinds"), 0);
  EXPECT_EQ(group[0].ask("dump:path=" + group.folder() + "/x").code(), "unavailable");
  const auto explained = run(with_pids({"explain"}, group));
  EXPECT_EQ(explained.code, 1);
  EXPECT_TRUE(contains(explained.error, "no record")) << explained.error;
  group.finish();
}

TEST(Record, is_in_memory_if_its_folder_cannot_be_used_and_the_tool_says_so) {
  Cluster group(2, {.environment = {"UNISONO_RECORD_DIR=/proc/no/such"}});
  expect_all_ok(group.ask_all("all_reduce:count=1000,iters=10"));
  EXPECT_EQ(group[0].ask("counters").number("noted"), 1);
  const auto explained = run(with_pids({"explain"}, group));
  EXPECT_EQ(explained.code, 0) << explained.out;
  EXPECT_TRUE(contains(explained.error, "/proc/no/such")) << explained.error;
  group.finish();
}

TEST(Record, on_a_full_disk_is_in_memory_and_the_tool_says_so) {
  // Mounting needs root, and even root in a container may lack the right.
  if (run({"unshare", "--mount", "true"}).code != 0) GTEST_SKIP() << "SKIPPED: this process may not mount a small disk";
  const test::TemporaryFolder folder;
  const std::vector<std::string> small{"unshare", "--mount", "sh", "-c",
                                       "mount -t tmpfs -o size=4k tmpfs " + folder.path() + " && exec \"$0\" \"$@\""};
  Cluster group(2, {.environment = {"UNISONO_RECORD_DIR=" + folder.path()}, .wrappers = {small, small}});
  expect_all_ok(group.ask_all("all_reduce:count=1000,iters=10"));
  EXPECT_EQ(group[0].ask("counters").number("noted"), 1);
  const auto explained = run(with_pids({"explain"}, group));
  EXPECT_EQ(explained.code, 0) << explained.out;
  EXPECT_TRUE(contains(explained.error, "No space left on device")) << explained.error;
  group.finish();
}

TEST(Record, of_sub_groups_is_beside_that_of_the_whole_group_up_to_a_limit) {
  Cluster group(2);
  for (int i = 0; i < 70; ++i) expect_all_ok(group.ask_all("split:ranks=0/1,name=part"));
  expect_all_ok(group.ask_all("all_reduce:count=1000,group=part"));
  EXPECT_EQ(group[0].ask("counters:group=part").number("kinds"), 0) << "one of too many";
  const auto explained = run(with_pids({"explain"}, group));
  EXPECT_EQ(count_of(explained.out, "sub-group "), 63u) << explained.out;
  group.finish();
}

TEST(Record, top_draws_on_a_terminal_until_it_is_interrupted) {
  Cluster group(2);
  const auto numbers = group.send_command({0, 1}, "all_reduce:count=1000,iters=1000000");
  ASSERT_TRUE(group[0].has_begun(numbers[0]));
  ChildProcess top(with_pids({"top", "--interval", "20ms"}, group), {.terminal = true});
  EXPECT_TRUE(top.wait_for("\033[H\033[J", 3)) << top.out();
  EXPECT_TRUE(contains(top.out(), "ops/s") && contains(top.out(), "group of run")) << top.out();
  top.signal(SIGINT);
  EXPECT_TRUE(top.wait().by_signal);
  for (size_t rank = 0; rank < 2; ++rank) {
    group[rank].signal(SIGKILL);
    EXPECT_TRUE(group[rank].wait().by_signal);
  }
}

TEST(Record, tools_refuse_a_file_that_is_not_a_record_and_a_process_that_does_not_exist) {
  const test::TemporaryFolder folder;
  const auto none = run({UNISONO_TOOL, "explain", folder.path()});
  EXPECT_EQ(none.code, 1);
  EXPECT_TRUE(contains(none.error, "no file there ends with .record")) << none.error;
  const auto other = run({UNISONO_TOOL, "explain", UNISONO_TOOL});
  EXPECT_EQ(other.code, 1);
  EXPECT_TRUE(contains(other.error, "not a record of this version")) << other.error;
  EXPECT_EQ(run({UNISONO_TOOL, "explain", "/no/such/file"}).code, 1);
  for (const char* pid : {"x", "0", "2147483647"}) EXPECT_EQ(run({UNISONO_TOOL, "top", "--once", "--pid", pid}).code, 2) << pid;
  EXPECT_EQ(run({UNISONO_TOOL, "trace", "--pid", "1", "x"}).code, 2);
}

}  // namespace
}  // namespace unisono::testing
