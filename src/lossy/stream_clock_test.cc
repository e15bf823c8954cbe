#include "lossy/stream_clock.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/concat.h"
#include "base/random.h"

namespace unisono {
namespace {

constexpr Nanos us = microsecond, ms = millisecond;
constexpr StreamLimits limits{.soft = 10 * ms, .hard = 40 * ms, .grace = 1250 * us};

StreamClock begun(Nanos start = 0) {
  StreamClock clock;
  clock.begin(start, limits);
  return clock;
}

// Calls update() at each due() until the stream has ended.
Nanos ended(StreamClock& clock, bool lacking = false) {
  while (clock.end() == StreamEnd::open) {
    const auto due = clock.due();
    EXPECT_EQ(clock.update(due - 1, lacking), StreamEnd::open);
    clock.update(due, lacking);
    if (clock.end() == StreamEnd::open && clock.due() == due) {
      ADD_FAILURE() << "due() did not move";
      break;
    }
  }
  EXPECT_EQ(clock.due(), never);
  return clock.ended_at();
}

// Check D6 of docs/design/methods/packet_loss.md, "Checked values": with four ranks, a rank receives three streams.
TEST(StreamClock, d6_streams_end_when_complete_after_their_tail_or_late_after_their_first) {
  auto a = begun(), b = begun(), c = begun();
  a.arrived(1 * ms, false, false);
  a.arrived(4 * ms, true, true);
  EXPECT_EQ(ended(a), 4 * ms);
  EXPECT_EQ(a.end(), StreamEnd::complete);
  b.arrived(3 * ms, false, false);
  b.arrived(5 * ms, true, false);
  b.arrived(5500 * us, true, false);
  EXPECT_EQ(ended(b), 6750 * us);
  EXPECT_EQ(b.end(), StreamEnd::tail);
  EXPECT_EQ(b.last() - b.first(), 2500 * us);
  c.arrived(2 * ms, false, false);
  EXPECT_EQ(ended(c), 12 * ms);
  EXPECT_EQ(c.end(), StreamEnd::soft);
  EXPECT_EQ(std::max({a.ended_at(), b.ended_at(), c.ended_at()}), 12 * ms);
}

TEST(StreamClock, d6_a_silent_sender_is_waited_for_until_the_hard_deadline) {
  auto clock = begun();
  EXPECT_EQ(ended(clock), 40 * ms);
  EXPECT_EQ(clock.end(), StreamEnd::silent);
  EXPECT_FALSE(clock.heard());
}

TEST(StreamClock, d6_a_late_sender_is_cut_by_the_hard_deadline) {
  auto clock = begun();
  clock.arrived(35 * ms, false, false);
  EXPECT_EQ(ended(clock), 40 * ms);
  EXPECT_EQ(clock.end(), StreamEnd::hard);
  EXPECT_EQ(clock.cut_by(), 40 * ms);
}

TEST(StreamClock, at_equal_times_hard_comes_before_soft_and_arrivals_before_both) {
  auto clock = begun();
  clock.arrived(30 * ms, false, false);
  EXPECT_EQ(clock.update(40 * ms, false), StreamEnd::hard);
  auto arriving = begun();
  arriving.arrived(30 * ms, false, false);
  arriving.arrived(40 * ms, false, true);
  EXPECT_EQ(arriving.update(40 * ms, false), StreamEnd::complete);
  auto tail = begun();
  tail.arrived(38'750 * us, true, false);
  EXPECT_EQ(tail.update(40 * ms, false), StreamEnd::hard);
}

TEST(StreamClock, a_late_update_reports_the_earliest_reason_to_end) {
  auto clock = begun();
  clock.arrived(2 * ms, true, false);
  EXPECT_EQ(clock.update(100 * ms, false), StreamEnd::tail);
  EXPECT_EQ(clock.ended_at(), 100 * ms);
}

TEST(StreamClock, a_new_datagram_re_arms_the_tail) {
  auto clock = begun();
  clock.arrived(2 * ms, true, false);
  EXPECT_EQ(clock.due(), 3250 * us);
  clock.arrived(3 * ms, false, false);
  EXPECT_EQ(clock.due(), 4250 * us);
  EXPECT_EQ(ended(clock), 4250 * us);
}

TEST(StreamClock, a_repeated_end_re_arms_nothing) {
  auto clock = begun();
  clock.end_seen(2 * ms);
  clock.end_seen(3 * ms);
  clock.end_seen(3200 * us);
  EXPECT_EQ(ended(clock), 3250 * us);
  EXPECT_EQ(clock.end(), StreamEnd::tail);
  auto other = begun();
  other.arrived(1 * ms, false, false);
  other.end_seen(2 * ms);
  EXPECT_EQ(ended(other), 2250 * us);
}

TEST(StreamClock, an_end_long_after_the_last_datagram_ends_the_stream_at_once) {
  auto clock = begun();
  clock.arrived(1 * ms, false, false);
  clock.end_seen(5 * ms);
  EXPECT_EQ(clock.due(), 5 * ms);
  EXPECT_EQ(ended(clock), 5 * ms);
}

TEST(StreamClock, an_end_counts_as_first_and_last_only_until_data_arrives) {
  auto clock = begun();
  clock.end_seen(2 * ms);
  EXPECT_TRUE(clock.heard());
  EXPECT_EQ(clock.first(), 2 * ms);
  clock.arrived(3 * ms, false, false);
  EXPECT_EQ(clock.first(), 3 * ms);
  EXPECT_EQ(ended(clock), 4250 * us);
  EXPECT_EQ(clock.last() - clock.first(), 0);
}

TEST(StreamClock, arrivals_before_the_phase_count_as_arrivals_at_its_start) {
  auto soft = begun(100 * ms), tail = begun(100 * ms), whole = begun(100 * ms), ended_before = begun(100 * ms);
  soft.arrived(30 * ms, false, false);
  soft.arrived(33 * ms, false, false);
  EXPECT_EQ(ended(soft), 110 * ms);
  EXPECT_EQ(soft.last() - soft.first(), 3 * ms);
  tail.arrived(30 * ms, true, false);
  EXPECT_EQ(ended(tail), 101'250 * us);
  whole.arrived(30 * ms, true, true);
  EXPECT_EQ(ended(whole), 100 * ms);
  ended_before.end_seen(50 * ms);
  EXPECT_EQ(ended(ended_before), 101'250 * us);
}

TEST(StreamClock, a_stream_without_ranges_is_complete_at_once) {
  StreamClock clock;
  clock.begin(7 * ms, limits, false);
  EXPECT_EQ(clock.end(), StreamEnd::complete);
  EXPECT_EQ(clock.ended_at(), 7 * ms);
  EXPECT_FALSE(clock.heard());
  EXPECT_EQ(clock.cut_by(), 0);
}

TEST(StreamClock, a_stream_that_lacks_too_much_stays_open_until_repaired) {
  auto clock = begun();
  clock.arrived(2 * ms, false, false);
  clock.update(11'999 * us, true);
  EXPECT_FALSE(clock.needs_repair());
  EXPECT_EQ(clock.update(12 * ms, true), StreamEnd::open);
  EXPECT_TRUE(clock.needs_repair());
  EXPECT_EQ(clock.due(), 40 * ms);
  clock.arrived(14 * ms, false, false);
  EXPECT_EQ(clock.update(14 * ms, true), StreamEnd::open);
  clock.arrived(15 * ms, false, false);
  EXPECT_EQ(clock.update(15 * ms, false), StreamEnd::soft);
  EXPECT_FALSE(clock.needs_repair());
  EXPECT_EQ(clock.ended_at(), 15 * ms);
  EXPECT_EQ(clock.last() - clock.first(), 13 * ms);
}

TEST(StreamClock, repair_ends_at_the_hard_deadline) {
  auto clock = begun();
  clock.arrived(2 * ms, true, false);
  EXPECT_EQ(ended(clock, true), 40 * ms);
  EXPECT_EQ(clock.end(), StreamEnd::hard);
  EXPECT_EQ(clock.cut_by(), 40 * ms);
  auto late = begun();
  late.arrived(2 * ms, true, false);
  EXPECT_EQ(late.update(50 * ms, true), StreamEnd::hard);
}

TEST(StreamClock, only_streams_cut_by_a_deadline_are_censored) {
  auto soft = begun(), repaired = begun(), tail = begun();
  soft.arrived(2 * ms, false, false);
  soft.update(12 * ms, false);
  EXPECT_EQ(soft.cut_by(), 10 * ms);
  repaired.arrived(2 * ms, false, false);
  repaired.update(12 * ms, true);
  repaired.update(13 * ms, false);
  EXPECT_EQ(repaired.end(), StreamEnd::soft);
  EXPECT_EQ(repaired.cut_by(), 0);
  tail.arrived(2 * ms, true, false);
  tail.update(12 * ms, false);
  EXPECT_EQ(tail.cut_by(), 0);
}

TEST(StreamClock, nothing_changes_after_the_end) {
  auto clock = begun();
  clock.arrived(1 * ms, true, false);
  clock.close(2 * ms);
  EXPECT_EQ(clock.end(), StreamEnd::hard);
  clock.arrived(3 * ms, true, true);
  clock.end_seen(3 * ms);
  clock.close(4 * ms);
  EXPECT_EQ(clock.update(50 * ms, false), StreamEnd::hard);
  EXPECT_EQ(clock.ended_at(), 2 * ms);
  EXPECT_EQ(clock.last(), 1 * ms);
  clock.begin(60 * ms, limits);
  EXPECT_EQ(clock.end(), StreamEnd::open);
  EXPECT_FALSE(clock.heard());
}

struct Event {
  Nanos at = 0;
  bool data = false, tail = false, complete = false;
};

// Why and when a stream ends, evaluated tick by tick. Source of the rules: docs/design/methods/packet_loss.md, "Streams and
// deadlines".
struct Expected {
  StreamEnd end = StreamEnd::open;
  Nanos at = 0;
};
Expected tick_by_tick(const std::vector<Event>& events, const StreamLimits& within, Nanos start) {
  Nanos first = never, last = never, tail = never;
  bool data = false;
  size_t next = 0;
  for (Nanos now = start;; ++now) {
    for (; next < events.size() && events[next].at <= now; ++next) {
      const auto& event = events[next];
      const auto at = std::max(event.at, start);
      if (event.data) {
        if (!data) first = at;
        data = true, last = at;
        if (event.complete) return {StreamEnd::complete, at};
      } else if (!data && tail == never) {
        first = last = at;
      }
      if ((event.tail || !event.data) && tail == never) tail = at;
    }
    if (now >= start + within.hard) return {first == never ? StreamEnd::silent : StreamEnd::hard, now};
    if (tail != never && now >= last + within.grace) return {StreamEnd::tail, now};
    if (first != never && now >= first + within.soft) return {StreamEnd::soft, now};
  }
}

TEST(StreamClock, random_arrivals_end_streams_by_the_rules) {
  constexpr uint64_t seed = 60;
  SCOPED_TRACE(concat("seed ", seed));
  Random random(seed);
  size_t ends[6] = {};
  for (int round = 0; round < 5000; ++round) {
    SCOPED_TRACE(round);
    const Nanos start = static_cast<Nanos>(random.below(20));
    const StreamLimits within{.soft = static_cast<Nanos>(1 + random.below(40)),
                              .hard = static_cast<Nanos>(40 + random.below(40)),
                              .grace = static_cast<Nanos>(1 + random.below(10))};
    std::vector<Event> events(random.below(12));
    for (auto& event : events)
      event = {.at = static_cast<Nanos>(random.below(100)), .data = random.chance(0.8), .tail = random.chance(0.15)};
    std::sort(events.begin(), events.end(), [](const Event& a, const Event& b) { return a.at < b.at; });
    if (!events.empty() && random.chance(0.3)) events.back().data = events.back().complete = true;
    const auto expected = tick_by_tick(events, within, start);
    StreamClock clock;
    clock.begin(start, within);
    for (const auto& event : events) {
      while (clock.due() < std::max(event.at, start)) clock.update(clock.due(), false);
      if (event.data) clock.arrived(event.at, event.tail, event.complete);
      else clock.end_seen(event.at);
    }
    while (clock.end() == StreamEnd::open) clock.update(clock.due(), false);
    ASSERT_STREQ(name(clock.end()), name(expected.end));
    ASSERT_EQ(clock.ended_at(), expected.at);
    ++ends[static_cast<int>(clock.end())];
  }
  for (int end = 1; end < 6; ++end) EXPECT_GT(ends[end], 50u) << name(static_cast<StreamEnd>(end));
}

}  // namespace
}  // namespace unisono
