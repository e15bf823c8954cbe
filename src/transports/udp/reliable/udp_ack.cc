#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "base/check.h"
#include "transports/udp/reliable/udp_loss_detector.h"

namespace unisono {

const char* name(AckFault fault) {
  switch (fault) {
    case AckFault::none: return "none";
    case AckFault::too_short: return "too short";
    case AckFault::length: return "length";
    case AckFault::too_many: return "too many ranges";
    case AckFault::inverted: return "inverted range";
    case AckFault::order: return "order of ranges";
    case AckFault::never_sent: return "never sent";
  }
  return "?";
}

AckFault read_ack(std::span<const std::byte> payload, uint32_t highest_sent, Acknowledgement& ack) {
  ack.count = 0;
  if (payload.size() < sizeof(FlowFeedback)) return AckFault::too_short;
  const size_t left = payload.size() - sizeof(FlowFeedback);
  if (left % sizeof(SequenceRange) != 0) return AckFault::length;
  const size_t count = left / sizeof(SequenceRange);
  if (count > ack_ranges_max) return AckFault::too_many;
  ByteReader reader(payload);
  ack.feedback = reader.read<FlowFeedback>();
  for (size_t i = 0; i < count; ++i) {
    const auto range = reader.read<SequenceRange>();
    if (sequence_before(range.last, range.first)) return AckFault::inverted;
    // Two ranges must not touch each other, and all ranges together must span less than half of all numbers. Only then is their
    // order well defined.
    if (i > 0 && !sequence_before(range.last + 1, ack.ranges[i - 1].first)) return AckFault::order;
    if (i > 0 && sequence_before(ack.ranges[0].last, range.first)) return AckFault::order;
    if (sequence_before(highest_sent, range.last) || sequence_before(highest_sent, range.first)) return AckFault::never_sent;
    ack.ranges[i] = range;
  }
  ack.count = count;
  return AckFault::none;
}

bool AckBuilder::received(uint32_t flow_seq, bool eliciting, Nanos now) {
  bool opens_gap = false;
  const bool fresh = add_number(flow_seq, opens_gap);
  if (fresh && written_count_ >= reports_per_range && sequence_before(flow_seq, newest_at_[written_count_ % reports_per_range]))
    full_reports_left_ = reports_per_range;
  if (!eliciting) return fresh;
  // Count a repeated datagram, too. Its sender does not know that the first copy arrived, so the datagram must be acknowledged
  // again.
  ++unacknowledged_;
  const uint32_t every = std::clamp<uint32_t>(settings_.every, 2, 32);
  Nanos due = now + settings_.delay_max;
  if (unacknowledged_ >= every) due = now;
  else if (opens_gap || !fresh) due = std::max(now, written_ + settings_.gap_spacing);
  due_ = std::min(due_, due);
  return fresh;
}

void AckBuilder::make_due(Nanos now) { due_ = std::min(due_, now); }

// Adds a number to ranges_. The ranges stay sorted, newest first, and have gaps between them. If there are too many ranges, the
// oldest is dropped. Returns false if the number was already in a range or is too old.
bool AckBuilder::add_number(uint32_t flow_seq, bool& opens_gap) {
  if (count_ > 0 && sequence_before(flow_seq, ranges_[0].last - ack_reach)) return false;
  size_t i = 0;  // index of the first range that contains flow_seq, touches it, or comes before it
  while (i < count_ && sequence_before(flow_seq + 1, ranges_[i].first)) ++i;
  if (i < count_ && !sequence_before(ranges_[i].last + 1, flow_seq)) return extend(i, flow_seq);
  if (i == ranges_.size()) return false;  // The number is older than all ranges, so it may have been received before.
  opens_gap = i == 0 && count_ > 0;
  const size_t moved_end = std::min(count_, ranges_.size() - 1);
  for (size_t j = moved_end; j > i; --j) ranges_[j] = ranges_[j - 1];
  ranges_[i] = {flow_seq, flow_seq};
  count_ = moved_end + 1;
  forget_old();
  return true;
}

// Adds flow_seq to the range at `index`. The range must contain flow_seq, or be next to it. Returns false if the range
// contained it already.
bool AckBuilder::extend(size_t index, uint32_t flow_seq) {
  auto& range = ranges_[index];
  if (flow_seq == range.last + 1) {
    range.last = flow_seq;  // add_number() has checked that flow_seq does not touch the next newer range
    forget_old();
    return true;
  }
  if (flow_seq + 1 != range.first) return false;
  range.first = flow_seq;
  if (index + 1 < count_ && ranges_[index + 1].last + 1 == flow_seq) {
    range.first = ranges_[index + 1].first;
    --count_;
    for (size_t j = index + 1; j < count_; ++j) ranges_[j] = ranges_[j + 1];
  }
  return true;
}

void AckBuilder::forget_old() {
  const uint32_t oldest = ranges_[0].last - ack_reach;
  while (sequence_before(ranges_[count_ - 1].last, oldest)) --count_;
  auto& last = ranges_[count_ - 1];
  if (sequence_before(last.first, oldest)) last.first = oldest;
}

// Returns how many of the newest `count` ranges must be reported. Ranges that were reported often enough are left out.
size_t AckBuilder::ranges_to_report(size_t count) const {
  if (full_reports_left_ > 0 || written_count_ < reports_per_range) return count;
  const auto reported = newest_at_[written_count_ % reports_per_range];
  while (count > 1 && sequence_before(ranges_[count - 1].last, reported)) --count;
  return count;
}

size_t AckBuilder::write(const FlowFeedback& feedback, std::span<std::byte> out, Nanos now) {
  UNISONO_CHECK(out.size() >= sizeof feedback);
  const size_t credit = (out.size() - sizeof feedback) / sizeof(SequenceRange);
  const size_t count = ranges_to_report(std::min({count_, credit, std::max<size_t>(settings_.ranges_max, 1)}));
  if (full_reports_left_ > 0) --full_reports_left_;
  if (count_ > 0) newest_at_[written_count_++ % reports_per_range] = ranges_[0].last;
  std::memcpy(out.data(), &feedback, sizeof feedback);
  if (count > 0) std::memcpy(out.data() + sizeof feedback, ranges_.data(), count * sizeof(SequenceRange));
  unacknowledged_ = 0;
  due_ = never;
  written_ = now;
  return sizeof feedback + count * sizeof(SequenceRange);
}

}  // namespace unisono
