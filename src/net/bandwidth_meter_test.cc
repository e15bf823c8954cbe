// The meter reports a line's rate from windows in which data waited to be sent, and noise does not change the report.
#include "net/bandwidth_meter.h"

#include <gtest/gtest.h>

namespace unisono {

namespace {

struct Line {
  BandwidthMeter meter;
  Nanos now = 0;
  uint64_t sent = 0, received = 0;
  // Runs for `time` at these rates in bytes/s.
  void run(Nanos time, double out, double in, bool waiting) {
    for (const auto until = now + time; now < until; now += millisecond) {
      sent += static_cast<uint64_t>(out / 1000);
      received += static_cast<uint64_t>(in / 1000);
      meter.update(now, sent, received, waiting);
    }
  }
};

}  // namespace

TEST(BandwidthMeter, a_full_line_is_reported_as_a_power_of_two) {
  Line line;
  line.run(second, 120e6, 125e6, true);
  EXPECT_EQ(line.meter.take_news(), 1 << 27);
  EXPECT_EQ(line.meter.take_news(), std::nullopt);
  EXPECT_NEAR(line.meter.sending(), 120e6, 1e6) << "what joiners are given is no power of two";
}

TEST(BandwidthMeter, a_line_on_which_nothing_waits_says_nothing) {
  Line line;
  line.run(10 * second, 1e6, 1e6, false);
  EXPECT_EQ(line.meter.take_news(), std::nullopt);
}

TEST(BandwidthMeter, the_lower_direction_counts) {
  Line line;
  line.run(second, 500e6, 16e6, true);
  EXPECT_EQ(line.meter.take_news(), 1 << 24);
}

TEST(BandwidthMeter, what_can_be_sent_is_what_the_line_took_when_nothing_else_was_waited_for) {
  Line line;
  for (int i = 0; i < 8; ++i) {
    line.run(150 * millisecond, 60e6, 60e6, true);
    line.run(50 * millisecond, 120e6, 120e6, true);
  }
  EXPECT_NEAR(line.meter.sending(), 120e6, 2e6);
  line.run(3 * second, 60e6, 60e6, true);
  EXPECT_NEAR(line.meter.sending(), 60e6, 2e6) << "what was long ago is forgotten";
}

TEST(BandwidthMeter, what_goes_one_way_says_nothing_of_the_other) {
  Line line;
  line.run(second, 120e6, 100e6, true);
  EXPECT_EQ(line.meter.take_news(), 1 << 27);
  line.run(10 * second, 120e6, 1e6, true);
  EXPECT_EQ(line.meter.take_news(), std::nullopt);
  Line one_way;
  one_way.run(second, 120e6, 1e5, true);
  EXPECT_EQ(one_way.meter.take_news(), 1 << 27);
}

TEST(BandwidthMeter, what_the_kernel_takes_at_once_is_not_the_lines_speed) {
  Line line;
  line.run(50 * millisecond, 2e9, 16e6, true);
  line.run(second, 16e6, 500e6, true);
  EXPECT_EQ(line.meter.take_news(), 1 << 24);
}

TEST(BandwidthMeter, noise_changes_nothing_and_a_slower_line_does) {
  Line line;
  line.run(second, 16e6, 16e6, true);
  EXPECT_TRUE(line.meter.take_news().has_value());
  line.run(second, 13e6, 16e6, true);
  line.run(second, 20e6, 21e6, true);
  EXPECT_EQ(line.meter.take_news(), std::nullopt);
  line.run(3 * second, 4e6, 4e6, true);
  EXPECT_EQ(line.meter.take_news(), 1 << 22);
}

}  // namespace unisono
