#include "sim/event_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/random.h"

namespace unisono::sim {
namespace {

TEST(EventQueue, events_are_ordered_by_time_then_by_insertion) {
  constexpr uint64_t seed = 5;
  EventQueue event_queue(1);
  Random random(seed);
  std::vector<std::pair<Nanos, uint64_t>> expected;
  for (uint64_t i = 0; i < 3000; ++i) {
    const auto at = static_cast<Nanos>(random.below(100));
    event_queue.add(at, EventKind::act, 0, i);
    expected.emplace_back(at, i);
  }
  std::sort(expected.begin(), expected.end());
  for (const auto& [at, index] : expected) {
    const auto event = event_queue.pop();
    ASSERT_EQ(event.at, at) << "seed " << seed;
    ASSERT_EQ(event.index, index) << "seed " << seed;
    ASSERT_EQ(event_queue.now(), at);
  }
  EXPECT_TRUE(event_queue.empty());
}

// Frames wait in a line per receiver; lines must not change the order of events.
TEST(EventQueue, frames_of_many_ranks_are_ordered_by_time_even_if_they_overtake_each_other) {
  constexpr uint64_t seed = 6;
  constexpr PeerIndex ranks = 5;
  EventQueue event_queue(ranks);
  Random random(seed);
  std::multimap<std::pair<Nanos, uint64_t>, PeerIndex> expected;
  Nanos latest[ranks] = {};
  for (uint64_t i = 0; i < 20'000; ++i) {
    if (random.chance(0.45) && !expected.empty()) {
      const auto event = event_queue.pop();
      ASSERT_EQ(std::pair(event.at, event.index), expected.begin()->first) << "seed " << seed;
      ASSERT_EQ(event.rank, expected.begin()->second) << "seed " << seed;
      expected.erase(expected.begin());
      continue;
    }
    const auto rank = static_cast<PeerIndex>(random.below(ranks));
    const bool overtakes = random.chance(0.2);
    const auto at = overtakes ? event_queue.now() + static_cast<Nanos>(random.below(50))
                              : std::max(event_queue.now(), latest[rank]) + static_cast<Nanos>(random.below(10));
    latest[rank] = std::max(latest[rank], at);
    event_queue.add(at, random.chance(0.8) ? EventKind::arrive : EventKind::act, rank, i);
    expected.emplace(std::pair(at, i), rank);
  }
  while (!expected.empty()) {
    ASSERT_EQ(event_queue.pop().index, expected.begin()->first.second) << "seed " << seed;
    expected.erase(expected.begin());
  }
  EXPECT_TRUE(event_queue.empty());
}

TEST(EventQueue, an_event_added_for_now_follows_those_that_already_wait_for_now) {
  EventQueue event_queue(1);
  event_queue.add(10, EventKind::act, 0, 1);
  event_queue.add(10, EventKind::act, 0, 2);
  EXPECT_EQ(event_queue.pop().index, 1u);
  event_queue.add(10, EventKind::act, 0, 3);
  event_queue.add(4, EventKind::act, 0, 4);  // 4 is in the past and becomes the current time
  EXPECT_EQ(event_queue.pop().index, 2u);
  EXPECT_EQ(event_queue.pop().index, 3u);
  EXPECT_EQ(event_queue.pop().index, 4u);
  EXPECT_EQ(event_queue.now(), 10);
}

TEST(EventQueue, several_poll_requests_make_one_poll_at_the_earliest_time) {
  EventQueue event_queue(2);
  event_queue.request_poll(0, 50);
  event_queue.request_poll(0, 20);
  event_queue.request_poll(0, 30);
  event_queue.request_poll(1, 40);
  std::vector<std::pair<Nanos, PeerIndex>> polls;
  while (!event_queue.empty()) {
    const auto event = event_queue.pop();
    if (event_queue.take_poll(event)) polls.emplace_back(event.at, event.rank);
  }
  EXPECT_EQ(polls, (std::vector<std::pair<Nanos, PeerIndex>>{{20, 0}, {40, 1}}));
}

}  // namespace
}  // namespace unisono::sim
