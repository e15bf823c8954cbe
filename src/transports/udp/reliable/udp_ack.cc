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
    // Ranges do not touch each other, and together span less than half of the numbers, so their order is well defined.
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
  const bool fresh = note(flow_seq, opens_gap);
  if (fresh && written_count_ >= tellings && sequence_before(flow_seq, newest_at_[written_count_ % tellings]))
    all_again_ = tellings;
  if (!eliciting) return fresh;
  // A datagram that we have already: the sender does not know that, so it is acknowledged again soon.
  ++unsaid_;
  const uint32_t every = std::clamp<uint32_t>(settings_.every, 2, 32);
  Nanos due = now + settings_.delay_max;
  if (unsaid_ >= every) due = now;
  else if (opens_gap || !fresh) due = std::max(now, written_ + settings_.gap_spacing);
  due_ = std::min(due_, due);
  return fresh;
}

void AckBuilder::ask(Nanos now) { due_ = std::min(due_, now); }

// Keeps the ranges newest first and apart from each other. If there are too many, the oldest is forgotten.
bool AckBuilder::note(uint32_t flow_seq, bool& opens_gap) {
  if (count_ > 0 && sequence_before(flow_seq, ranges_[0].last - ack_reach)) return false;
  size_t i = 0;  // the first range that does not lie wholly after it, with a gap between
  while (i < count_ && sequence_before(flow_seq + 1, ranges_[i].first)) ++i;
  if (i < count_ && !sequence_before(ranges_[i].last + 1, flow_seq)) return extend(i, flow_seq);
  if (i == ranges_.size()) return false;  // older than all that is remembered, so it may have been seen
  opens_gap = i == 0 && count_ > 0;
  const size_t moved_end = std::min(count_, ranges_.size() - 1);
  for (size_t j = moved_end; j > i; --j) ranges_[j] = ranges_[j - 1];
  ranges_[i] = {flow_seq, flow_seq};
  count_ = moved_end + 1;
  forget_old();
  return true;
}

// Requires that flow_seq is in the range or next to it. Returns false if it is in it.
bool AckBuilder::extend(size_t index, uint32_t flow_seq) {
  auto& range = ranges_[index];
  if (flow_seq == range.last + 1) {
    range.last = flow_seq;  // note() has checked that it does not touch the next newer range
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

// How many of the newest ranges to report: without those that were reported often enough.
size_t AckBuilder::worth_telling(size_t count) const {
  if (all_again_ > 0 || written_count_ < tellings) return count;
  const auto told = newest_at_[written_count_ % tellings];
  while (count > 1 && sequence_before(ranges_[count - 1].last, told)) --count;
  return count;
}

size_t AckBuilder::write(const FlowFeedback& feedback, std::span<std::byte> out, Nanos now) {
  UNISONO_CHECK(out.size() >= sizeof feedback);
  const size_t credit = (out.size() - sizeof feedback) / sizeof(SequenceRange);
  const size_t count = worth_telling(std::min({count_, credit, std::max<size_t>(settings_.ranges_max, 1)}));
  if (all_again_ > 0) --all_again_;
  if (count_ > 0) newest_at_[written_count_++ % tellings] = ranges_[0].last;
  std::memcpy(out.data(), &feedback, sizeof feedback);
  if (count > 0) std::memcpy(out.data() + sizeof feedback, ranges_.data(), count * sizeof(SequenceRange));
  unsaid_ = 0;
  due_ = never;
  written_ = now;
  return sizeof feedback + count * sizeof(SequenceRange);
}

}  // namespace unisono
