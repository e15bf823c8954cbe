// Estimates the rate of a network queue from the times at which datagrams left it while it was never empty.
//
// A datagram sent at s that waited w leaves the queue at s + w, and everything sent before it has left by then. So two
// datagrams show how much left in which time, whatever the sending rate was. Pure: times and bytes are arguments.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"

namespace unisono {

class LineRate {
 public:
  static constexpr double busy_us = 300;               // a shorter wait may be jitter, so the queue may have been empty
  static constexpr Nanos span_min = 10 * millisecond;  // for one measurement
  static constexpr uint32_t points_min =
      8;  // in it: times of sending, at least `step` apart. A process that sends seldom sends a lot at a time

  static constexpr uint32_t delays_max = 64;

  // `bytes` in all had been sent at `now`; call in order of time.
  void sent(uint64_t bytes, Nanos now);
  // A report: the datagram sent at `sent_at` waited this long.
  void waited(Nanos sent_at, double queue_us);
  // Nothing waits, although the sender sends at `factor` times this rate. So the rate is too low, or a token bucket allows
  // bursts. Raises the rate a little.
  void exceeded(double factor);
  // The queue was too long. If that happened often since the last measurement, the measurements are out of date and are
  // forgotten.
  void delayed();
  // In bytes/s; 0: not known. The highest of the last few measurements: a low one would slow the sender down, and a high one is
  // soon corrected.
  double rate() const;

 private:
  struct Point {
    Nanos at = 0;
    double bytes = 0;
  };
  static constexpr Nanos step = 500 * microsecond;
  bool bytes_at(Nanos at, double& bytes) const;

  std::array<Point, 128> history_{};  // bytes sent by then, at steps
  Point newest_;
  size_t count_ = 0;
  bool busy_ = false;
  Nanos last_sent_at_ = 0, last_left_at_ = 0;
  Point anchor_;  // bytes that had left the queue by then, at the start of this measurement
  uint32_t points_ = 0;
  std::array<double, 4> measured_{};
  size_t measured_count_ = 0;
  uint32_t delays_ = 0;  // since the last measurement
};

}  // namespace unisono
