// Notices that a path may have stopped carrying long datagrams: a black hole (RFC 8899, section 4.3). Nobody reports such a
// change, so the sender concludes it from the receiver's reports.
//
// A report says how many datagrams have arrived, up to which number. If more have arrived than short ones were sent, at least
// one long datagram was among them, and the path carries long datagrams. If this is not known of any of the last long
// datagrams, the path must be checked by probes (udp_path_probe.h). The watch has no clock and decides nothing else.
#pragma once

#include <array>
#include <cstdint>

#include "base/clock.h"
#include "transports/udp/path/udp_rtt.h"
#include "wire/datagram.h"

namespace unisono {

class BlackHoleWatch {
 public:
  static constexpr uint32_t unconfirmed_min = 3;  // so many long datagrams without a sign of arrival are a reason to check
  // The receiver reports after 3 ms at the latest. The rest is for a receiver that gets no processor for a while.
  static constexpr Nanos report_time = 10 * millisecond;

  // Records a datagram of the first series of numbers. Call this for each number, in order.
  void sent(uint32_t flow_seq, bool is_long, Nanos now);
  // Handles a report that is newer than all earlier ones.
  void reported(const FlowFeedback& report);
  // Call this when a probe has shown whether long datagrams arrive. The watch begins again.
  void checked();
  // Returns the time at which the path must be checked; `never` if there is no reason to.
  Nanos due(const RttEstimator& rtt) const;

 private:
  static constexpr uint32_t remembered = 16'384;  // a power of two
  bool is_long(uint32_t flow_seq) const { return (long_[flow_seq % remembered / 64] >> (flow_seq % 64) & 1) != 0; }

  std::array<uint64_t, remembered / 64> long_{};  // one bit per number; only those of the last `remembered` numbers are valid
  uint32_t newest_ = 0;                           // the number of the datagram that was sent last
  uint32_t counted_ = 0, short_count_ = 0;        // short_count_: how many of the numbers up to counted_ were short datagrams
  // balance_: arrivals minus short_count_, in the newest report. This is at most the number of long datagrams that have
  // arrived. It rises only when one arrives, or when a short one arrives late; so only a new maximum proves something.
  uint32_t balance_ = 0, balance_max_ = 0;
  uint32_t unconfirmed_ = 0;  // number of long datagrams that were sent since the path was last known to carry them
  Nanos since_ = never;       // when the first of them was sent
};

}  // namespace unisono
