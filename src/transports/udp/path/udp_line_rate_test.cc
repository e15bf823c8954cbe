#include "transports/udp/path/udp_line_rate.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace unisono {
namespace {

// A sender with a rate of its own before a queue with another rate; every half millisecond one datagram is reported.
struct Way {
  explicit Way(double line) : line_bytes_per_second(line) {}

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

TEST(LineRate, is_what_leaves_a_queue_whatever_was_sent_into_it) {
  for (const double rate : {12.5e6, 15e6, 40e6}) {
    Way way(12e6);
    way.send(30e6, 2 * millisecond);
    way.send(rate, 30 * millisecond);
    EXPECT_NEAR(way.line.rate(), 12e6, 0.02 * 12e6) << rate;
  }
}

TEST(LineRate, is_not_known_while_the_queue_may_have_been_empty) {
  Way way(12e6);
  way.send(6e6, 100 * millisecond);
  EXPECT_EQ(way.line.rate(), 0);
  // Each burst leaves the queue before the next one is sent.
  for (int i = 0; i < 100; ++i) {
    way.send(60e6, millisecond, 250 * microsecond);
    way.send(0, 9 * millisecond, 9 * millisecond);
  }
  EXPECT_EQ(way.line.rate(), 0);
}

TEST(LineRate, follows_a_line_that_becomes_slower) {
  Way way(12e6);
  way.send(16e6, 60 * millisecond);
  way.line_bytes_per_second = 6e6;
  way.queued /= 2;
  way.send(8e6, 80 * millisecond);
  EXPECT_NEAR(way.line.rate(), 6e6, 0.05 * 6e6);
}

TEST(LineRate, forgets_slowly_what_was_too_low) {
  Way way(12e6);
  way.send(16e6, 30 * millisecond);
  for (int i = 0; i < 64; ++i) way.line.exceeded(1.5);
  EXPECT_GT(way.line.rate(), 1.5 * 12e6);
  const double rate = way.line.rate();
  way.line.exceeded(0.9);
  EXPECT_EQ(way.line.rate(), rate);
}

}  // namespace
}  // namespace unisono
