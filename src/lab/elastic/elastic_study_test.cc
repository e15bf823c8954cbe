// Tests whole elastic runs. Also tests that the replay of rounds detects errors.
#include "lab/elastic/elastic_study.h"

#include <gtest/gtest.h>

#include <functional>
#include <utility>

#include "sim/elastic/elastic_cluster_test_support.h"

namespace unisono::sim {
namespace {

ElasticStudyOptions study_of(uint32_t peers, uint64_t steps, double absence = 0) {
  ElasticStudyOptions options;
  options.cluster = options_for(peers, 8);
  options.peers = peers;
  options.steps = steps;
  options.absence = absence;
  options.limit = 600 * second;
  return options;
}

void expect_correct(const Result<ElasticStudyResult>& result) {
  ASSERT_TRUE(result.ok()) << result.status().to_string();
  EXPECT_TRUE(result->completed) << result->problem;
  EXPECT_EQ(result->problem, "");
  for (const auto& example : result->replay.examples) ADD_FAILURE() << example;
  EXPECT_EQ(result->replay.wrong, 0u);
  EXPECT_GT(result->replay.chunks, 0u);
  EXPECT_LE(result->replay.weight_error, 1e-12);
  EXPECT_LE(result->replay.value_error, 1e-6);
}

TEST(ElasticStudy, without_absences_every_step_is_exact) {
  const auto result = study_elastic(study_of(20, 6));
  expect_correct(result);
  EXPECT_EQ(result->steps, 20u * 6);
  EXPECT_EQ(result->exact, result->steps);
  EXPECT_EQ(result->replay.absences, 0u);
  EXPECT_EQ(result->outcomes, (std::map<std::string, uint64_t>{{"averaged", 2 * result->steps}}));
  EXPECT_EQ(result->by_step.size(), 6u);
  EXPECT_EQ(result->by_step.at(5).peers, 20u);
  EXPECT_EQ(result->seconds.size(), result->steps);
}

TEST(ElasticStudy, absent_peers_are_left_out_and_every_mean_is_that_of_the_others) {
  auto options = study_of(40, 15, 0.02);
  options.cluster.compute = millisecond / 4;  // computing is short, so that most absences begin during rounds
  const auto result = study_elastic(options);
  expect_correct(result);
  EXPECT_GT(result->stops, 5u);
  EXPECT_GT(result->replay.absences, 0u);
  EXPECT_LT(result->exact, result->steps);
  EXPECT_GT(result->exact, 0u);
}

TEST(ElasticStudy, peers_come_and_go_by_a_trace) {
  auto options = study_of(8, 60);
  options.cluster.settings.min_peers = 1;
  options.cluster.compute = 200 * millisecond;
  auto trace = make_churn({.peers = 8,
                           .peers_min = 4,
                           .period = 2 * second,
                           .duration = 20 * second,
                           .kill_share = 0.7,
                           .stop_share = 0.2,
                           .seed = 3});
  ASSERT_TRUE(trace.ok());
  options.trace = *trace;
  ElasticStudyProgress last;
  const auto result = study_elastic(options, [&](const ElasticStudyProgress& progress) {
    EXPECT_GE(progress.steps, last.steps);
    EXPECT_GE(progress.now, last.now);
    last = progress;
  });
  expect_correct(result);
  EXPECT_GE(last.steps, 60u);
  EXPECT_GT(result->events_left, 0u) << "the run makes its averaging steps, and no more";
  EXPECT_GT(result->kills, 0u);
  EXPECT_GT(result->joins, 8u);
  EXPECT_GT(result->loaded, 0u) << "of the run's state";
  EXPECT_GT(result->present.size(), 8u);
}

ChurnTrace trace_of(std::string_view text) {
  auto trace = ChurnTrace::parse(text);
  EXPECT_TRUE(trace.ok()) << trace.status().to_string();
  return trace.ok() ? *std::move(trace) : ChurnTrace{};
}

TEST(ElasticStudy, a_run_lasts_until_the_end_of_its_trace_if_until_is_set) {
  auto options = study_of(3, 1);
  options.trace = trace_of("0 0 join\n0 1 join\n0 2 join\n4 1 leave\n5 7 join\n");
  options.until = options.trace.events.back().at;
  const auto result = study_elastic(options);
  expect_correct(result);
  EXPECT_GE(result->ended, 5 * second);
  EXPECT_LT(result->ended, 10 * second);
  EXPECT_EQ(result->by_step.rbegin()->second.peers, 3u) << "all end the last averaging step";
  EXPECT_EQ(result->events_left, 0u);
  EXPECT_EQ(result->loaded, 1u);
  EXPECT_EQ(result->present, (std::vector<std::pair<Nanos, uint32_t>>{{0, 3}, {4 * second, 2}, {5 * second, 3}}));
}

TEST(ElasticStudy, a_peer_stopped_by_the_trace_stays_stopped_after_an_absence) {
  uint64_t steps = 0;
  // In some of these runs, peer 3 is already absent when the trace stops it.
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    auto options = study_of(6, 1, 0.5);
    options.cluster.seed = seed;
    options.away = second;
    options.cluster.settings.times.suspect_time = 60 * second;
    options.trace = trace_of("0 0 join\n0 1 join\n0 2 join\n0 3 join\n0 4 join\n0 5 join\n2 3 stop\n20 3 continue\n");
    options.until = 21 * second;
    const auto result = study_elastic(options);
    expect_correct(result);
    for (const auto& [step, tally] : result->by_step) {
      // By 8 s, all averaging steps that began before peer 3 stopped have ended.
      if (tally.ended < 8 * second || tally.ended >= 20 * second) continue;
      EXPECT_LE(tally.peers, 5u) << "seed " << seed << ", averaging step " << step;
      ++steps;
    }
  }
  EXPECT_GT(steps, 30u);
}

TEST(ElasticStudy, a_peer_that_leaves_while_stopped_says_goodbye_after_it_continues) {
  auto options = study_of(4, 1, 0.9);
  options.away = second;
  options.trace = trace_of("0 0 join\n0 1 join\n0 2 join\n0 3 join\n3 2 leave\n4 3 leave\n5 2 join\n");
  options.until = 10 * second;
  const auto result = study_elastic(options);
  expect_correct(result);
  EXPECT_EQ(result->leaves, 2u);
  EXPECT_EQ(result->present.back().second, 3u);
}

TEST(ElasticStudy, a_peer_that_leaves_before_its_start_never_joined) {
  auto options = study_of(4, 2);
  options.trace = trace_of(
      "0 0 join\n0 1 join\n0 1000 join\n0 1001 join\n0.5 1000 leave\n0.5 1001 kill\n0.5 2 join\n0.5 2 kill\n0.5 2 join\n");
  options.cluster.settings.min_peers = 3;
  const auto result = study_elastic(options);
  expect_correct(result);
  EXPECT_EQ(result->joins, 6u);
  EXPECT_EQ(result->by_step.at(1).peers, 3u);
}

TEST(ElasticStudy, a_peer_that_cannot_join_is_named_and_does_not_delay_the_end) {
  auto options = study_of(4, 3);
  options.cluster.settings.min_peers = options.cluster.settings.max_peers = 3;
  const auto result = study_elastic(options);
  ASSERT_TRUE(result.ok());
  EXPECT_TRUE(result->completed);
  EXPECT_NE(result->problem.find("peer 3 did not join: ROSTER_FULL"), std::string::npos) << result->problem;
  EXPECT_EQ(result->by_step.at(2).peers, 3u);
}

TEST(ElasticStudy, a_run_without_peers_does_not_complete) {
  auto options = study_of(2, 1);
  options.trace = trace_of("0 0 join\n0 1 join\n0 0 kill\n0 1 kill\n");
  const auto result = study_elastic(options);
  ASSERT_TRUE(result.ok());
  EXPECT_FALSE(result->completed);
  EXPECT_EQ(result->kills, 2u);
}

TEST(ElasticStudy, the_same_seed_gives_the_same_run) {
  const auto options = study_of(16, 5, 0.02);
  const auto one = study_elastic(options), other = study_elastic(options);
  expect_correct(one);
  EXPECT_EQ(one->messages, other->messages);
  EXPECT_EQ(one->ended, other->ended);
  EXPECT_EQ(one->seconds, other->seconds);
}

TEST(ElasticStudy, a_run_that_cannot_begin_ends_at_its_limit) {
  auto options = study_of(4, 3);
  options.cluster.settings.min_peers = 5;
  options.limit = 30 * second;
  const auto result = study_elastic(options);
  ASSERT_TRUE(result.ok());
  EXPECT_FALSE(result->completed);
  EXPECT_EQ(result->steps, 0u);
}

TEST(ElasticStudy, impossible_settings_are_refused) {
  const std::function<void(ElasticStudyOptions&)> wrongs[] = {
      [](auto& o) { o.peers = 0; },
      [](auto& o) { o.peers = 5000; },
      [](auto& o) { o.steps = 0; },
      [](auto& o) { o.cluster.settings.elements = 0; },
      [](auto& o) { o.absence = 1; },
      [](auto& o) { o.away = 0; },
      [](auto& o) { o.cluster.settings.commit = CommitRule::per_result; },
      [](auto& o) { o.trace.events = {{.at = 0, .peer = 3, .action = ChurnAction::kill}}; },
      [](auto& o) { o.until = o.limit; }};
  for (const auto& wrong : wrongs) {
    auto options = study_of(4, 3);
    wrong(options);
    EXPECT_EQ(study_elastic(options).status().code(), Code::invalid);
  }
}

// Changes one peer's values or weights before the replay sees them, so that the replay must report an error.
struct TamperedWatch final : RoundObserver {
  enum class Tampering : uint8_t { none, bits, weight, sent_other, kept_weight };
  explicit TamperedWatch(Tampering kind) : tampering(kind) {}
  void began(const RoundView& view) override {
    show(view, tampering == Tampering::sent_other, [&](const RoundView& shown) { replay.began(shown); });
  }
  void ended(const RoundView& view, const MoshpitRound& round) override {
    show(view, tampering != Tampering::sent_other, [&](const RoundView& shown) { replay.ended(shown, round); });
  }
  template <typename Call>
  void show(const RoundView& view, bool here, Call&& call) {
    auto values = view.values;
    std::vector<ChunkState> states(view.states.begin(), view.states.end());
    if (here && tampering != Tampering::none && (tampered_peer == PeerId{} || tampered_peer == view.self)) {
      tampered_peer = view.self;
      if (tampering == Tampering::weight) states[0].weight *= 1 + 1e-9;
      if (tampering == Tampering::kept_weight) states[0].weight = 7;
      if (tampering == Tampering::bits || tampering == Tampering::sent_other) {
        auto other = SharedBuffer::copy(values.buffer(0).view());
        reinterpret_cast<float*>(other.data())[3] += 0.5f;
        values.replace(0, other);
      }
    }
    call({.self = view.self, .group = view.group, .values = values, .states = states});
  }
  const Tampering tampering;
  PeerId tampered_peer;
  ElasticReplay replay;
};

TEST(ElasticReplay, detects_tampered_rounds) {
  using enum TamperedWatch::Tampering;
  for (const auto& [tampering, part] : {std::pair{none, ""},
                                        {bits, "bits of chunk 0"},
                                        {weight, "has weight"},
                                        {kept_weight, "has weight 7"},
                                        {sent_other, "is not the mean of its contributors' values"}}) {
    TamperedWatch tampered_watch(tampering);
    auto options = options_for(6, 4);
    options.settings.watch = &tampered_watch;
    CountedRun run(6, options);
    ASSERT_TRUE(run.run_steps(2, 60 * second));
    const auto& counts = tampered_watch.replay.counts();
    EXPECT_EQ(counts.wrong > 0, tampering != none) << part;
    if (tampering == none) continue;
    const bool found = std::ranges::any_of(counts.examples,
                                           [&](const std::string& example) { return example.find(part) != std::string::npos; });
    EXPECT_TRUE(found) << part << ", but: " << counts.examples[0];
  }
}

}  // namespace
}  // namespace unisono::sim
