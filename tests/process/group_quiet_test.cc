// A waiting rank does not spin, an idle group does nothing, and groups with more ranks than cores make progress.
#include <gtest/gtest.h>

#include <algorithm>

#include "group_cluster.h"

namespace unisono::testing {
namespace {

class Quiet : public ::testing::TestWithParam<std::string> {
 protected:
  ClusterOptions options() const { return {.transport = GetParam()}; }
};

struct Spent {
  int64_t cpu_us, voluntary;
};

Spent between(const Line& before, const Line& after) {
  return {after.number("cpu_us") - before.number("cpu_us"), after.number("voluntary") - before.number("voluntary")};
}

TEST_P(Quiet, ranks_that_wait_a_second_for_another_use_nearly_no_cpu_time) {
  Cluster group(3, options());
  const std::vector<size_t> waiting{0, 2};
  expect_all_ok(group.ask_all("all_reduce:count=10,iters=10"));
  const auto before = group.ask(waiting, "usage");
  for (const auto& line : group.ask(waiting, "all_reduce:count=10,timeout=1000")) EXPECT_EQ(line.code(), "late") << line.text;
  const auto after = group.ask(waiting, "usage");
  for (size_t i = 0; i < waiting.size(); ++i) {
    const auto spent = between(before[i], after[i]);
    std::printf("    waiting 1 s: %lld us of CPU, %lld sleeps\n", static_cast<long long>(spent.cpu_us),
                static_cast<long long>(spent.voluntary));
    EXPECT_LT(spent.cpu_us, 50'000 * slowness);
  }
  group.finish();
}

// The group is idle for one second. No test code sleeps: the second ends at the deadline of a barrier in another group.
TEST_P(Quiet, an_idle_group_uses_no_cpu_time_even_after_a_death) {
  Cluster group(4, options());
  Cluster clock(2, options());
  const std::vector<size_t> left{1, 2, 3};
  expect_all_ok(group.ask_all("all_reduce:count=10,iters=10"));
  for (const bool dead : {false, true}) {
    if (dead) {
      group[0].signal(SIGKILL);
      EXPECT_TRUE(group[0].wait().by_signal);
    }
    const auto before = group.ask(left, "usage");
    EXPECT_EQ(clock[0].ask("barrier:timeout=1000").code(), "late");
    expect_all_ok(clock.ask_all("reform"));
    const auto after = group.ask(left, "usage");
    for (size_t i = 0; i < left.size(); ++i) {
      const auto spent = between(before[i], after[i]);
      std::printf("    idle 1 s%s: %lld us of CPU, %lld sleeps\n", dead ? ", rank 0 dead" : "",
                  static_cast<long long>(spent.cpu_us), static_cast<long long>(spent.voluntary));
      EXPECT_LT(spent.cpu_us, 20'000 * slowness);
      EXPECT_LE(spent.voluntary, 20);
    }
  }
  expect_all_ok(group.ask(left, "reform"));
  expect_all_ok(group.ask(left, "all_reduce:count=1000"));
  group.finish(left);
  clock.finish();
}

void expect_bounded(Cluster& group, const std::string& what, int64_t limit_ms) {
  const auto lines = group.ask_all("all_reduce:count=1000,iters=200");
  expect_all_ok(lines);
  int64_t longest = 0;
  for (const auto& line : lines) longest = std::max(longest, line.number("us"));
  expect_within(what + ", 200 all-reduces of 4 kB", longest * 1000, limit_ms);
}

TEST_P(Quiet, eight_ranks_on_few_cores_make_progress) {
  Cluster group(8, options());
  expect_bounded(group, "8 ranks", 8000);
  expect_all_ok(group.ask_all("pin:cpu=0"));
  expect_bounded(group, "8 ranks on one core", 16000);
  group.finish();
}

TEST_P(Quiet, ranks_pinned_to_one_core_before_they_join_make_progress) {
  Cluster group(4,
                {.transport = GetParam(),
                 .wrappers = {{"taskset", "-c", "0"}, {"taskset", "-c", "0"}, {"taskset", "-c", "0"}, {"taskset", "-c", "0"}}});
  expect_bounded(group, "4 ranks on one core", 8000);
  group.finish();
}

INSTANTIATE_TEST_SUITE_P(All, Quiet, ::testing::Values("shm", "tcp"), name_of);

}  // namespace
}  // namespace unisono::testing
