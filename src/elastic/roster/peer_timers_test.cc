#include "elastic/roster/peer_timers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/random.h"
#include "elastic/roster/elastic_test_support.h"

namespace unisono {
namespace {

using test::peer_id;

TEST(PeerTimers, next_is_the_earliest_deadline_after_any_changes) {
  Random random(7);
  PeerTimers timers;
  std::map<PeerId, Nanos> expected;
  EXPECT_EQ(timers.next(), never);
  for (int step = 0; step < 5000; ++step) {
    const auto id = peer_id(random.below(12));
    const auto now = static_cast<Nanos>(random.below(100));
    switch (random.below(8)) {
      case 0: {
        PeerId due;
        const auto first = std::ranges::min_element(expected, {}, [](const auto& one) { return one.second; });
        const bool any = first != expected.end() && first->second <= now;
        ASSERT_EQ(timers.take_due(now, due), any);
        if (any) {
          ASSERT_EQ(expected.at(due), first->second);
          expected.erase(due);
        }
        break;
      }
      case 1:
        timers.postpone(now);
        for (auto& [one, at] : expected) at = std::max(at, now);
        break;
      case 2:
      case 3:
        timers.erase(id);
        expected.erase(id);
        break;
      default: timers.set(id, now); expected[id] = now;
    }
    Nanos next = never;
    for (const auto& [one, at] : expected) {
      ASSERT_EQ(timers.at(one), at);
      next = std::min(next, at);
    }
    ASSERT_EQ(timers.next(), next);
    ASSERT_EQ(timers.at(id) != never, expected.contains(id));
  }
}

}  // namespace
}  // namespace unisono
