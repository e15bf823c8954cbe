#include "sim/agenda.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/random.h"

namespace unisono::sim {
namespace {

TEST(Agenda, events_come_by_time_and_equal_times_in_the_order_added) {
  constexpr uint64_t seed = 5;
  Agenda agenda(1);
  Random random(seed);
  std::vector<std::pair<Nanos, uint64_t>> expected;
  for (uint64_t i = 0; i < 3000; ++i) {
    const auto at = static_cast<Nanos>(random.below(100));
    agenda.add(at, EventKind::act, 0, i);
    expected.emplace_back(at, i);
  }
  std::sort(expected.begin(), expected.end());
  for (const auto& [at, index] : expected) {
    const auto event = agenda.pop();
    ASSERT_EQ(event.at, at) << "seed " << seed;
    ASSERT_EQ(event.index, index) << "seed " << seed;
    ASSERT_EQ(agenda.now(), at);
  }
  EXPECT_TRUE(agenda.empty());
}

TEST(Agenda, what_is_added_for_now_comes_behind_what_already_waits_for_now) {
  Agenda agenda(1);
  agenda.add(10, EventKind::act, 0, 1);
  agenda.add(10, EventKind::act, 0, 2);
  EXPECT_EQ(agenda.pop().index, 1u);
  agenda.add(10, EventKind::act, 0, 3);
  agenda.add(4, EventKind::act, 0, 4);  // the past is now
  EXPECT_EQ(agenda.pop().index, 2u);
  EXPECT_EQ(agenda.pop().index, 3u);
  EXPECT_EQ(agenda.pop().index, 4u);
  EXPECT_EQ(agenda.now(), 10);
}

TEST(Agenda, many_wishes_to_poll_make_one_poll_at_the_earliest_time) {
  Agenda agenda(2);
  agenda.request_poll(0, 50);
  agenda.request_poll(0, 20);
  agenda.request_poll(0, 30);
  agenda.request_poll(1, 40);
  std::vector<std::pair<Nanos, PeerIndex>> polls;
  while (!agenda.empty()) {
    const auto event = agenda.pop();
    if (agenda.take_poll(event)) polls.emplace_back(event.at, event.rank);
  }
  EXPECT_EQ(polls, (std::vector<std::pair<Nanos, PeerIndex>>{{20, 0}, {40, 1}}));
}

}  // namespace
}  // namespace unisono::sim
