// Tests that the meter reports a line's rate from windows in which data waited to be sent. Noise must not change the report.
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
  EXPECT_EQ(line.meter.take_change(), 1 << 27);
  EXPECT_EQ(line.meter.take_change(), std::nullopt);
  EXPECT_NEAR(line.meter.sending(), 120e6, 1e6) << "what joiners are given is no power of two";
}

TEST(BandwidthMeter, a_line_without_waiting_data_reports_no_rate) {
  Line line;
  line.run(10 * second, 1e6, 1e6, false);
  EXPECT_EQ(line.meter.take_change(), std::nullopt);
}

TEST(BandwidthMeter, the_lower_direction_counts) {
  Line line;
  line.run(second, 500e6, 16e6, true);
  EXPECT_EQ(line.meter.take_change(), 1 << 24);
}

TEST(BandwidthMeter, sending_is_the_rate_of_the_fullest_recent_windows) {
  Line line;
  for (int i = 0; i < 8; ++i) {
    line.run(150 * millisecond, 60e6, 60e6, true);
    line.run(50 * millisecond, 120e6, 120e6, true);
  }
  EXPECT_NEAR(line.meter.sending(), 120e6, 2e6);
  line.run(3 * second, 60e6, 60e6, true);
  EXPECT_NEAR(line.meter.sending(), 60e6, 2e6) << "what was long ago is forgotten";
}

TEST(BandwidthMeter, one_way_traffic_does_not_change_the_rate) {
  Line line;
  line.run(second, 120e6, 100e6, true);
  EXPECT_EQ(line.meter.take_change(), 1 << 27);
  line.run(10 * second, 120e6, 1e6, true);
  EXPECT_EQ(line.meter.take_change(), std::nullopt);
  Line one_way;
  one_way.run(second, 120e6, 1e5, true);
  EXPECT_EQ(one_way.meter.take_change(), 1 << 27);
}

TEST(BandwidthMeter, a_burst_into_the_kernels_buffers_is_not_the_lines_rate) {
  Line line;
  line.run(50 * millisecond, 2e9, 16e6, true);
  line.run(second, 16e6, 500e6, true);
  EXPECT_EQ(line.meter.take_change(), 1 << 24);
}

TEST(BandwidthMeter, noise_does_not_change_the_rate_and_a_slower_line_does) {
  Line line;
  line.run(second, 16e6, 16e6, true);
  EXPECT_TRUE(line.meter.take_change().has_value());
  line.run(second, 13e6, 16e6, true);
  line.run(second, 20e6, 21e6, true);
  EXPECT_EQ(line.meter.take_change(), std::nullopt);
  line.run(3 * second, 4e6, 4e6, true);
  EXPECT_EQ(line.meter.take_change(), 1 << 22);
}

}  // namespace unisono
