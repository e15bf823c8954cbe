#include "cli/tune/tune_plan.h"

#include <gtest/gtest.h>

#include <limits>

namespace unisono::cli {
namespace {

using enum ScheduleKind;
constexpr auto no_limit = std::numeric_limits<uint64_t>::max();

Trial trial(ScheduleKind kind, double us, uint64_t slice = 0) {
  return {.kind = kind, .slice_bytes = slice, .us = us, .low_us = us * 0.99, .high_us = us * 1.01};
}

TEST(TunePlan, tries_the_models_choice_first_and_then_all_there_is) {
  const auto times = [](ScheduleKind kind, std::vector<uint32_t> host_groups) {
    const auto trials = schedule_trials(unisono::Collective::all_reduce, host_groups);
    EXPECT_EQ(trials.front().kind, automatic);
    return std::count_if(trials.begin(), trials.end(), [&](const Trial& each) { return each.kind == kind; });
  };
  for (const auto kind : {one_shot, two_step, halving_doubling, ring})
    EXPECT_EQ(times(kind, {0, 0, 1}), 1) << static_cast<int>(kind);
  EXPECT_EQ(times(hierarchical, {0, 0, 1}), 1);
  EXPECT_EQ(times(hierarchical, {0, 0, 0}), 0);
  EXPECT_EQ(times(hierarchical, {0, 1, 2}), 0);
}

TEST(TunePlan, tries_slices_where_a_tensor_has_several) {
  EXPECT_TRUE(slice_trials(trial(ring, 1), 64 << 10).empty());
  const auto some = slice_trials(trial(ring, 1), 512 << 10);
  ASSERT_EQ(some.size(), 3u);
  EXPECT_EQ(some.back().slice_bytes, 256u << 10);
  EXPECT_EQ(some.back().kind, ring);
  EXPECT_EQ(slice_trials(trial(automatic, 1), 64 << 20).size(), 5u);
}

TEST(TunePlan, the_model_wins_unless_another_is_clearly_quicker) {
  const Trial trials[] = {trial(automatic, 100), trial(ring, 96), trial(two_step, 120)};
  EXPECT_EQ(winner(trials, 0.05).kind, automatic);
  EXPECT_EQ(winner(trials, 0.01).kind, ring);
  Trial noisy[] = {trial(automatic, 100), trial(ring, 80)};
  EXPECT_EQ(winner(noisy, 0.05).kind, ring);
  noisy[1].high_us = 110;  // now the times of the rounds overlap
  EXPECT_EQ(winner(noisy, 0.05).kind, automatic);
}

TEST(TunePlan, sizes_with_one_winner_become_a_range) {
  const TunedSize sizes[] = {
      {1024, trial(automatic, 1)}, {4096, trial(automatic, 1)}, {16384, trial(ring, 1)}, {65536, trial(ring, 1, 65536)}};
  const auto calls = calls_of(unisono::Collective::all_gather, sizes);
  ASSERT_EQ(calls.size(), 3u);
  EXPECT_EQ(calls[0], (TunedCall{.collective = unisono::Collective::all_gather, .bytes_max = 8192}));
  EXPECT_EQ(calls[1], (TunedCall{.collective = unisono::Collective::all_gather, .bytes_max = 32768, .kind = ring}));
  EXPECT_EQ(
      calls[2],
      (TunedCall{.collective = unisono::Collective::all_gather, .bytes_max = no_limit, .kind = ring, .slice_bytes = 65536}));
}

TEST(TunePlan, no_entry_is_made_where_the_model_always_wins) {
  const TunedSize sizes[] = {{1024, trial(automatic, 1)}, {4096, trial(automatic, 1)}};
  EXPECT_TRUE(calls_of(unisono::Collective::all_reduce, sizes).empty());
  EXPECT_TRUE(calls_of(unisono::Collective::all_reduce, {}).empty());
}

TEST(TunePlan, the_smallest_number_of_streams_that_is_about_as_quick_wins) {
  const StreamTrial trials[] = {{1, 100}, {2, 60}, {4, 58}, {8, 70}};
  EXPECT_EQ(best_streams(trials, 0.05), 2u);
  EXPECT_EQ(best_streams(trials, 0.01), 4u);
  EXPECT_EQ(best_streams(std::span(trials).first(1), 0.05), 1u);
}

}  // namespace
}  // namespace unisono::cli
