// Tests elastic runs whose groups follow from keys (docs/design/methods/moshpit.md, "The published rule"). With M^d peers,
// results are exact and no two peers meet twice. With other numbers, reports say that results are not exact. Means stay correct
// when peers die.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "elastic/layout/moshpit_key.h"
#include "lab/elastic/elastic_study.h"
#include "sim/elastic/elastic_cluster_test_support.h"

namespace unisono::sim {
namespace {

// Records the members of every group, and the sequence of groups of every peer.
struct RendezvousPoints final : RoundObserver {
  struct Stop {
    SlotName slot;
    uint32_t position = 0;  // the peer's slot in the group
    bool failed = false;    // no chunk was averaged
  };
  void began(const RoundView& view) override {
    groups[view.group.id] = view.group;
    paths[view.self].push_back(
        {.slot = view.group.slot, .position = view.group.members[view.group.rank_of(view.self)].position});
  }
  void ended(const RoundView& view, const MoshpitRound& round) override {
    bool applied = false;
    for (uint32_t chunk = 0; chunk < view.states.size(); ++chunk) applied |= round.applied(chunk) != nullptr;
    paths[view.self].back().failed = !applied;
  }

  std::map<GroupId, GroupDescriptor> groups;
  std::map<PeerId, std::vector<Stop>> paths;
};

ElasticClusterOptions keyed(uint32_t peers, uint32_t group, uint64_t seed = 1) {
  auto options = options_for(peers, group, seed);
  options.settings.grid = GridKind::chunk_keys;
  options.seeds_given = 64;  // all peers start at once, so each needs enough seed addresses to reach the founder
  return options;
}

// Returns the values that peer `index` contributes to an averaging step.
std::vector<float> given(uint32_t index, uint32_t step) { return values_of(index + 1000 * step, few_elements); }
std::vector<double> mean_of(uint32_t peers, uint32_t step) {
  std::vector<double> mean(few_elements);
  for (uint32_t index = 0; index < peers; ++index) {
    const auto values = given(index, step);
    for (size_t i = 0; i < few_elements; ++i) mean[i] += values[i] / static_cast<double>(peers);
  }
  return mean;
}

double error_of(const CountedRun& run, uint32_t step) {
  const auto mean = mean_of(static_cast<uint32_t>(run.results.size()), step);
  double error = 0;
  for (const auto& result : run.results) {
    for (size_t i = 0; i < few_elements; ++i) error = std::max(error, std::abs(result[i] - mean[i]));
  }
  return error;
}

void give_new_values(CountedRun& run) {
  run.cluster.prepare = [&run](uint32_t index, std::vector<float>& values) {
    values = given(index, run.steps[index]);
    return 1.0;
  };
}

// Expects that all groups are complete, and that no two peers meet twice within `digits` rounds.
void expect_whole_and_apart(const RendezvousPoints& rendezvous_points, uint32_t group, uint32_t digits) {
  std::map<uint64_t, std::vector<const GroupDescriptor*>> by_round;
  for (const auto& [id, one] : rendezvous_points.groups) by_round[one.slot.step * digits + one.slot.round].push_back(&one);
  std::map<std::pair<PeerId, PeerId>, uint64_t> last;
  for (const auto& [round, groups] : by_round) {
    EXPECT_EQ(groups.size(), static_cast<size_t>(std::lround(std::pow(group, digits - 1))));
    for (const auto* one : groups) {
      ASSERT_EQ(one->members.size(), group);
      for (const auto& a : one->members) {
        for (const auto& b : one->members) {
          if (!(a.id < b.id)) continue;
          const auto [found, first] = last.try_emplace({a.id, b.id}, round);
          ASSERT_TRUE(first || round - found->second >= digits) << "together in rounds " << found->second << " and " << round;
          found->second = round;
        }
      }
    }
  }
}

TEST(ElasticKeys, a33_a_full_grid_is_exact_after_d_rounds_in_which_no_pair_meets_twice) {
  for (const auto& [group, digits] : {std::pair{4u, 2u}, {4u, 3u}}) {
    const auto peers = static_cast<uint32_t>(std::lround(std::pow(group, digits)));
    RendezvousPoints rendezvous_points;
    auto options = keyed(peers, group);
    options.settings.watch = &rendezvous_points;
    CountedRun run(peers, options);
    give_new_values(run);
    for (uint32_t step = 0; step < 3; ++step) {
      if (step > 0) run.resume();
      ASSERT_TRUE(run.run_steps(step + 1, (step + 1) * 60 * second)) << peers;
      EXPECT_LE(error_of(run, step), 1e-6) << peers << " peers, averaging step " << step;
      for (const auto& report : run.reports) EXPECT_TRUE(report.exact && report.note.empty()) << report.to_string();
    }
    EXPECT_EQ(rendezvous_points.groups.size(), 3 * digits * peers / group);
    expect_whole_and_apart(rendezvous_points, group, digits);
  }
}

TEST(ElasticKeys, a33_one_round_less_is_neither_exact_nor_near_it) {
  auto options = keyed(64, 4);
  options.settings.rounds = 2;
  CountedRun run(64, options);
  give_new_values(run);
  ASSERT_TRUE(run.run_steps(1, 60 * second));
  EXPECT_GT(error_of(run, 0), 1e-3);
  for (const auto& report : run.reports) EXPECT_FALSE(report.exact) << report.to_string();
}

TEST(ElasticKeys, one_group_of_all_is_exact_for_every_number_of_peers) {
  CountedRun run(3, keyed(3, 4));
  ASSERT_TRUE(run.run_steps(2, 60 * second));
  for (const auto& report : run.reports) EXPECT_TRUE(report.exact && report.note.empty()) << report.to_string();
}

TEST(ElasticKeys, grids_that_are_not_full_are_never_exact_and_warn_once) {
  for (const auto kind : {GridKind::chunk_keys, GridKind::published}) {
    RendezvousPoints rendezvous_points;
    auto options = keyed(10, 4);
    options.settings.grid = kind;
    options.settings.watch = &rendezvous_points;
    CountedRun run(10, options);
    std::map<uint32_t, std::vector<std::string>> notes;
    run.cluster.on_step = [&, counted = run.cluster.on_step](uint32_t index, const FinishedStep& step) {
      counted(index, step);
      notes[index].push_back(step.report.note);
      EXPECT_FALSE(step.report.exact) << step.report.to_string();
    };
    ASSERT_TRUE(run.run_steps(3, 120 * second));
    const auto name = kind == GridKind::published ? "published" : "chunk_keys";
    for (const auto& [index, said] : notes) {
      EXPECT_EQ(said.front(), std::string("the grid ") + name + " is exact only if full: 10 peers are not as many as 4x4");
      EXPECT_EQ(std::ranges::count(said, std::string()), std::ssize(said) - 1) << index;
    }
    for (const auto& [id, group] : rendezvous_points.groups) EXPECT_LE(group.members.size(), 4u);
  }
}

// Expects how a key changes: the oldest digit goes, and the peer's slot in the group becomes the newest digit. Returns the
// number of changes that were checked.
size_t expect_keys_to_lead_on(const RendezvousPoints& rendezvous_points, uint32_t group, uint32_t keys) {
  size_t steps = 0;
  for (const auto& [peer, path] : rendezvous_points.paths) {
    for (size_t i = 1; i < path.size(); ++i) {
      if (path[i].slot.layout_version != path[i - 1].slot.layout_version) continue;
      EXPECT_EQ(path[i].slot.line, (path[i - 1].slot.line * group + path[i - 1].position) % keys)
          << to_string(path[i].slot) << " after " << to_string(path[i - 1].slot);
      ++steps;
    }
  }
  return steps;
}

TEST(ElasticKeys, keys_change_with_each_assembled_group_and_stay_without_one) {
  RendezvousPoints rendezvous_points;
  // 16 keys for 20 peers, so most groups are small; after a death some groups have one member
  auto options = keyed(20, 4);
  options.settings.elements = 50'000;
  options.links.bytes_per_second = 200e3;  // slow links, so that peers die during rounds
  options.settings.watch = &rendezvous_points;
  CountedRun run(20, options);
  std::map<std::string, uint64_t> outcomes;
  run.cluster.on_step = [&](uint32_t, const FinishedStep& step) {
    for (const auto& round : step.report.rounds) ++outcomes[round.outcome];
  };
  Random random(5);
  for (uint32_t death = 0; death < 12; ++death) {
    run.cluster.run(run.cluster.now() + 2 * second + static_cast<Nanos>(random.below(3 * second)));
    std::vector<uint32_t> live;
    for (uint32_t index = 0; index < run.cluster.size(); ++index) {
      if (run.cluster.peer(index) != nullptr) live.push_back(index);
    }
    run.cluster.kill(live[random.below(live.size())]);
    run.cluster.add(run.cluster.now() + second);
  }
  run.cluster.run(run.cluster.now() + 20 * second);
  EXPECT_GT(expect_keys_to_lead_on(rendezvous_points, 4, 16), 100u);
  EXPECT_GT(outcomes["averaged"], 100u);
  EXPECT_GT(outcomes["alone"], 10u);
  // Keys must change even if a round fails, so the run must have a failed round that is followed by another one.
  size_t failed = 0;
  for (const auto& [peer, path] : rendezvous_points.paths) {
    for (size_t i = 1; i < path.size(); ++i)
      failed += path[i - 1].failed && path[i].slot.layout_version == path[i - 1].slot.layout_version ? 1 : 0;
  }
  EXPECT_GT(failed, 0u);
}

TEST(ElasticKeys, a_peer_outside_the_layout_takes_the_key_of_its_identity_and_enlarges_no_group) {
  RendezvousPoints rendezvous_points;
  auto options = keyed(16, 4);
  options.settings.times.relayout_period = 3600 * second;
  options.compute = 100 * millisecond;
  options.settings.watch = &rendezvous_points;
  CountedRun run(16, options);
  ASSERT_TRUE(run.run_steps(2, 60 * second));
  run.resume();
  std::map<std::string, uint64_t> outcomes;
  uint64_t said_exact = 0;
  const auto newcomer = run.cluster.add(run.cluster.now() + second);
  run.cluster.on_step = [&](uint32_t index, const FinishedStep& step) {
    if (index != newcomer) return;
    said_exact += step.report.exact ? 1 : 0;
    for (const auto& round : step.report.rounds) ++outcomes[round.outcome];
  };
  run.cluster.run(run.cluster.now() + 10 * second);
  const auto& path = rendezvous_points.paths[run.cluster.id_of(newcomer)];
  ASSERT_FALSE(path.empty());
  const auto* layout = run.cluster.peer(0)->keeper().newest_layout();
  ASSERT_EQ(layout->peers.size(), 16u);
  EXPECT_EQ(path.front().slot.line, first_key(*layout, run.cluster.id_of(newcomer)));
  EXPECT_GT(outcomes["averaged"], 5u);
  EXPECT_EQ(said_exact, 0u);
  expect_keys_to_lead_on(rendezvous_points, 4, 4);
  for (const auto& [id, group] : rendezvous_points.groups) {
    EXPECT_LE(group.members.size(), 4u);
    const bool all_named = std::ranges::all_of(group.members, [](const GroupMember& member) { return member.in_layout; });
    EXPECT_EQ(group.line_complete, all_named && group.members.size() == 4);
  }
}

TEST(ElasticKeys, a_reducer_does_not_change_the_averages) {
  auto options = keyed(16, 4);
  CountedRun run(16, options);
  auto reducer = options.settings;
  reducer.role = ElasticRole::reducer;
  run.cluster.add(reducer, 0);
  run.cluster.prepare = [&run](uint32_t index, std::vector<float>& values) {
    if (index < 16) values = given(index, run.steps[index]);
    return 1.0;
  };
  ASSERT_TRUE(run.run_steps(2, 60 * second));
  EXPECT_LE(error_of(run, 1), 1e-6);
  for (const auto& report : run.reports) EXPECT_TRUE(report.exact) << report.to_string();
}

TEST(ElasticKeys, every_mean_is_correct_if_peers_die_or_stop) {
  for (const uint32_t peers : {16u, 22u}) {
    ElasticStudyOptions options;
    options.cluster = keyed(peers, 4);
    options.cluster.settings.min_peers = peers / 2;
    options.cluster.compute = millisecond / 4;
    options.peers = peers;
    options.steps = 30;
    options.absence = 0.1;
    options.limit = 900 * second;
    auto trace = make_churn({.peers = peers,
                             .peers_min = peers / 2,
                             .period = 3 * second,
                             .duration = 60 * second,
                             .kill_share = 0.7,
                             .stop_share = 0.2,
                             .seed = 3});
    ASSERT_TRUE(trace.ok());
    options.trace = *trace;
    const auto result = study_elastic(options);
    ASSERT_TRUE(result.ok()) << result.status().to_string();
    EXPECT_TRUE(result->completed && result->problem.empty()) << result->problem;
    for (const auto& example : result->replay.examples) ADD_FAILURE() << example;
    EXPECT_EQ(result->replay.wrong, 0u);
    EXPECT_GT(result->replay.chunks, 0u);
    EXPECT_GT(result->replay.absences, 0u);
    EXPECT_GT(result->kills, 2u);
    EXPECT_LE(result->replay.weight_error, 1e-12);
    EXPECT_LE(result->replay.value_error, 1e-6);
  }
}

}  // namespace
}  // namespace unisono::sim
