#include "transports/udp/reliable/udp_loss_detector.h"

#include <bit>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace unisono {

LossDetector::LossDetector(size_t datagrams)
    : ring_(16), ring_max_(std::bit_ceil(std::max<size_t>(2 * datagrams, 16))), limit_(std::max<size_t>(datagrams, 1)) {}

void LossDetector::grow() {
  std::vector<Entry> larger(2 * ring_.size());
  for (size_t i = 0; i < count_; ++i) larger[i] = at(i);
  open_ = std::max(open_, first_) - first_;
  first_ = 0;
  ring_ = std::move(larger);
}

bool LossDetector::may_send(size_t bytes, uint64_t rate, const RttEstimator& rtt) const {
  if (outstanding_ >= limit_ || (count_ == ring_max_ && at(0).state == State::outstanding)) return false;
  // Allows rate * (2 * (round trip + acknowledgement delay) + queue_allowance) bytes in flight, but never less than
  // window_bytes_min.
  const double window =
      static_cast<double>(rate) * static_cast<double>(2 * (rtt.smoothed() + ack_delay_max) + queue_allowance) * 1e-9;
  return static_cast<double>(outstanding_bytes_ + bytes) <= std::max(window, static_cast<double>(window_bytes_min));
}

void LossDetector::sent(uint32_t flow_seq, FragmentName name, uint32_t bytes, const RttEstimator& rtt, Nanos now) {
  // Numbers are also used for datagrams that are not tracked here, so they may wrap while an old entry stays. Therefore old
  // entries must be removed in time.
  if (outstanding_ == 0) forget_old(rtt, now);
  UNISONO_CHECK(count_ == 0 || sequence_before(at(count_ - 1).flow_seq, flow_seq));
  if (count_ == ring_.size() && count_ < ring_max_) grow();
  if (count_ == ring_.size()) {
    UNISONO_CHECK(at(0).state != State::outstanding);
    ++first_;
    --count_;
  }
  at(count_++) = {flow_seq, name, bytes, now, State::outstanding};
  ++outstanding_;
  outstanding_bytes_ += bytes;
  set_probe_time(rtt, now);
}

// Returns the index of the first entry whose flow_seq is not before this one. Entries are sorted by flow_seq.
size_t LossDetector::lower_bound(uint32_t flow_seq) const {
  size_t low = 0, high = count_;
  while (low < high) {
    const size_t middle = (low + high) / 2;
    if (sequence_before(at(middle).flow_seq, flow_seq)) low = middle + 1;
    else high = middle;
  }
  return low;
}

void LossDetector::acknowledged(const Acknowledgement& ack, const RttEstimator& rtt, Nanos now,
                                std::vector<FragmentName>& arrived, std::vector<FragmentName>& lost) {
  bool any_new = false;
  for (const auto& range : ack.newest_first()) any_new = confirm(range, arrived) || any_new;
  note_received(ack.feedback.highest_flow_seq);
  if (!any_new) return;
  backoff_ = 0;
  // The receiver accepts fragments again. Therefore repeat at once the fragments that it has refused.
  if (sequence_before(largest_arrived_, highest_received_)) largest_arrived_ = highest_received_;
  find_losses(rtt, now, lost);
  set_probe_time(rtt, now);
  forget_old(rtt, now);
}

// Sets highest_received_ to the highest flow_seq that has reached the receiver. If this is beyond the last fragment that was
// sent, uses the number of that fragment.
void LossDetector::note_received(uint32_t highest) {
  if (count_ == 0) return;
  const uint32_t last = at(count_ - 1).flow_seq;
  if (sequence_before(last, highest)) highest = last;
  if (!any_received_ || sequence_before(highest_received_, highest)) highest_received_ = highest;
  any_received_ = true;
}

// Marks the fragments whose numbers are in the range as arrived. Returns true if any of them was not marked before.
bool LossDetector::confirm(const SequenceRange& range, std::vector<FragmentName>& arrived) {
  bool any_new = false;
  for (size_t i = lower_bound(range.first); i < count_ && !sequence_before(range.last, at(i).flow_seq); ++i) {
    auto& entry = at(i);
    if (entry.state == State::arrived) continue;
    if (entry.state == State::outstanding) {
      --outstanding_;
      outstanding_bytes_ -= entry.bytes;
    } else {
      ++spurious_;
      // The datagram was late, not lost. Raise the threshold: from now on, this many later datagrams may overtake a datagram
      // before it counts as lost (RFC 9002, section 6.1.1).
      if (entry.state == State::lost)
        threshold_ = std::clamp(largest_arrived_ - entry.flow_seq + 1, threshold_, packet_threshold_max);
    }
    entry.state = State::arrived;
    arrived.push_back(entry.name);
    if (!any_arrived_ || sequence_before(largest_arrived_, entry.flow_seq)) largest_arrived_ = entry.flow_seq;
    any_new = any_arrived_ = true;
  }
  return any_new;
}

void LossDetector::mark_lost(Entry& entry, State why, std::vector<FragmentName>& lost) {
  entry.state = why;
  --outstanding_;
  outstanding_bytes_ -= entry.bytes;
  ++lost_;
  lost.push_back(entry.name);
}

// Finds lost datagrams. A datagram is lost if a later one has arrived and one of two conditions holds: the later number is at
// least threshold_ ahead, or the datagram was sent long enough ago.
void LossDetector::find_losses(const RttEstimator& rtt, Nanos now, std::vector<FragmentName>& lost) {
  loss_at_ = never;
  if (!any_arrived_) return;
  const Nanos round_trip = rtt.measured() ? std::max(rtt.smoothed(), rtt.latest()) : RttEstimator::unmeasured_answer_time;
  const Nanos loss_delay = std::max(round_trip * 9 / 8, granularity);
  for (size_t i = first_open(); i < count_ && sequence_before(at(i).flow_seq, largest_arrived_); ++i) {
    auto& entry = at(i);
    if (entry.state != State::outstanding) continue;
    if (largest_arrived_ - entry.flow_seq >= threshold_ || now - entry.sent_at >= loss_delay)
      mark_lost(entry, State::lost, lost);
    else loss_at_ = std::min(loss_at_, entry.sent_at + loss_delay);
  }
}

void LossDetector::expire(const RttEstimator& rtt, Nanos now, std::vector<FragmentName>& lost) {
  if (now >= loss_at_) find_losses(rtt, now, lost);
  if (now >= probe_at_) {
    ++probes_;
    ++backoff_;
    int presumed = 0;
    for (size_t i = first_open(); i < count_; ++i) {
      const bool refused = any_received_ && sequence_before(at(i).flow_seq + threshold_, highest_received_ + 1);
      if (presumed >= 2 && !refused) break;
      if (at(i).state != State::outstanding) continue;
      mark_lost(at(i), State::presumed_lost, lost);
      ++presumed;
    }
    set_probe_time(rtt, now);
  }
  if (outstanding_ == 0) loss_at_ = probe_at_ = never;
  forget_old(rtt, now);
}

void LossDetector::forget() {
  first_ += count_;
  count_ = outstanding_ = outstanding_bytes_ = 0;
  any_arrived_ = any_received_ = false;
  backoff_ = 0;
  loss_at_ = probe_at_ = never;
}

// Returns the index of the first outstanding entry. The entries before it never become outstanding again.
size_t LossDetector::first_open() {
  open_ = std::max(open_, first_);
  while (open_ < first_ + count_ && at(open_ - first_).state != State::outstanding) ++open_;
  return open_ - first_;
}

void LossDetector::set_probe_time(const RttEstimator& rtt, Nanos now) {
  probe_at_ = never;
  if (outstanding_ == 0) {
    loss_at_ = never;
    return;
  }
  // The first interval is the answer time of the path. Each further interval is longer by half, up to max(50 ms, the first
  // interval).
  const Nanos first = std::max(rtt.repair_interval(), rtt.answer_time() + ack_delay_max);
  const Nanos longest = std::max(probe_interval_max, first);
  Nanos interval = first;
  for (uint32_t i = 0; i < backoff_ && interval < longest; ++i) interval += interval / 2;
  probe_at_ = now + std::min(interval, longest);
}

// Removes old entries whose fragments have arrived or are lost. Lost entries stay for a while, because an acknowledgement may
// come late.
void LossDetector::forget_old(const RttEstimator& rtt, Nanos now) {
  while (count_ > 0) {
    const auto& entry = at(0);
    if (entry.state == State::outstanding ||
        (entry.state != State::arrived && now - entry.sent_at < 2 * rtt.answer_time() + ack_delay_max))
      return;
    ++first_;
    --count_;
  }
  // No entry is left, and the numbers may wrap before the next one. Later numbers must not be compared with the old ones.
  any_arrived_ = any_received_ = false;
}

}  // namespace unisono
