// Round-trip time of one path: smoothed, its variation (RFC 6298, section 2), and the minimum. Samples are arguments.
//
// Unlike TCP's, the timeout for an answer has no minimum of 200 ms: on a lossy network every step would take that minimum
// (docs/design/methods/packet_loss.md, "What stays reliable").
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

  // Values below a microsecond count as one, because echoes on the wire are in microseconds.
  void sample(Nanos rtt) {
    rtt = std::clamp(rtt, microsecond, 60 * second);
    latest_ = rtt;
    minimum_ = measured() ? std::min(minimum_, rtt) : rtt;
    variation_ = measured() ? variation_ + (std::abs(smoothed_ - rtt) - variation_) / 4 : rtt / 2;
    smoothed_ = measured() ? smoothed_ + (rtt - smoothed_) / 8 : rtt;
  }
  // A sample from the echo in feedback: now_us and echo_sent_at_us are of this side's clock and wrap. Impossible values (held
  // for longer than the round trip, or more than a minute) change nothing.
  void echoed(uint32_t now_us, uint32_t echo_sent_at_us, uint32_t held_us) {
    const uint32_t passed = now_us - echo_sent_at_us;
    if (passed > 60'000'000 || held_us > passed) return;
    sample(Nanos{passed - held_us} * microsecond);
  }

  bool measured() const { return smoothed_ != 0; }
  // 0 before the first measurement.
  Nanos smoothed() const { return smoothed_; }
  Nanos variation() const { return variation_; }
  Nanos minimum() const { return minimum_; }
  Nanos latest() const { return latest_; }

  // The time within which an answer should come.
  Nanos answer_time() const { return measured() ? smoothed_ + 4 * variation_ : unmeasured_answer_time; }
  // How long to wait before asking again.
  Nanos repair_interval() const { return std::max(repair_interval_min, answer_time()); }

 private:
  Nanos smoothed_ = 0, variation_ = 0, minimum_ = 0, latest_ = 0;
};

}  // namespace unisono
