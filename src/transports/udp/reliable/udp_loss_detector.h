// Detects losses by flow_seq (the sequence number of a datagram), as RFC 9002 (sections 5 and 6) does it for QUIC. LossDetector
// decides which fragments have arrived, which are lost, and when to check again. This file also builds, writes, reads and
// checks acknowledgements.
//
// A repeated fragment is a new datagram with a new flow_seq. Each number is used once until the numbers wrap. Numbers are
// compared as signed 32-bit differences. Memory is allocated only until the table and the caller's vectors have reached the
// size that they need. The table begins small, because most links of a large group carry little.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/clock.h"
#include "transports/udp/path/udp_rtt.h"
#include "wire/datagram.h"

namespace unisono {

// Returns true if the flow_seq `a` comes before `b`.
constexpr bool sequence_before(uint32_t a, uint32_t b) { return static_cast<int32_t>(a - b) < 0; }

struct SequenceRange {
  uint32_t first = 0, last = 0;  // The range includes both the first and the last number.
  friend bool operator==(const SequenceRange&, const SequenceRange&) = default;
};

// The payload of a fragment_ack is a FlowFeedback, followed by the ranges of flow_seq that have arrived. Ranges are sorted,
// newest first, and there is a gap between any two.
inline constexpr size_t ack_ranges_max = 64;
// Ranges that are further behind the newest number are not reported, because numbers wrap, and their order would become
// unclear.
inline constexpr uint32_t ack_reach = 1u << 20;
inline constexpr size_t ack_bytes_max = sizeof(FlowFeedback) + ack_ranges_max * sizeof(SequenceRange);

struct Acknowledgement {
  FlowFeedback feedback;
  std::array<SequenceRange, ack_ranges_max> ranges{};
  size_t count = 0;
  std::span<const SequenceRange> newest_first() const { return {ranges.data(), count}; }
};

// The fault of an acknowledgement. If there is a fault, the whole acknowledgement is dropped.
enum class AckFault : uint8_t { none = 0, too_short, length, too_many, inverted, order, never_sent };
inline constexpr int ack_fault_count = 7;
const char* name(AckFault fault);

// Reads and checks an acknowledgement. highest_sent is the last flow_seq that was used for this peer.
AckFault read_ack(std::span<const std::byte> payload, uint32_t highest_sent, Acknowledgement& ack);

// Settings of AckBuilder.
struct AckSettings {
  uint32_t every = 16;            // An acknowledgement is sent after this many datagrams: 2 … 32.
  Nanos delay_max = millisecond;  // a datagram is acknowledged at the latest after this time
  // A new gap is reported at once, but at least this time after the last acknowledgement.
  Nanos gap_spacing = 250 * microsecond;
  size_t ranges_max = ack_ranges_max;  // an acknowledgement has at most this many ranges: 1 … 64
};

class AckBuilder {
 public:
  explicit AckBuilder(const AckSettings& settings) : settings_(settings) {}

  // Records an authentic datagram that was accepted. `eliciting` is true if the datagram needs an acknowledgement (a fragment);
  // other datagrams only close gaps. Returns false if the number was seen before, or is too old.
  bool received(uint32_t flow_seq, bool eliciting, Nanos now);
  // Records an authentic datagram for which there was no memory. The datagram is not acknowledged. But an acknowledgement is
  // sent soon, and its highest_flow_seq shows the sender that the datagram has reached this host.
  void refused(Nanos now) { due_ = std::min(due_, now + settings_.delay_max); }
  // Causes an acknowledgement to be sent now, because a frame has arrived completely.
  void make_due(Nanos now);
  // Returns the time at which the next acknowledgement must be sent; `never` if there is nothing to report.
  Nanos due() const { return due_; }
  // Writes an acknowledgement into `out`, and counts it as sent. `out` never needs more than ack_bytes_max bytes. Returns the
  // size.
  size_t write(const FlowFeedback& feedback, std::span<std::byte> out, Nanos now);
  std::span<const SequenceRange> newest_first() const { return {ranges_.data(), count_}; }

 private:
  bool add_number(uint32_t flow_seq, bool& opens_gap);
  bool extend(size_t index, uint32_t flow_seq);
  void forget_old();
  size_t ranges_to_report(size_t count) const;

  // Repeated fragments have new numbers, so a gap in the numbers is never closed. Therefore an unchanged range is reported in
  // at most this many acknowledgements. (Without the limit, sixty ranges in each acknowledgement used a tenth of a slow link.)
  static constexpr uint32_t reports_per_range = 32;

  AckSettings settings_;
  // The newest range comes first. If there are more than ack_ranges_max, the oldest is dropped.
  std::array<SequenceRange, ack_ranges_max> ranges_{};
  size_t count_ = 0;
  uint32_t unacknowledged_ = 0;
  // A circular buffer. For each of the last acknowledgements, it holds the newest number that was reported.
  std::array<uint32_t, reports_per_range> newest_at_{};
  uint32_t written_count_ = 0;
  uint32_t full_reports_left_ = 0;  // An old range has changed. Therefore this many further acknowledgements report all ranges.
  Nanos due_ = never, written_ = -second;
};

// Identifies a fragment by the number of its frame and by its index in the frame.
struct FragmentName {
  uint32_t frame = 0, index = 0;
  friend bool operator==(const FragmentName&, const FragmentName&) = default;
};

class LossDetector {
 public:
  static constexpr uint32_t packet_threshold = 3, packet_threshold_max = 128;
  static constexpr Nanos granularity = millisecond;
  static constexpr Nanos ack_delay_max = millisecond;  // the receiver acknowledges a fragment at the latest after this time
  static constexpr Nanos probe_interval_max = 50 * millisecond;
  static constexpr size_t window_bytes_min = 64u << 10;
  static constexpr Nanos queue_allowance = 2 * millisecond;

  // At most `datagrams` fragments may be outstanding (sent, and neither confirmed nor lost).
  explicit LossDetector(size_t datagrams);

  // Returns true if `bytes` more bytes may be sent. The rate is controlled by the pacer; this limit matters only if the
  // receiver has stopped.
  bool may_send(size_t bytes, uint64_t rate, const RttEstimator& rtt) const;
  // Records that the kernel has taken a fragment. flow_seq must be after all earlier ones. Numbers may be skipped; they belong
  // to other datagrams.
  void sent(uint32_t flow_seq, FragmentName name, uint32_t bytes, const RttEstimator& rtt, Nanos now);

  // Handles an acknowledgement that read_ack has accepted. Before this call, the echo in the acknowledgement must be added to
  // `rtt`. The function appends fragments that are newly confirmed to `arrived`, even if they were declared lost before. It
  // appends fragments that must be repeated to `lost`.
  void acknowledged(const Acknowledgement& ack, const RttEstimator& rtt, Nanos now, std::vector<FragmentName>& arrived,
                    std::vector<FragmentName>& lost);
  // Appends the fragments that must be repeated to `lost`. Call this at due(), or at any time. If nothing was confirmed for too
  // long, two more kinds of fragments must be repeated:
  // - the two oldest outstanding fragments: their acknowledgement will show which other fragments have arrived
  // - all fragments that the receiver has refused: they are repeated at growing intervals until it accepts one
  void expire(const RttEstimator& rtt, Nanos now, std::vector<FragmentName>& lost);
  // Forgets all fragments that were sent so far. Later acknowledgements of them change nothing. Call this when frames are cut
  // again, because the names of their fragments then have another meaning.
  void forget();
  // Returns the time at which expire() has work; `never` if nothing is outstanding.
  Nanos due() const { return std::min(loss_at_, probe_at_); }

  size_t outstanding() const { return outstanding_; }
  size_t outstanding_bytes() const { return outstanding_bytes_; }
  // lost_count: how many fragments were declared lost. spurious_count: how many of these were acknowledged later. probe_count:
  // how often nothing was confirmed for too long.
  uint64_t lost_count() const { return lost_; }
  uint64_t spurious_count() const { return spurious_; }
  uint64_t probe_count() const { return probes_; }

 private:
  enum class State : uint8_t { outstanding, arrived, lost, presumed_lost };
  struct Entry {
    uint32_t flow_seq = 0;
    FragmentName name;
    uint32_t bytes = 0;
    Nanos sent_at = 0;
    State state = State::arrived;
  };
  Entry& at(size_t index) { return ring_[(first_ + index) & (ring_.size() - 1)]; }
  const Entry& at(size_t index) const { return ring_[(first_ + index) & (ring_.size() - 1)]; }
  size_t lower_bound(uint32_t flow_seq) const;
  void grow();
  size_t first_open();
  void note_received(uint32_t highest);
  bool confirm(const SequenceRange& range, std::vector<FragmentName>& arrived);
  void mark_lost(Entry& entry, State why, std::vector<FragmentName>& lost);
  void find_losses(const RttEstimator& rtt, Nanos now, std::vector<FragmentName>& lost);
  void set_probe_time(const RttEstimator& rtt, Nanos now);
  void forget_old(const RttEstimator& rtt, Nanos now);

  std::vector<Entry> ring_;  // circular buffer, sorted by flow_seq; its size is a power of two
  size_t ring_max_;          // the ring grows up to this size
  size_t limit_, first_ = 0, count_ = 0, open_ = 0, outstanding_ = 0, outstanding_bytes_ = 0;
  bool any_arrived_ = false;
  uint32_t largest_arrived_ = 0;
  // The highest flow_seq that has reached the receiver, whether the receiver accepted or refused the datagram.
  uint32_t highest_received_ = 0;
  bool any_received_ = false;
  uint32_t threshold_ = packet_threshold;
  uint32_t backoff_ = 0;  // how many probes were sent since something was last confirmed
  Nanos loss_at_ = never, probe_at_ = never;
  uint64_t lost_ = 0, spurious_ = 0, probes_ = 0;
};

}  // namespace unisono
