#include "cli/common/job_outcome.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <csignal>

namespace unisono::cli {
namespace {

JobOutcome running(uint32_t count) {
  JobOutcome outcome{std::vector<std::string>(count)};
  for (uint32_t rank = 0; rank < count; ++rank) outcome.started(rank, 39 + rank);
  return outcome;
}

TEST(JobOutcome, the_first_failure_is_named_with_its_signal_and_time) {
  auto outcome = running(4);
  outcome.ended(2, {.by_signal = true, .code = SIGKILL, .after = 1'240 * millisecond}, false);
  EXPECT_EQ(outcome.running_count(), 3u);
  for (const uint32_t rank : {0, 1, 3}) outcome.ended(rank, {.by_signal = true, .code = SIGTERM, .after = 2 * second}, true);
  EXPECT_EQ(outcome.first_failure(), "rank 2 (pid 41) was killed by signal 9 (SIGKILL) after 1.24 s");
  EXPECT_EQ(outcome.others(), "ranks 0, 1, 3 were ended");
  EXPECT_EQ(outcome.exit_code(), 137);
}

TEST(JobOutcome, all_good_is_exit_code_0) {
  auto outcome = running(2);
  outcome.ended(0, {}, false);
  outcome.ended(1, {}, false);
  EXPECT_FALSE(outcome.has_failure());
  EXPECT_EQ(outcome.exit_code(), 0);
}

TEST(JobOutcome, an_allowed_failure_is_described_and_does_not_fail_the_job) {
  auto outcome = running(3);
  outcome.allow_failure(1);
  outcome.allow_failure(7);
  outcome.ended(1, {.by_signal = true, .code = SIGKILL, .after = second}, false);
  EXPECT_FALSE(outcome.has_failure());
  EXPECT_EQ(outcome.describe(1), "rank 1 (pid 40) was killed by signal 9 (SIGKILL) after 1 s");
  EXPECT_EQ(outcome.exit_code(), 0);
  outcome.ended(2, {.code = 3, .after = second}, false);
  EXPECT_EQ(outcome.exit_code(), 3);
}

TEST(JobOutcome, later_failures_do_not_replace_the_first) {
  auto outcome = running(3);
  outcome.ended(1, {.code = 3, .after = second}, false);
  outcome.ended(0, {.code = 1, .after = second}, false);
  outcome.ended(2, {}, false);
  EXPECT_EQ(outcome.exit_code(), 3);
  EXPECT_EQ(outcome.first_failure(), "rank 1 (pid 40) exited with code 3 after 1 s");
  EXPECT_EQ(outcome.others(), "rank 0 exited with code 1; rank 2 finished");
}

TEST(JobOutcome, programs_that_do_not_start_have_the_shells_codes) {
  JobOutcome missing{{"", ""}};
  missing.refused(0, {ENOENT, "cannot start './x'"});
  EXPECT_EQ(missing.exit_code(), 127);
  EXPECT_EQ(missing.first_failure(), "rank 0: cannot start './x'");
  EXPECT_EQ(missing.others(), "rank 1 was not started");
  JobOutcome forbidden{{""}};
  forbidden.refused(0, {EACCES, "cannot start"});
  EXPECT_EQ(forbidden.exit_code(), 126);
}

TEST(JobOutcome, a_remote_rank_is_named_with_its_host) {
  JobOutcome outcome{{"a", "b"}};
  outcome.started(1, 7);
  outcome.lost(1, "host b does not answer");
  outcome.lost(1, "again");
  EXPECT_EQ(outcome.first_failure(), "rank 1 (host b, pid 7) was lost: host b does not answer");
  EXPECT_EQ(outcome.exit_code(), exit_code_launcher);
}

TEST(JobOutcome, a_rank_that_ended_is_not_lost_afterwards_and_unknown_ranks_are_ignored) {
  auto outcome = running(1);
  outcome.ended(0, {}, false);
  outcome.lost(0, "agent gone");
  outcome.ended(9, {.code = 1}, false);
  outcome.started(9, 1);
  EXPECT_EQ(outcome.exit_code(), 0);
}

}  // namespace
}  // namespace unisono::cli
