#include "transports/udp/path/udp_black_hole.h"

#include <algorithm>

namespace unisono {

void BlackHoleWatch::sent(uint32_t flow_seq, bool is_long, Nanos now) {
  newest_ = flow_seq;
  auto& word = long_[flow_seq % remembered / 64];
  const uint64_t bit = uint64_t{1} << (flow_seq % 64);
  word = is_long ? word | bit : word & ~bit;
  if (!is_long) return;
  if (unconfirmed_++ == 0) since_ = now;
}

void BlackHoleWatch::reported(const FlowFeedback& report) {
  const auto is_after = [](uint32_t a, uint32_t b) { return static_cast<int32_t>(a - b) > 0; };
  // A report about numbers that were not sent is wrong, and proves nothing.
  if (is_after(report.highest_flow_seq, newest_)) return;
  // Numbers that are too old to be remembered count as long. This can only delay a check.
  if (newest_ - counted_ > remembered) counted_ = newest_ - remembered;
  for (; is_after(report.highest_flow_seq, counted_); ++counted_) short_count_ += !is_long(counted_ + 1);
  balance_ = report.received - short_count_;
  if (!is_after(balance_, balance_max_)) return;
  balance_max_ = balance_;
  unconfirmed_ = 0;
  since_ = never;
}

void BlackHoleWatch::checked() {
  balance_max_ = balance_;
  unconfirmed_ = 0;
  since_ = never;
}

Nanos BlackHoleWatch::due(const RttEstimator& rtt) const {
  return unconfirmed_ < unconfirmed_min ? never : since_ + 2 * rtt.answer_time() + report_time;
}

}  // namespace unisono
