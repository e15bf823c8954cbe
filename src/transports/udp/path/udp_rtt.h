// The round-trip time of one path: its smoothed value and its variation (both as in RFC 6298, section 2), and its minimum. The
// class does not measure: it gets the samples as arguments.
//
// TCP waits at least 200 ms for an answer. This class has no such minimum, because on a lossy network every lost message would
// then cost 200 ms (docs/design/methods/packet_loss.md, "What stays reliable").
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "base/clock.h"

namespace unisono {

class RttEstimator {
 public:
  static constexpr Nanos unmeasured_answer_time = 50 * millisecond;
  static constexpr Nanos repair_interval_min = 2 * millisecond;

  // Adds a measured round trip. A value below a microsecond counts as one microsecond, because times in datagrams are given in
  // microseconds.
  void sample(Nanos rtt) {
    rtt = std::clamp(rtt, microsecond, 60 * second);
    latest_ = rtt;
    minimum_ = measured() ? std::min(minimum_, rtt) : rtt;
    variation_ = measured() ? variation_ + (std::abs(smoothed_ - rtt) - variation_) / 4 : rtt / 2;
    smoothed_ = measured() ? smoothed_ + (rtt - smoothed_) / 8 : rtt;
  }
  // Adds the round trip that follows from the echo in a report: now_us - echo_sent_at_us - held_us. The first two are times of
  // this process's clock, and they wrap. Impossible values change nothing: if the time that has passed is shorter than held_us,
  // or longer than a minute.
  void echoed(uint32_t now_us, uint32_t echo_sent_at_us, uint32_t held_us) {
    const uint32_t passed = now_us - echo_sent_at_us;
    if (passed > 60'000'000 || held_us > passed) return;
    sample(Nanos{passed - held_us} * microsecond);
  }

  bool measured() const { return smoothed_ != 0; }
  // Before the first measurement, the results of the following four functions are 0.
  Nanos smoothed() const { return smoothed_; }
  Nanos variation() const { return variation_; }
  Nanos minimum() const { return minimum_; }
  Nanos latest() const { return latest_; }

  // Returns how long to wait at most for an answer.
  Nanos answer_time() const { return measured() ? smoothed_ + 4 * variation_ : unmeasured_answer_time; }
  // Returns how long to wait for an answer before a message is repeated.
  Nanos repair_interval() const { return std::max(repair_interval_min, answer_time()); }

 private:
  Nanos smoothed_ = 0, variation_ = 0, minimum_ = 0, latest_ = 0;
};

}  // namespace unisono
