#include "transports/udp/path/udp_rtt.h"

#include <gtest/gtest.h>

namespace unisono {
namespace {

TEST(RttEstimator, follows_rfc_6298) {
  RttEstimator rtt;
  rtt.sample(800 * microsecond);
  EXPECT_EQ(rtt.smoothed(), 800 * microsecond);
  EXPECT_EQ(rtt.variation(), 400 * microsecond);
  rtt.sample(1600 * microsecond);
  EXPECT_EQ(rtt.variation(), 500 * microsecond) << "3/4 * 400 + 1/4 * |800 - 1600|, with the smoothed value of before";
  EXPECT_EQ(rtt.smoothed(), 900 * microsecond) << "7/8 * 800 + 1/8 * 1600";
  EXPECT_EQ(rtt.answer_time(), 2900 * microsecond);
  EXPECT_EQ(rtt.minimum(), 800 * microsecond);
  EXPECT_EQ(rtt.latest(), 1600 * microsecond);
}

TEST(RttEstimator, waits_50_ms_before_the_first_sample_and_never_less_than_2_ms_for_a_repair) {
  RttEstimator rtt;
  EXPECT_FALSE(rtt.measured());
  EXPECT_EQ(rtt.answer_time(), 50 * millisecond);
  EXPECT_EQ(rtt.repair_interval(), 50 * millisecond);
  rtt.sample(100 * microsecond);
  EXPECT_EQ(rtt.answer_time(), 300 * microsecond);
  EXPECT_EQ(rtt.repair_interval(), 2 * millisecond);
}

TEST(RttEstimator, echoes_work_across_the_wrap_and_exclude_the_held_time) {
  RttEstimator rtt;
  rtt.echoed(100, UINT32_MAX - 399, 200);
  EXPECT_EQ(rtt.latest(), 300 * microsecond);
}

TEST(RttEstimator, impossible_echoes_are_ignored) {
  RttEstimator rtt;
  rtt.echoed(1000, 900, 101);
  EXPECT_FALSE(rtt.measured()) << "held for longer than it took";
  rtt.echoed(1000, 1001, 0);
  EXPECT_FALSE(rtt.measured()) << "sent in the future";
  rtt.echoed(1000, 1000, 0);
  EXPECT_EQ(rtt.latest(), microsecond) << "shorter than the clock's step";
}

}  // namespace
}  // namespace unisono
