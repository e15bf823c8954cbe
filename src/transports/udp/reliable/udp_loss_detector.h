// Loss detection over flow_seq, as RFC 9002 (sections 5 and 6) does it for QUIC. It decides which fragments have arrived, which
// are lost, and when to check again. Also the acknowledgements: built, written, and read with every check.
//
// A repeated fragment is a new datagram with a new flow_seq. Numbers are never used twice before they wrap, and are compared as
// signed 32-bit differences. Nothing allocates after construction, except the caller's vectors until they are warm.
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

// True if flow_seq a comes before b.
constexpr bool sequence_before(uint32_t a, uint32_t b) { return static_cast<int32_t>(a - b) < 0; }

struct SequenceRange {
  uint32_t first = 0, last = 0;  // both included
  friend bool operator==(const SequenceRange&, const SequenceRange&) = default;
};

// Payload of a fragment_ack: FlowFeedback, then the ranges of flow_seq that arrived, newest first, with a gap between any two.
inline constexpr size_t ack_ranges_max = 64;
// Ranges further behind the newest number are not reported any more, so that the order of numbers stays clear.
inline constexpr uint32_t ack_reach = 1u << 20;
inline constexpr size_t ack_bytes_max = sizeof(FlowFeedback) + ack_ranges_max * sizeof(SequenceRange);

struct Acknowledgement {
  FlowFeedback feedback;
  std::array<SequenceRange, ack_ranges_max> ranges{};
  size_t count = 0;
  std::span<const SequenceRange> newest_first() const { return {ranges.data(), count}; }
};

// Why an acknowledgement is dropped as a whole.
enum class AckFault : uint8_t { none = 0, too_short, length, too_many, inverted, order, never_sent };
inline constexpr int ack_fault_count = 7;
const char* name(AckFault fault);

// highest_sent: the last flow_seq that was used for this peer.
AckFault read_ack(std::span<const std::byte> payload, uint32_t highest_sent, Acknowledgement& ack);

// The receiver's side: records which flow_seq have arrived, and decides when to acknowledge them.
struct AckSettings {
  uint32_t every = 16;                    // datagrams; 2 … 32
  Nanos delay_max = millisecond;          // for datagrams that are not acknowledged yet
  Nanos gap_spacing = 250 * microsecond;  // a gap is reported at once, but not more often than this
  size_t ranges_max = ack_ranges_max;     // ranges in one acknowledgement: 1 … 64
};

class AckBuilder {
 public:
  explicit AckBuilder(const AckSettings& settings) : settings_(settings) {}

  // Records an authentic datagram that was accepted. eliciting: it asks for an acknowledgement (fragments, probes); others only
  // close gaps. False: this number was seen before, or is too old.
  bool received(uint32_t flow_seq, bool eliciting, Nanos now);
  // Records an authentic datagram for which there was no memory. It is not acknowledged. But the sender soon learns that it
  // came this far, so the sender does not take it for silence.
  void refused(Nanos now) { due_ = std::min(due_, now + settings_.delay_max); }
  // Makes the acknowledgement due now: a frame is whole, or the sender asked.
  void ask(Nanos now);
  // When to send the next acknowledgement; `never` if there is nothing to report.
  Nanos due() const { return due_; }
  // Writes the acknowledgement into `out` (ack_bytes_max are always enough) and counts it as sent. Returns its size.
  size_t write(const FlowFeedback& feedback, std::span<std::byte> out, Nanos now);
  std::span<const SequenceRange> newest_first() const { return {ranges_.data(), count_}; }

 private:
  bool note(uint32_t flow_seq, bool& opens_gap);
  bool extend(size_t index, uint32_t flow_seq);
  void forget_old();
  size_t worth_telling(size_t count) const;

  // Repeated fragments have new numbers, so gaps stay for ever. A range that does not change is therefore reported this often
  // and then no more. (Sixty of them in each acknowledgement took a tenth of a thin link.)
  static constexpr uint32_t tellings = 32;

  AckSettings settings_;
  std::array<SequenceRange, ack_ranges_max> ranges_{};  // newest first; the oldest are forgotten
  size_t count_ = 0;
  uint32_t unsaid_ = 0;
  std::array<uint32_t, tellings> newest_at_{};  // ring: the newest number at each acknowledgement
  uint32_t written_count_ = 0;
  uint32_t all_again_ = 0;  // how many more report everything, because an old range has changed
  Nanos due_ = never, written_ = -second;
};

// The sender's side.
struct FragmentName {
  uint32_t frame = 0, index = 0;
  friend bool operator==(const FragmentName&, const FragmentName&) = default;
};

class LossDetector {
 public:
  static constexpr uint32_t packet_threshold = 3, packet_threshold_max = 128;
  static constexpr Nanos granularity = millisecond;
  static constexpr Nanos ack_delay_max = millisecond;  // the longest delay of an acknowledgement
  static constexpr Nanos probe_interval_max = 50 * millisecond;
  static constexpr size_t window_bytes_min = 64u << 10;
  static constexpr Nanos queue_allowance = 2 * millisecond;

  // At most `datagrams` may be outstanding.
  explicit LossDetector(size_t datagrams);

  // Whether another `bytes` may go out. The pacer controls the rate; this only bounds how much is sent to a stopped receiver.
  bool may_send(size_t bytes, uint64_t rate, const RttEstimator& rtt) const;
  // The kernel took a fragment. flow_seq must be after all earlier ones; skipped numbers belong to other datagrams.
  void sent(uint32_t flow_seq, FragmentName name, uint32_t bytes, const RttEstimator& rtt, Nanos now);

  // Handles an acknowledgement that read_ack accepted; `rtt` must have got its echo before. Appends the fragments that it
  // confirms, including those declared lost before, and the fragments that must be repeated.
  void acknowledged(const Acknowledgement& ack, const RttEstimator& rtt, Nanos now, std::vector<FragmentName>& arrived,
                    std::vector<FragmentName>& lost);
  // Call at due(), or at any time: appends the fragments that must be repeated. If nothing was confirmed for too long, these
  // are the two oldest, whose acknowledgement will show the rest, and all that the receiver has refused. So refused fragments
  // are repeated at growing intervals until the receiver accepts one.
  void expire(const RttEstimator& rtt, Nanos now, std::vector<FragmentName>& lost);
  // When expire() has work; `never` if nothing is outstanding.
  Nanos due() const { return std::min(loss_at_, probe_at_); }

  size_t outstanding() const { return outstanding_; }
  size_t outstanding_bytes() const { return outstanding_bytes_; }
  // Fragments declared lost, by silence or otherwise; and how many of them were acknowledged afterwards.
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
  size_t first_open();
  void hear(uint32_t highest);
  bool confirm(const SequenceRange& range, std::vector<FragmentName>& arrived);
  void call_lost(Entry& entry, State why, std::vector<FragmentName>& lost);
  void find_losses(const RttEstimator& rtt, Nanos now, std::vector<FragmentName>& lost);
  void set_probe_time(const RttEstimator& rtt, Nanos now);
  void forget_old(const RttEstimator& rtt, Nanos now);

  std::vector<Entry> ring_;  // in order of flow_seq, a power of two
  size_t limit_, first_ = 0, count_ = 0, open_ = 0, outstanding_ = 0, outstanding_bytes_ = 0;
  bool any_arrived_ = false;
  uint32_t largest_arrived_ = 0;
  uint32_t heard_ = 0;  // the receiver has got datagrams up to this one, accepted or refused
  bool any_heard_ = false;
  uint32_t threshold_ = packet_threshold;
  uint32_t backoff_ = 0;  // probes without an answer
  Nanos loss_at_ = never, probe_at_ = never;
  uint64_t lost_ = 0, spurious_ = 0, probes_ = 0;
};

}  // namespace unisono
