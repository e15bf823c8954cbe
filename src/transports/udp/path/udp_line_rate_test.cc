#include "transports/udp/path/udp_line_rate.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace unisono {
namespace {

// A sender in front of a queue that empties at line_bytes_per_second. send() sends at a given rate, and reports the queue's
// delay every half millisecond.
struct SimulatedLine {
  explicit SimulatedLine(double line) : line_bytes_per_second(line) {}

  void send(double bytes_per_second, Nanos time, Nanos each = 500 * microsecond) {
    for (const Nanos end = now + time; now < end; now += each) {
      const double seconds = static_cast<double>(each) * 1e-9;
      line.waited(now, queued / line_bytes_per_second * 1e6);
      sent += bytes_per_second * seconds;
      queued = std::max(0.0, queued + (bytes_per_second - line_bytes_per_second) * seconds);
      line.sent(static_cast<uint64_t>(sent), now + each);
    }
  }

  double line_bytes_per_second, sent = 0, queued = 0;
  Nanos now = second;
  LineRate line;
};

TEST(LineRate, the_rate_is_that_of_the_emptying_queue) {
  for (const double rate : {12.5e6, 15e6, 40e6}) {
    SimulatedLine simulated(12e6);
    simulated.send(30e6, 2 * millisecond);
    simulated.send(rate, 30 * millisecond);
    EXPECT_NEAR(simulated.line.rate(), 12e6, 0.02 * 12e6) << rate;
  }
}

TEST(LineRate, the_rate_is_unknown_while_the_queue_may_have_been_empty) {
  SimulatedLine simulated(12e6);
  simulated.send(6e6, 100 * millisecond);
  EXPECT_EQ(simulated.line.rate(), 0);
  // Each burst has left the queue before the next burst is sent, so the queue is empty in between.
  for (int i = 0; i < 100; ++i) {
    simulated.send(60e6, millisecond, 250 * microsecond);
    simulated.send(0, 9 * millisecond, 9 * millisecond);
  }
  EXPECT_EQ(simulated.line.rate(), 0);
}

TEST(LineRate, the_rate_follows_a_line_that_becomes_slower) {
  SimulatedLine simulated(12e6);
  simulated.send(16e6, 60 * millisecond);
  simulated.line_bytes_per_second = 6e6;
  simulated.queued /= 2;
  simulated.send(8e6, 80 * millisecond);
  EXPECT_NEAR(simulated.line.rate(), 6e6, 0.05 * 6e6);
}

TEST(LineRate, a_rate_that_is_too_low_rises_slowly) {
  SimulatedLine simulated(12e6);
  simulated.send(16e6, 30 * millisecond);
  for (int i = 0; i < 64; ++i) simulated.line.exceeded(1.5);
  EXPECT_GT(simulated.line.rate(), 1.5 * 12e6);
  const double rate = simulated.line.rate();
  simulated.line.exceeded(0.9);
  EXPECT_EQ(simulated.line.rate(), rate);
}

}  // namespace
}  // namespace unisono
