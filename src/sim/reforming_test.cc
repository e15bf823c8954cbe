// A group whose network is split while it computes. The majority goes on, the others end. Members whose death is proven do not
// count.
#include "sim/reforming.h"

#include <gtest/gtest.h>

#include <numeric>

namespace unisono::sim {
namespace {

constexpr Nanos at = 20 * millisecond, run_time = 100 * second;

struct Split {
  ReformReport report;
  std::vector<std::string> problems;
};

struct Death {
  PeerIndex process = 0;
  Nanos notice = never;  // with `never`, the others do not learn of it
};

struct Faults {
  // Says which process is on which side of the network, from time `at` on and for good. Empty: the network stays whole.
  std::vector<bool> side{};
  Nanos notice = never;  // the links between the sides are lost after this time
  std::vector<Death> deaths{};
  bool require_majority = true;
};

void begin_faults(const Faults& faults, Cluster& cluster) {
  for (const auto& death : faults.deaths) cluster.kill(death.process, death.notice);
  if (faults.side.empty()) return;
  cluster.network().partition(faults.side, 10 * run_time);
  for (PeerIndex a = 0; a < cluster.size() && faults.notice != never; ++a) {
    for (PeerIndex b = 0; b < a; ++b) {
      if (faults.side[a] != faults.side[b]) cluster.network().cut(a, b, faults.notice, faults.notice, "no answer");
    }
  }
}

// Runs a group of four.
Split run_split(const Faults& faults) {
  FaultPlan plan;  // for the checks of the run
  for (const auto& death : faults.deaths)
    plan.faults.push_back({.kind = FaultKind::kill, .at = at, .process = death.process, .time = death.notice});
  if (!faults.side.empty()) plan.faults.push_back({.kind = FaultKind::partition, .at = at, .time = never, .side = faults.side});
  Trace trace;
  Cluster cluster({.processes = 4, .seed = 1, .network = {}, .compute = {}, .limits = {}, .topology = {}}, trace);
  cluster.at(at, [&] { begin_faults(faults, cluster); });
  Split split;
  const ReformSettings settings{.calls = 40, .require_majority = faults.require_majority};
  split.report = run_reforming(cluster, plan, settings, run_time, split.problems);
  return split;
}

std::string all(const std::vector<std::string>& lines) {
  return std::accumulate(lines.begin(), lines.end(), std::string(),
                         [](auto text, const auto& line) { return text + line + "\n"; });
}

void expect_removed(const Split& split, uint64_t removed) {
  EXPECT_TRUE(split.problems.empty()) << all(split.problems);
  EXPECT_EQ(split.report.removed, removed);
  EXPECT_GE(split.report.epochs, 1u) << "nobody went on";
}

TEST(ReformingSplit, of_two_halves_the_one_with_rank_0_goes_on) {
  for (const Nanos notice : {5 * millisecond, never})
    expect_removed(run_split({.side = {true, false, true, false}, .notice = notice}), 2);
}

TEST(ReformingSplit, three_of_four_go_on_and_the_fourth_ends) {
  for (const Nanos notice : {5 * millisecond, never}) {
    expect_removed(run_split({.side = {true, true, true, false}, .notice = notice}), 1);
    expect_removed(run_split({.side = {false, true, true, true}, .notice = notice}), 1);
  }
}

TEST(ReformingSplit, without_a_required_majority_both_halves_go_on) {
  expect_removed(run_split({.side = {true, false, true, false}, .notice = 5 * millisecond, .require_majority = false}), 0);
}

TEST(ReformingSplit, after_three_of_four_were_killed_the_last_one_goes_on) {
  expect_removed(run_split({.deaths = {{0, millisecond}, {1, millisecond}, {3, millisecond}}}), 0);
}

TEST(ReformingSplit, after_three_of_four_fell_silent_the_last_one_ends) {
  const auto split = run_split({.deaths = {{0}, {1}, {3}}});
  EXPECT_TRUE(split.problems.empty()) << all(split.problems);
  EXPECT_EQ(split.report.removed, 1u);
}

// The others learn of the kills long after the reform timeout.
TEST(ReformingSplit, a_late_proof_of_deaths_lets_the_last_one_go_on) {
  constexpr Nanos notice = 700 * millisecond;
  expect_removed(run_split({.deaths = {{0, notice}, {1, notice}, {3, notice}}}), 0);
}

}  // namespace
}  // namespace unisono::sim
