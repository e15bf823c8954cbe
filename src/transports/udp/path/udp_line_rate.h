// Estimates how fast a network queue empties (its rate). The estimate uses the times at which datagrams left the queue, in
// periods in which the queue was never empty.
//
// A datagram that is sent at the time s, and waits in the queue for the time w, leaves the queue at s + w. By then, everything
// that was sent before it has left the queue, too. Therefore two datagrams show how many bytes left the queue in which time,
// whatever the sending rate was. The class has no clock: times and bytes are arguments.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"

namespace unisono {

class LineRate {
 public:
  // After a wait that is shorter, the queue may have been empty, because the wait may have been jitter.
  static constexpr double busy_us = 300;
  static constexpr Nanos span_min = 10 * millisecond;  // a measurement lasts at least this long
  // A measurement needs datagrams that were sent at this many moments, at least `step` apart. A process that sends rarely sends
  // many bytes at a time; with fewer moments, its rate would be inaccurate.
  static constexpr uint32_t points_min = 8;
  static constexpr uint32_t delays_max = 64;

  // Records that by the time `now`, `bytes` bytes have been sent in total. Times must not go back.
  void sent(uint64_t bytes, Nanos now);
  // Handles a report, which says that the datagram sent at `sent_at` waited in the queue for queue_us.
  void waited(Nanos sent_at, double queue_us);
  // Call this if the sender sends at `factor` times the known rate, and still no datagram waits in the queue. Either the known
  // rate is too low, or a token bucket in the network allows bursts. Raises the known rate a little.
  void exceeded(double factor);
  // Call this when the queue was too long. If this happens many times without a new measurement, the old measurements are out
  // of date and are forgotten.
  void delayed();
  // Returns the rate in bytes/s; 0: not known. It is the highest of the last few measurements, because a rate that is too low
  // would slow the sender down, while a rate that is too high is soon corrected.
  double rate() const;

 private:
  struct Point {
    Nanos at = 0;
    double bytes = 0;
  };
  static constexpr Nanos step = 500 * microsecond;
  bool bytes_at(Nanos at, double& bytes) const;

  // The total bytes that had been sent at some earlier times. These times are at least `step` apart.
  std::array<Point, 128> history_{};
  Point newest_;
  size_t count_ = 0;
  bool busy_ = false;
  Nanos last_sent_at_ = 0, last_left_at_ = 0;
  Point anchor_;  // The start of the current measurement: its time, and the total bytes that had left the queue by then.
  uint32_t points_ = 0;
  std::array<double, 4> measured_{};
  size_t measured_count_ = 0;
  uint32_t delays_ = 0;  // how often delayed() was called since the last measurement
};

}  // namespace unisono
