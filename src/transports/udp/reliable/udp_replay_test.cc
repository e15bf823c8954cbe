#include "transports/udp/reliable/udp_replay.h"

#include <gtest/gtest.h>

#include <iostream>
#include <set>

#include "base/random.h"

namespace unisono {
namespace {

TEST(UdpReplayWindow, takes_each_number_once) {
  UdpReplayWindow window;
  EXPECT_FALSE(window.take(0)) << "numbers begin with 1";
  for (const uint32_t number : {1u, 2u, 5u, 3u, 4u, 9000u, 8999u}) {
    EXPECT_TRUE(window.take(number)) << number;
    EXPECT_FALSE(window.take(number)) << number;
  }
  EXPECT_TRUE(window.take(9000 - UdpReplayWindow::reach + 1)) << "the oldest that is known";
  EXPECT_FALSE(window.take(9000 - UdpReplayWindow::reach)) << "older numbers count as seen";
  EXPECT_EQ(window.newest(), 9000u);
}

// Compares the window with a set of all numbers, over jumps, late numbers and the wrap.
TEST(UdpReplayWindow, forgets_nothing_within_its_reach) {
  constexpr uint64_t seed = 20261124;
  std::cout << "seed " << seed << '\n';
  Random random(seed);
  UdpReplayWindow window;
  for (uint32_t number = 0; number < UINT32_MAX - 100'000;)
    ASSERT_TRUE(window.take(number += UdpReplayWindow::step_max - 1)) << number;
  std::set<uint64_t> taken;
  uint64_t newest = window.newest();  // 64 bits, so it does not wrap
  taken.insert(newest);
  for (int i = 0; i < 300'000; ++i) {
    const bool late = random.chance(0.3);
    const uint64_t number = late ? newest - random.below(UdpReplayWindow::reach + 50)
                                 : newest + (random.chance(0.01) ? random.below(20'000) : random.below(3));
    const bool fresh = number > newest || (number + UdpReplayWindow::reach > newest && !taken.contains(number));
    ASSERT_EQ(window.take(static_cast<uint32_t>(number)), fresh) << number << " after " << newest << ", " << i;
    taken.insert(number);
    newest = std::max(newest, number);
  }
  EXPECT_GT(newest, uint64_t{1} << 32) << "it has wrapped";
}

TEST(UdpReplayWindow, a_step_that_only_a_recording_makes_is_refused) {
  UdpReplayWindow window;
  EXPECT_TRUE(window.take(UdpReplayWindow::step_max));
  EXPECT_FALSE(window.take(2 * UdpReplayWindow::step_max + 1));
  EXPECT_FALSE(window.take(window.newest() + (1u << 31)));
  EXPECT_TRUE(window.take(2 * UdpReplayWindow::step_max));
}

}  // namespace
}  // namespace unisono
