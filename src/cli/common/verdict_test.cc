#include "cli/common/verdict.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <csignal>

namespace unisono::cli {
namespace {

Verdict running(uint32_t count) {
  Verdict verdict{std::vector<std::string>(count)};
  for (uint32_t rank = 0; rank < count; ++rank) verdict.started(rank, 39 + rank);
  return verdict;
}

TEST(Verdict, the_first_failure_is_named_with_its_signal_and_time) {
  auto verdict = running(4);
  verdict.ended(2, {.by_signal = true, .code = SIGKILL, .after = 1'240 * millisecond}, false);
  EXPECT_EQ(verdict.running_count(), 3u);
  for (const uint32_t rank : {0, 1, 3}) verdict.ended(rank, {.by_signal = true, .code = SIGTERM, .after = 2 * second}, true);
  EXPECT_EQ(verdict.first_failure(), "rank 2 (pid 41) was killed by signal 9 (SIGKILL) after 1.24 s");
  EXPECT_EQ(verdict.others(), "ranks 0, 1, 3 were ended");
  EXPECT_EQ(verdict.exit_code(), 137);
}

TEST(Verdict, all_good_is_exit_code_0) {
  auto verdict = running(2);
  verdict.ended(0, {}, false);
  verdict.ended(1, {}, false);
  EXPECT_FALSE(verdict.has_failure());
  EXPECT_EQ(verdict.exit_code(), 0);
}

TEST(Verdict, how_a_forgiven_rank_ends_is_told_and_is_no_failure) {
  auto verdict = running(3);
  verdict.forgive(1);
  verdict.forgive(7);
  verdict.ended(1, {.by_signal = true, .code = SIGKILL, .after = second}, false);
  EXPECT_FALSE(verdict.has_failure());
  EXPECT_EQ(verdict.describe(1), "rank 1 (pid 40) was killed by signal 9 (SIGKILL) after 1 s");
  EXPECT_EQ(verdict.exit_code(), 0);
  verdict.ended(2, {.code = 3, .after = second}, false);
  EXPECT_EQ(verdict.exit_code(), 3);
}

TEST(Verdict, later_failures_do_not_replace_the_first) {
  auto verdict = running(3);
  verdict.ended(1, {.code = 3, .after = second}, false);
  verdict.ended(0, {.code = 1, .after = second}, false);
  verdict.ended(2, {}, false);
  EXPECT_EQ(verdict.exit_code(), 3);
  EXPECT_EQ(verdict.first_failure(), "rank 1 (pid 40) exited with code 3 after 1 s");
  EXPECT_EQ(verdict.others(), "rank 0 exited with code 1; rank 2 finished");
}

TEST(Verdict, programs_that_do_not_start_have_the_shells_codes) {
  Verdict missing{{"", ""}};
  missing.refused(0, {ENOENT, "cannot start './x'"});
  EXPECT_EQ(missing.exit_code(), 127);
  EXPECT_EQ(missing.first_failure(), "rank 0: cannot start './x'");
  EXPECT_EQ(missing.others(), "rank 1 was not started");
  Verdict forbidden{{""}};
  forbidden.refused(0, {EACCES, "cannot start"});
  EXPECT_EQ(forbidden.exit_code(), 126);
}

TEST(Verdict, a_remote_rank_is_named_with_its_host) {
  Verdict verdict{{"a", "b"}};
  verdict.started(1, 7);
  verdict.lost(1, "host b does not answer");
  verdict.lost(1, "again");
  EXPECT_EQ(verdict.first_failure(), "rank 1 (host b, pid 7) was lost: host b does not answer");
  EXPECT_EQ(verdict.exit_code(), exit_code_launcher);
}

TEST(Verdict, a_rank_that_ended_is_not_lost_afterwards_and_strange_ranks_are_ignored) {
  auto verdict = running(1);
  verdict.ended(0, {}, false);
  verdict.lost(0, "agent gone");
  verdict.ended(9, {.code = 1}, false);
  verdict.started(9, 1);
  EXPECT_EQ(verdict.exit_code(), 0);
}

}  // namespace
}  // namespace unisono::cli
