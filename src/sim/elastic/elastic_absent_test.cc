// The reports of averaging steps name the peers whose values are missing: peers that were killed or have left, and peers whose
// values are not finite. No report is without a reason for not being exact.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "base/concat.h"
#include "sim/elastic/elastic_replay.h"
#include "sim/elastic/steered_peers_test_support.h"

namespace unisono::sim {

namespace {

using Names = std::vector<std::string>;

bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Runs averaging steps of these peers until a step is exact at all of them. Returns the reports of the other steps.
std::vector<AveragingReport> reports_until_exact(SteeredPeers& peers, const std::vector<uint32_t>& who) {
  std::vector<AveragingReport> reports;
  for (int step = 0; step < 60; ++step) {
    const auto done = peers.average(who);
    if (std::ranges::all_of(done, [](const FinishedStep& one) { return one.report.exact; })) return reports;
    for (const auto& one : done) reports.push_back(one.report);
    peers.run(second);
  }
  ADD_FAILURE() << "no averaging step was exact; the last report: " << reports.back().to_string();
  return reports;
}

// Returns the reports of survivors of a peer that is killed at this time after an averaging step has begun.
std::vector<AveragingReport> reports_after_kill(SteeredPeers& peers, uint32_t victim, std::vector<uint32_t> who, Nanos after) {
  for (const auto index : who) EXPECT_TRUE(peers.begin(index).ok());
  peers.run(after);
  peers.network.kill(victim);
  std::erase(who, victim);
  EXPECT_NE(peers.run_to_end(who), never);
  std::vector<AveragingReport> reports;
  for (const auto index : who) reports.push_back(peers.take(index).report);
  const auto later = reports_until_exact(peers, who);
  reports.insert(reports.end(), later.begin(), later.end());
  return reports;
}

}  // namespace

TEST(ElasticAbsent, every_report_names_a_killed_peer_until_a_layout_lacks_it) {
  SteeredPeers peers(4);
  peers.average({0, 1, 2, 3});
  peers.network.kill(3);
  peers.run(soon);
  const auto reports = reports_until_exact(peers, {0, 1, 2});
  EXPECT_GE(reports.size(), 9u) << "three survivors, some steps";
  for (const auto& report : reports) {
    ASSERT_EQ(report.rounds.size(), 1u);
    EXPECT_EQ(report.rounds[0].outcome, "averaged");
    EXPECT_EQ(report.rounds[0].absent, Names{"peer 3 (dead)"});
    EXPECT_EQ(report.note, "not exact; absent: peer 3 (dead)");
  }
}

TEST(ElasticAbsent, every_report_names_a_peer_that_left_until_a_layout_lacks_it) {
  SteeredPeers peers(4);
  peers.average({0, 1, 2, 3});
  peers.leave(1);
  peers.run(soon);
  const auto reports = reports_until_exact(peers, {0, 2, 3});
  EXPECT_GE(reports.size(), 9u) << "three survivors, some steps";
  for (const auto& report : reports) {
    EXPECT_EQ(report.rounds.at(0).absent, Names{"peer 1 (left)"});
    EXPECT_EQ(report.note, "not exact; absent: peer 1 (left)");
  }
}

TEST(ElasticAbsent, the_last_of_two_names_the_other) {
  SteeredPeers peers(2);
  peers.average({0, 1});
  peers.network.kill(1);
  peers.run(soon);
  const auto reports = reports_until_exact(peers, {0});
  ASSERT_FALSE(reports.empty());
  for (const auto& report : reports) {
    EXPECT_EQ(report.rounds.at(0).outcome, "alone");
    EXPECT_EQ(report.rounds.at(0).absent, Names{"peer 1 (dead)"});
    EXPECT_EQ(report.note, "not exact; absent: peer 1 (dead)");
  }
}

TEST(ElasticAbsent, a_peer_that_does_not_come_is_named) {
  SteeredPeers peers(3);
  peers.average({0, 1, 2});
  for (const auto& done : peers.average({0, 1})) {
    EXPECT_EQ(done.report.rounds.at(0).absent, Names{"peer 2 (did not register)"});
    EXPECT_EQ(done.report.note, "not exact; absent: peer 2 (did not register)");
  }
}

// In a grid, most survivors are never in a group with the victim.
TEST(ElasticAbsent, survivors_in_other_lines_of_a_grid_name_a_killed_peer_in_the_note) {
  SteeredPeers peers(9, 4, {3, 3});
  std::vector<uint32_t> who{0, 1, 2, 3, 4, 5, 6, 7, 8};
  peers.average(who);
  peers.network.kill(8);
  who.pop_back();
  peers.run(second);
  const auto reports = reports_until_exact(peers, who);
  EXPECT_GE(reports.size(), 3u * 8u);
  size_t in_rounds = 0;
  for (const auto& report : reports) {
    EXPECT_EQ(report.note, "not exact; absent: peer 8 (dead)");
    for (const auto& round : report.rounds) in_rounds += round.absent.size();
  }
  EXPECT_EQ(in_rounds, reports.size() / 8 * 4) << "two lines of two survivors lacked it";
}

TEST(ElasticAbsent, a_peer_killed_at_any_moment_is_named_in_every_report_that_is_not_exact) {
  size_t named = 0;
  for (const bool grid : {false, true}) {
    for (Nanos after = 0; after < 3 * millisecond; after += 100 * microsecond) {
      SteeredPeers peers(4, 4, grid ? std::vector<uint32_t>{2, 2} : std::vector<uint32_t>{});
      peers.average({0, 1, 2, 3});
      for (const auto& report : reports_after_kill(peers, 2, {0, 1, 2, 3}, after)) {
        if (report.exact) continue;
        ++named;
        EXPECT_TRUE(says(report.note, "peer 2 (")) << after / microsecond << " us: " << report.to_string();
        for (const auto* innocent : {"peer 0 (", "peer 1 (", "peer 3 ("})
          EXPECT_FALSE(says(report.to_string(), innocent)) << after / microsecond << " us: " << report.to_string();
      }
    }
  }
  EXPECT_GE(named, 1000u);
}

TEST(ElasticAbsent, a_report_that_is_not_exact_says_why) {
  SteeredPeers peers(2);
  peers.average({0, 1});
  const auto joiner = peers.add();
  ASSERT_TRUE(peers.run(10 * second, [&] { return peers.peer(joiner).ready(); }));
  const auto done = peers.average({0, 1, joiner});
  EXPECT_EQ(done[0].report.note, "");
  EXPECT_EQ(done[2].report.note, "not exact: this peer is new, and its values do not count yet");
  auto options = options_for(9, 4);
  options.settings.rounds = 1;
  CountedRun run(9, options);
  ASSERT_TRUE(run.run_steps(1, 60 * second));
  for (const auto& report : run.reports)
    EXPECT_EQ(report.note, "not exact: the grid has 2 axes, and the step had 1 rounds") << report.to_string();
}

namespace {

// Peers of a run of which one contributes values that are not finite, in the first of two chunks.
struct Poisoned {
  static constexpr uint32_t count = 9, bad = 4;
  static constexpr size_t first_chunk = 256;
  explicit Poisoned(CommitRule commit, std::vector<uint32_t> dims) : run(count, options(commit, std::move(dims), replay)) {
    run.cluster.prepare = [this](uint32_t index, std::vector<float>& values) {
      values = values_of(index, few_elements);
      if (index == bad && !mended) values[17] = value;
      return index + 1.0;
    };
  }
  static ElasticClusterOptions options(CommitRule commit, std::vector<uint32_t> dims, ElasticReplay& replay) {
    auto all = options_for(count, 16);
    all.settings.commit = commit;
    all.settings.dims = std::move(dims);
    all.settings.watch = &replay;
    return all;
  }

  float value = std::numeric_limits<float>::quiet_NaN();
  bool mended = false;
  ElasticReplay replay;
  CountedRun run;
};

}  // namespace

TEST(ElasticAbsent, values_that_are_not_finite_reach_no_other_peer) {
  for (const auto commit : {CommitRule::agreed, CommitRule::per_result}) {
    for (const auto& dims : {std::vector<uint32_t>{9}, {3, 3}}) {
      for (const float value : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
        Poisoned job(commit, dims);
        job.value = value;
        ASSERT_TRUE(job.run.run_steps(3, 60 * second));
        for (uint32_t index = 0; index < Poisoned::count; ++index) {
          const auto& report = job.run.reports[index];
          const auto& result = job.run.results[index];
          EXPECT_FALSE(report.exact);
          for (size_t i = 0; i < few_elements; ++i)
            ASSERT_EQ(std::isfinite(result[i]), index != Poisoned::bad || i != 17) << index << ": " << i;
          EXPECT_EQ(std::memcmp(&result[Poisoned::first_chunk], &job.run.results[0][Poisoned::first_chunk],
                                (few_elements - Poisoned::first_chunk) * sizeof(float)),
                    0)
              << "the other chunk has the mean of all";
          if (dims.size() > 1 && report.rounds[0].refused + report.rounds[1].refused == 0) {
            EXPECT_EQ(report.note, "not exact: groups of other lines lacked peers");
            continue;
          }
          EXPECT_EQ(report.note, "not exact; absent: peer 4 (values that are not finite in 1 of 2 chunks)");
          if (dims.size() == 1) EXPECT_EQ(report.rounds[0].refused, 1u);
        }
        EXPECT_EQ(job.replay.counts().wrong, 0u) << job.replay.counts().examples.front();
        job.mended = true;
        job.run.resume();
        ASSERT_TRUE(job.run.run_steps(5, 120 * second));
        for (const auto& report : job.run.reports) EXPECT_TRUE(report.exact) << report.to_string();
      }
    }
  }
}

}  // namespace unisono::sim
