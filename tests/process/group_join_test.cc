// New processes join a running group at its next re-forming.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "base/concat.h"
#include "group_cluster.h"

namespace unisono::testing {
namespace {

class Join : public ::testing::TestWithParam<std::string> {
 protected:
  ClusterOptions options() const { return {.transport = GetParam()}; }
};

// Waits until the process has a socket besides the one at which it listens: its connection to the rendezvous.
void wait_until_it_asks(const RankProcess& newcomer) {
  for (int64_t end = now_ns() + 20'000'000'000; now_ns() < end;) {
    size_t sockets = 0;
    std::error_code gone;
    for (const auto& entry : std::filesystem::directory_iterator(concat("/proc/", newcomer.pid(), "/fd"), gone)) {
      sockets += std::filesystem::read_symlink(entry.path(), gone).string().starts_with("socket:");
    }
    if (sockets >= 2) return;
  }
  ADD_FAILURE() << "the newcomer does not come";
}

// Re-forms until the group has the wanted size. That may take several times, until the new process reaches the rendezvous.
std::vector<Line> reform_until(Cluster& group, const std::vector<size_t>& members, int64_t world) {
  std::vector<Line> lines;
  for (int i = 0; i < 2000; ++i) {
    lines = group.ask(members, "reform");
    for (const auto& line : lines) EXPECT_TRUE(line.ok()) << line.text;
    if (::testing::Test::HasFailure() || lines[0].number("world") >= world) break;
  }
  for (const auto& line : lines) EXPECT_EQ(line.number("world"), world) << line.text;
  return lines;
}

TEST_P(Join, one_process_becomes_the_last_rank) {
  Cluster group(2, options());
  auto& newcomer = group.add_joiner();
  reform_until(group, {0, 1}, 3);
  const auto joined = newcomer.answer(0);
  EXPECT_TRUE(joined.ok()) << joined.text;
  EXPECT_EQ(joined.number("rank"), 2);
  EXPECT_EQ(joined.number("world"), 3);
  const auto lines = group.ask_all("all_reduce:count=100003,hash=1");
  expect_all_ok(lines);
  for (const auto& line : lines) EXPECT_EQ(line.value("hash"), lines[0].value("hash"));
  expect_all_ok(group.ask_all("matrix:counts=0/3"));
  // The newcomer can re-form like the others.
  expect_all_ok(group.ask_all("reform"));
  expect_all_ok(group.ask_all("all_reduce:count=100003"));
  group.finish();
}

// Returns the measured link speeds, by which these ranks choose schedules. All ranks must have the same bits.
std::string links_of(Cluster& group, const std::vector<size_t>& members) {
  const auto lines = group.ask(members, "links");
  for (const auto& line : lines) {
    EXPECT_EQ(line.value("inside"), lines[0].value("inside"));
    EXPECT_EQ(line.value("between"), lines[0].value("between"));
  }
  EXPECT_TRUE(lines[0].value("inside").ends_with("/measured")) << lines[0].text;
  EXPECT_TRUE(lines[0].value("between").ends_with("/starting")) << lines[0].text;
  return lines[0].value("inside");
}

TEST_P(Join, links_are_measured_again_and_equal_on_all_ranks) {
  Cluster group(3, options());
  const auto first = links_of(group, {0, 1, 2});
  group[0].signal(SIGKILL);  // the next rank 0 must keep the measurements of the old one
  for (const auto& line : group.ask({1, 2}, "all_reduce:count=10")) EXPECT_EQ(line.code(), "peer_lost") << line.text;
  expect_all_ok(group.ask({1, 2}, "reform"));
  EXPECT_EQ(links_of(group, {1, 2}), first);
  // A new measurement may happen to give the same bits once, but not three times.
  std::vector<size_t> members{1, 2};
  bool measured_again = false;
  for (int64_t world = 3; world <= 5; ++world) {
    auto& newcomer = group.add_joiner();
    reform_until(group, members, world);
    EXPECT_TRUE(newcomer.answer(0).ok());
    members.push_back(group.size() - 1);
    measured_again |= links_of(group, members) != first;
  }
  EXPECT_TRUE(measured_again);
  group.finish(members);
}

TEST_P(Join, two_processes_at_once_join_together_or_one_after_another) {
  Cluster group(2, options());
  auto& first = group.add_joiner();
  auto& second = group.add_joiner();
  std::vector<size_t> members{0, 1};
  int64_t world = 2;
  for (int i = 0; i < 2000 && world < 4; ++i) {
    const auto lines = group.ask(members, "reform");
    expect_all_ok(lines);
    ASSERT_FALSE(HasFailure());
    const auto now = lines[0].number("world");
    if (now == 3 && world == 2) {  // one newcomer has joined and must re-form with the others from now on
      const auto joined = lines[0].value("joined");
      members.push_back(joined.find(std::to_string(first.pid())) != std::string::npos ? 2 : 3);
    }
    world = now;
  }
  ASSERT_EQ(world, 4);
  EXPECT_TRUE(first.answer(0).ok());
  EXPECT_TRUE(second.answer(0).ok());
  expect_all_ok(group.ask_all("matrix:counts=0/3"));
  group.finish();
}

TEST_P(Join, a_process_that_dies_while_waiting_does_not_join_and_does_no_harm) {
  Cluster group(2, options());
  auto& newcomer = group.add_joiner();
  wait_until_it_asks(newcomer);
  newcomer.signal(SIGKILL);
  EXPECT_TRUE(newcomer.wait().by_signal);
  for (int i = 0; i < 3; ++i) {
    for (const auto& line : group.ask({0, 1}, "reform")) {
      EXPECT_TRUE(line.ok()) << line.text;
      EXPECT_EQ(line.number("world"), 2) << line.text;
    }
    expect_all_ok(group.ask({0, 1}, "all_reduce:count=100003"));
  }
  group.finish({0, 1});
}

TEST_P(Join, a_process_that_dies_while_joining_does_no_harm) {
  Cluster group(3, options());
  const std::vector<size_t> members{0, 1, 2};
  for (int turn = 0; turn < 4; ++turn) {
    auto& newcomer = group.add_joiner();
    wait_until_it_asks(newcomer);
    // delays the death by a little more in each turn
    for (int i = 0; i < turn; ++i) expect_all_ok(group.ask(members, "usage"));
    const auto numbers = group.send_command(members, "reform");
    newcomer.signal(SIGKILL);
    EXPECT_TRUE(newcomer.wait().by_signal);
    auto lines = group.answers(members, numbers);
    for (const auto& line : lines) {
      EXPECT_TRUE(line.ok()) << line.text;
      expect_within("re-formed, epoch " + line.value("epoch") + ", world " + line.value("world"), line.number("us") * 1000,
                    2500);
    }
    // The newcomer may have joined just before it died; the next re-forming removes it.
    if (lines[0].number("world") == 4) lines = group.ask(members, "reform");
    for (const auto& line : lines) ASSERT_EQ(line.number("world"), 3) << line.text;
    expect_all_ok(group.ask(members, "all_reduce:count=100003"));
  }
  group.finish(members);
}

TEST_P(Join, replaces_a_dead_rank) {
  Cluster group(3, options());
  group[1].signal(SIGKILL);
  EXPECT_TRUE(group[1].wait().by_signal);
  auto& newcomer = group.add_joiner();
  reform_until(group, {0, 2}, 3);
  EXPECT_TRUE(newcomer.answer(0).ok());
  expect_all_ok(group.ask({0, 2, 3}, "matrix:counts=0/3"));
  group.finish({0, 2, 3});
}

TEST_P(Join, replaces_rank_0_which_served_the_rendezvous) {
  Cluster group(3, options());
  group[0].signal(SIGKILL);
  EXPECT_TRUE(group[0].wait().by_signal);
  expect_all_ok(group.ask({1, 2}, "reform"));
  auto& newcomer = group.add_joiner();
  reform_until(group, {1, 2}, 3);
  const auto joined = newcomer.answer(0);
  EXPECT_TRUE(joined.ok()) << joined.text;
  EXPECT_EQ(joined.number("rank"), 2);
  expect_all_ok(group.ask({1, 2, 3}, "matrix:counts=0/3"));
  group.finish({1, 2, 3});
}

TEST_P(Join, ends_by_its_timeout_if_the_group_does_not_re_form) {
  Cluster group(2, options());
  RankProcess lonely(group.folder(), "lonely",
                     {"UNISONO_TRANSPORT=" + GetParam(), "UNISONO_RENDEZVOUS=file://" + group.folder() + "/meeting"},
                     {"join:running=1,timeout=500"});
  const auto line = lonely.answer(0);
  EXPECT_TRUE(line.code() == "late" || line.code() == "unavailable") << line.text;
  lonely.finish();
  expect_all_ok(group.ask({0, 1}, "reform"));
  expect_all_ok(group.ask({0, 1}, "all_reduce:count=10"));
  group.finish({0, 1});
}

INSTANTIATE_TEST_SUITE_P(All, Join, ::testing::Values("shm", "tcp", "udp"), name_of);

}  // namespace
}  // namespace unisono::testing
