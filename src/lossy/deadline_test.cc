#include "lossy/deadline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/concat.h"
#include "base/random.h"
#include "lossy/stream_clock.h"

namespace unisono {
namespace {

constexpr Nanos ms = millisecond;

void learn(Deadline& deadline, Nanos duration, int operations, double missing = 0) {
  for (int i = 0; i < operations; ++i) {
    deadline.stream_ended(duration);
    deadline.phase_ended({.duration = duration, .hard = deadline.hard(), .missing_fraction = missing});
  }
}

// Check D5 of docs/design/methods/packet_loss.md, "Checked values". Each of the ten durations is recorded twice, because
// learning needs 20. t_soft = median 14.5 ms + 6 * deviation 2.5 ms = 29.5 ms; t_hard = 2 * P95 = 2 * 40 ms.
TEST(Deadline, d5_follows_from_the_durations_of_both_windows) {
  Deadline deadline({});
  for (int round = 0; round < 2; ++round) {
    for (const Nanos duration : {10, 11, 12, 13, 14, 15, 16, 17, 18, 40}) learn(deadline, duration * ms, 1);
  }
  EXPECT_EQ(deadline.soft_from_durations(100 * ms), 29'500 * microsecond);
  EXPECT_EQ(Deadline::grace(29'500 * microsecond), 3'687'500);
  EXPECT_EQ(deadline.hard(), 80 * ms);
  EXPECT_EQ(deadline.soft_from_durations(20 * ms), 20 * ms);  // t_hard of 20 ms limits t_soft, which would be 29.5 ms
}

TEST(Deadline, d5_quantiles_of_ten_durations) {
  DurationWindow window;
  for (const Nanos duration : {40, 18, 10, 17, 11, 16, 12, 15, 13, 14}) window.add(duration * ms);
  EXPECT_EQ(window.median(), 14.5e6);
  EXPECT_EQ(window.deviation(), 2.5e6);
  EXPECT_EQ(window.p95(), 40 * ms);
}

TEST(Deadline, the_window_agrees_with_sorting_and_forgets_all_but_64) {
  constexpr uint64_t seed = 50;
  SCOPED_TRACE(concat("seed ", seed));
  Random random(seed);
  DurationWindow window;
  std::vector<Nanos> all;
  for (int i = 0; i < 300; ++i) {
    all.push_back(static_cast<Nanos>(random.below(1000)));
    window.add(all.back());
    std::vector<Nanos> last(all.end() - std::min<std::ptrdiff_t>(64, std::ssize(all)), all.end());
    const auto n = last.size();
    ASSERT_EQ(window.size(), n);
    std::sort(last.begin(), last.end());
    const double median = static_cast<double>(last[(n - 1) / 2] + last[n / 2]) / 2;
    ASSERT_EQ(window.median(), median);
    ASSERT_EQ(window.p95(), last[static_cast<size_t>(std::ceil(0.95 * static_cast<double>(n))) - 1]);
    std::vector<double> distances;
    for (const auto value : last) distances.push_back(std::abs(static_cast<double>(value) - median));
    std::sort(distances.begin(), distances.end());
    ASSERT_EQ(window.deviation(), (distances[(n - 1) / 2] + distances[n / 2]) / 2);
  }
}

TEST(Deadline, d5_equal_durations_give_t_soft_a_quarter_and_t_hard_a_half_more) {
  Deadline deadline({});
  learn(deadline, 20 * ms, 20);
  EXPECT_EQ(deadline.soft_from_durations(deadline.hard()), 25 * ms);
  EXPECT_EQ(deadline.hard(), 40 * ms);
}

// Runs one operation with three streams, and returns the time when the phase closes. Each stream has 71 datagrams, one per
// millisecond. All repair requests are lost.
Nanos run(Deadline& deadline, const DeadlineSettings& settings) {
  const auto hard = deadline.hard();
  const StreamLimits limits{.soft = deadline.soft(hard), .hard = hard, .grace = Deadline::grace(deadline.soft(hard))};
  std::vector<StreamClock> clocks(3);
  PhaseOutcome outcome{.hard = hard};
  constexpr int datagrams = 71;
  for (auto& clock : clocks) {
    clock.begin(0, limits);
    int came = 0;
    while (clock.end() == StreamEnd::open) {
      const auto arrival = came < datagrams ? came * ms : never, due = clock.due();
      if (arrival <= due) ++came, clock.arrived(arrival, came > datagrams - 8, came == datagrams);
      const double missing = 1 - static_cast<double>(came) / datagrams;
      clock.update(std::min(arrival, due), missing > settings.loss_budget);
      if (clock.end() == StreamEnd::open) continue;
      outcome.duration = std::max(outcome.duration, clock.ended_at());
      outcome.missing_fraction += missing / 3;
      if (clock.cut_by() == 0) {
        deadline.stream_ended(clock.last() - clock.first());
      } else {
        deadline.stream_cut(clock.cut_by());
        outcome.cut_by_hard = clock.end() == StreamEnd::hard;
        outcome.cut_missing = std::max(outcome.cut_missing, missing);
      }
    }
  }
  deadline.phase_ended(outcome);
  return outcome.duration;
}

TEST(Deadline, d5_streams_that_became_slow_are_cut_twice_and_then_no_more) {
  const DeadlineSettings settings;
  Deadline deadline(settings);
  learn(deadline, 20 * ms, 20);
  EXPECT_EQ(run(deadline, settings), 40 * ms);
  EXPECT_EQ(deadline.hard(), 60 * ms);
  EXPECT_EQ(run(deadline, settings), 60 * ms);
  EXPECT_EQ(deadline.hard(), 120 * ms);
  EXPECT_EQ(deadline.soft(deadline.hard()), 90 * ms);
  EXPECT_EQ(run(deadline, settings), 70 * ms);
  EXPECT_EQ(run(deadline, settings), 70 * ms);
}

TEST(Deadline, a_raised_deadline_falls_after_16_operations_without_such_a_cut) {
  Deadline deadline({});
  learn(deadline, 20 * ms, 20);
  deadline.phase_ended(
      {.duration = 40 * ms, .hard = 40 * ms, .cut_by_hard = true, .cut_missing = 0.4, .missing_fraction = 0.4});
  EXPECT_EQ(deadline.hard(), 60 * ms);
  EXPECT_EQ(deadline.soft_from_durations(60 * ms), 60 * ms);
  learn(deadline, 20 * ms, 15, 0.4);
  EXPECT_EQ(deadline.hard(), 60 * ms);
  learn(deadline, 20 * ms, 1, 0.4);
  EXPECT_EQ(deadline.hard(), 40 * ms);
  EXPECT_EQ(deadline.soft_from_durations(40 * ms), 25 * ms);
}

TEST(Deadline, a_cut_stream_within_the_loss_budget_does_not_raise_the_deadline) {
  Deadline deadline({.loss_budget = 0.05});
  learn(deadline, 20 * ms, 20);
  deadline.phase_ended({.duration = 40 * ms, .hard = 40 * ms, .cut_by_hard = true, .cut_missing = 0.05});
  EXPECT_EQ(deadline.hard(), 40 * ms);
  deadline.phase_ended({.duration = 40 * ms, .hard = 40 * ms, .cut_by_hard = true, .cut_missing = 0.06});
  EXPECT_EQ(deadline.hard(), 120 * ms);  // 2 * 60 ms: two of 22 phases are recorded as 1.5 * 40 ms, so P95 is 60 ms
}

// Recording the cut duration itself would shrink the deadlines from one operation to the next.
TEST(Deadline, durations_cut_by_a_deadline_count_half_more) {
  Deadline deadline({.loss_budget = 1});
  for (int i = 0; i < 20; ++i) {
    deadline.stream_cut(8 * ms);
    deadline.phase_ended(
        {.duration = 40 * ms, .hard = 40 * ms, .cut_by_hard = true, .cut_missing = 0.5, .missing_fraction = 0.5});
  }
  EXPECT_EQ(deadline.soft_from_durations(200 * ms), 15 * ms);  // 1.25 * 12 ms: streams cut at 8 ms are recorded as 12 ms
  EXPECT_EQ(deadline.hard(), 120 * ms);                        // 2 * 60 ms: phases cut at 40 ms are recorded as 60 ms
}

TEST(Deadline, a_phase_with_a_silent_peer_adds_no_duration) {
  Deadline deadline({});
  learn(deadline, 20 * ms, 20);
  for (int i = 0; i < 40; ++i)
    deadline.phase_ended({.duration = 40 * ms, .hard = 40 * ms, .cut_by_hard = true, .silent_peer = true});
  EXPECT_EQ(deadline.hard(), 40 * ms);
}

TEST(Deadline, deadlines_are_deadline_max_until_both_windows_hold_20) {
  Deadline deadline({.hard_max = 7 * second});
  for (int i = 0; i < 30; ++i) deadline.stream_ended(20 * ms);
  learn(deadline, 20 * ms, 19);
  EXPECT_TRUE(deadline.learning());
  EXPECT_EQ(deadline.hard(), 7 * second);
  EXPECT_EQ(deadline.soft(7 * second), 7 * second);
  learn(deadline, 20 * ms, 1);
  EXPECT_FALSE(deadline.learning());
  Deadline phases({.hard_max = 7 * second});
  for (int i = 0; i < 30; ++i) phases.phase_ended({.duration = ms, .hard = 7 * second});
  EXPECT_TRUE(phases.learning());
}

TEST(Deadline, deadlines_stay_within_their_limits) {
  Deadline quick({}), slow({.hard_max = 50 * ms}), fixed({.fixed = 12 * ms}), tight({.fixed = 12 * ms, .hard_max = 3 * ms});
  for (auto* deadline : {&quick, &slow, &fixed, &tight}) learn(*deadline, deadline == &quick ? 10 * microsecond : 45 * ms, 20);
  EXPECT_EQ(quick.hard(), 5 * ms);
  EXPECT_EQ(quick.soft_from_durations(5 * ms), 1 * ms);
  EXPECT_EQ(slow.hard(), 50 * ms);
  slow.phase_ended({.duration = 50 * ms, .hard = 50 * ms, .cut_by_hard = true, .cut_missing = 1});
  EXPECT_EQ(slow.hard(), 50 * ms);
  EXPECT_EQ(fixed.hard(), 12 * ms);
  EXPECT_EQ(tight.hard(), 3 * ms);
  EXPECT_EQ(Deadline::grace(1 * ms), 200 * microsecond);
  EXPECT_EQ(Deadline::grace(second), 5 * ms);
}

TEST(Deadline, streams_of_clean_links_are_cut_only_by_the_hard_deadline) {
  Deadline deadline({});
  learn(deadline, 20 * ms, 64);
  EXPECT_TRUE(deadline.links_are_clean());
  EXPECT_EQ(deadline.soft(44 * ms), 44 * ms);  // 44 ms is the t_hard on which the ranks agreed; this rank announces 40 ms
  learn(deadline, 20 * ms, 1, 0.031);          // 0.031 / 64 = 0.048 % missing, below the limit of 0.05 %
  EXPECT_TRUE(deadline.links_are_clean());
  learn(deadline, 20 * ms, 1, 0.001);  // (0.031 + 0.001) / 64 = 0.05 % missing: not below the limit
  EXPECT_FALSE(deadline.links_are_clean());
  EXPECT_EQ(deadline.soft(44 * ms), 25 * ms);
  learn(deadline, 20 * ms, 62);
  EXPECT_FALSE(deadline.links_are_clean());
  learn(deadline, 20 * ms, 1);
  EXPECT_TRUE(deadline.links_are_clean());
}

TEST(Deadline, ranks_agree_on_the_median_of_their_announcements) {
  EXPECT_EQ(agreed_deadline(std::vector<Nanos>{40 * ms, 10 * ms, 20 * ms}, 40 * ms), 20 * ms);
  EXPECT_EQ(agreed_deadline(std::vector<Nanos>{40 * ms, 10 * ms, 20 * ms, 31 * ms}, 40 * ms), 25'500 * microsecond);
  EXPECT_EQ(agreed_deadline(std::vector<Nanos>{0, 0, 7, 0}, 40 * ms), 7);
  EXPECT_EQ(agreed_deadline(std::vector<Nanos>{0, 0}, 40 * ms), 40 * ms);
  EXPECT_EQ(agreed_deadline({}, 40 * ms), 40 * ms);
  constexpr uint64_t seed = 51;
  SCOPED_TRACE(concat("seed ", seed));
  Random random(seed);
  for (int i = 0; i < 500; ++i) {
    std::vector<Nanos> announced(1 + random.below(20));
    for (auto& value : announced) value = static_cast<Nanos>(random.below(random.chance(0.5) ? 5 : 30'000'000'000));
    std::vector<Nanos> sorted = announced;
    std::erase(sorted, 0);
    std::sort(sorted.begin(), sorted.end());
    const auto n = sorted.size();
    const auto expected = n == 0 ? 3 : sorted[(n - 1) / 2] + (sorted[n / 2] - sorted[(n - 1) / 2]) / 2;
    ASSERT_EQ(agreed_deadline(announced, 3), expected);
  }
}

}  // namespace
}  // namespace unisono
