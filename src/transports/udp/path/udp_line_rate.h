// What the way to a queue carries: learnt from when datagrams left it while it was never empty.
//
// A datagram that was sent at s and waited w leaves the queue at s + w, and everything that was sent before it has left by
// then. So two of them show how much went out in which time, whatever the rate was at which it was sent. Pure: times and bytes
// come in.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"

namespace unisono {

class LineRate {
 public:
  static constexpr double busy_us = 300;               // a shorter wait may be jitter: the queue may have been empty
  static constexpr Nanos span_min = 10 * millisecond;  // of one measurement
  static constexpr uint32_t points_min =
      8;  // in it: times of sending, at least `step` apart. A process that sends seldom sends a lot at a time

  static constexpr uint32_t delays_max = 64;

  // So many bytes in all had been sent at `now`; in order of time.
  void sent(uint64_t bytes, Nanos now);
  // A report: the datagram sent then waited so long.
  void waited(Nanos sent_at, double queue_us);
  // Nothing waits, at `factor` times this rate: it is too low, or something saves up for bursts. A little higher.
  void exceeded(double factor);
  // The queue was too long. When that has happened often since the last measurement, what was measured then is of no use any
  // more: it is forgotten.
  void delayed();
  // bytes/s; 0: not known. The highest of the last few measurements: what is too low holds back, what is too high is soon
  // measured again.
  double rate() const;

 private:
  struct Point {
    Nanos at = 0;
    double bytes = 0;
  };
  static constexpr Nanos step = 500 * microsecond;
  bool bytes_at(Nanos at, double& bytes) const;

  std::array<Point, 128> history_{};  // what had been sent when, at steps
  Point newest_;
  size_t count_ = 0;
  bool busy_ = false;
  Nanos last_sent_at_ = 0, last_left_at_ = 0;
  Point anchor_;  // what had left the queue when, at the begin of this measurement
  uint32_t points_ = 0;
  std::array<double, 4> measured_{};
  size_t measured_count_ = 0;
  uint32_t delays_ = 0;  // since the last measurement
};

}  // namespace unisono
