#include "transports/udp/reliable/udp_loss_detector.h"

#include <bit>
#include <cstring>

#include "base/check.h"

namespace unisono {

LossDetector::LossDetector(size_t datagrams)
    : ring_(std::bit_ceil(std::max<size_t>(2 * datagrams, 16))), limit_(std::max<size_t>(datagrams, 1)) {}

bool LossDetector::may_send(size_t bytes, uint64_t rate, const RttEstimator& rtt) const {
  if (outstanding_ >= limit_ || (count_ == ring_.size() && at(0).state == State::outstanding)) return false;
  // Twice what is in flight at this rate, plus what may wait in queues and for an acknowledgement.
  const double window =
      static_cast<double>(rate) * static_cast<double>(2 * (rtt.smoothed() + ack_delay_max) + queue_allowance) * 1e-9;
  return static_cast<double>(outstanding_bytes_ + bytes) <= std::max(window, static_cast<double>(window_bytes_min));
}

void LossDetector::sent(uint32_t flow_seq, FragmentName name, uint32_t bytes, const RttEstimator& rtt, Nanos now) {
  // Numbers also advance with datagrams that are not tracked here, so entries that are long done must not be compared with new
  // ones.
  if (outstanding_ == 0) forget_old(rtt, now);
  UNISONO_CHECK(count_ == 0 || sequence_before(at(count_ - 1).flow_seq, flow_seq));
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

// The index of the first entry whose flow_seq is not before this one. Entries are in order of flow_seq.
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
  bool news = false;
  for (const auto& range : ack.newest_first()) news = confirm(range, arrived) || news;
  hear(ack.feedback.highest_flow_seq);
  if (!news) return;
  backoff_ = 0;
  // The receiver accepts fragments again, so those that it refused before its latest arrival can be repeated at once.
  if (sequence_before(largest_arrived_, heard_)) largest_arrived_ = heard_;
  find_losses(rtt, now, lost);
  set_probe_time(rtt, now);
  forget_old(rtt, now);
}

// Bounds `highest` by what was sent.
void LossDetector::hear(uint32_t highest) {
  if (count_ == 0) return;
  const uint32_t last = at(count_ - 1).flow_seq;
  if (sequence_before(last, highest)) highest = last;
  if (!any_heard_ || sequence_before(heard_, highest)) heard_ = highest;
  any_heard_ = true;
}

// Returns true if the range confirms anything new.
bool LossDetector::confirm(const SequenceRange& range, std::vector<FragmentName>& arrived) {
  bool news = false;
  for (size_t i = lower_bound(range.first); i < count_ && !sequence_before(range.last, at(i).flow_seq); ++i) {
    auto& entry = at(i);
    if (entry.state == State::arrived) continue;
    if (entry.state == State::outstanding) {
      --outstanding_;
      outstanding_bytes_ -= entry.bytes;
    } else {
      ++spurious_;
      // It was only late: from now on as many datagrams may overtake one as have overtaken this one. (RFC 9002, 6.1.1, allows
      // it.)
      if (entry.state == State::lost)
        threshold_ = std::clamp(largest_arrived_ - entry.flow_seq + 1, threshold_, packet_threshold_max);
    }
    entry.state = State::arrived;
    arrived.push_back(entry.name);
    if (!any_arrived_ || sequence_before(largest_arrived_, entry.flow_seq)) largest_arrived_ = entry.flow_seq;
    news = any_arrived_ = true;
  }
  return news;
}

void LossDetector::call_lost(Entry& entry, State why, std::vector<FragmentName>& lost) {
  entry.state = why;
  --outstanding_;
  outstanding_bytes_ -= entry.bytes;
  ++lost_;
  lost.push_back(entry.name);
}

// A datagram is lost if one sent after it has arrived, and it was sent far enough before that one or long enough ago.
void LossDetector::find_losses(const RttEstimator& rtt, Nanos now, std::vector<FragmentName>& lost) {
  loss_at_ = never;
  if (!any_arrived_) return;
  const Nanos round_trip = rtt.measured() ? std::max(rtt.smoothed(), rtt.latest()) : RttEstimator::unmeasured_answer_time;
  const Nanos patience = std::max(round_trip * 9 / 8, granularity);
  for (size_t i = first_open(); i < count_ && sequence_before(at(i).flow_seq, largest_arrived_); ++i) {
    auto& entry = at(i);
    if (entry.state != State::outstanding) continue;
    if (largest_arrived_ - entry.flow_seq >= threshold_ || now - entry.sent_at >= patience) call_lost(entry, State::lost, lost);
    else loss_at_ = std::min(loss_at_, entry.sent_at + patience);
  }
}

void LossDetector::expire(const RttEstimator& rtt, Nanos now, std::vector<FragmentName>& lost) {
  if (now >= loss_at_) find_losses(rtt, now, lost);
  if (now >= probe_at_) {
    ++probes_;
    ++backoff_;
    int presumed = 0;
    for (size_t i = first_open(); i < count_; ++i) {
      const bool refused = any_heard_ && sequence_before(at(i).flow_seq + threshold_, heard_ + 1);
      if (presumed >= 2 && !refused) break;
      if (at(i).state != State::outstanding) continue;
      call_lost(at(i), State::presumed_lost, lost);
      ++presumed;
    }
    set_probe_time(rtt, now);
  }
  if (outstanding_ == 0) loss_at_ = probe_at_ = never;
  forget_old(rtt, now);
}

// The index of the first outstanding entry. No entry before it becomes outstanding again.
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
  // The interval grows by half each time, up to 50 ms, and is at least the answer time of the path.
  const Nanos first = std::max(rtt.repair_interval(), rtt.answer_time() + ack_delay_max);
  const Nanos longest = std::max(probe_interval_max, first);
  Nanos interval = first;
  for (uint32_t i = 0; i < backoff_ && interval < longest; ++i) interval += interval / 2;
  probe_at_ = now + std::min(interval, longest);
}

// Keeps lost entries for a while, because an acknowledgement may come late.
void LossDetector::forget_old(const RttEstimator& rtt, Nanos now) {
  while (count_ > 0) {
    const auto& entry = at(0);
    if (entry.state == State::outstanding ||
        (entry.state != State::arrived && now - entry.sent_at < 2 * rtt.answer_time() + ack_delay_max))
      return;
    ++first_;
    --count_;
  }
  any_arrived_ = any_heard_ =
      false;  // no entry is left to compare with, and it must not be compared with numbers after the next wrap
}

}  // namespace unisono
