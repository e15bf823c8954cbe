// Computes the deadlines of a lossy operation's phases from the durations of earlier phases. This class does not read a clock;
// the caller reports the durations.
//
// A stream is the data that one rank sends to this rank in one phase. Two deadlines limit how long this rank waits for it:
// t_soft counts from the first datagram, and t_hard from the start of the phase (see stream_clock.h).
//
// Use one object for each phase and size class (see size_class_of). Source of the constants:
// docs/design/methods/packet_loss.md, "Streams and deadlines".
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/clock.h"

namespace unisono {

// Returns ceil(log2(bytes)), where bytes is the encoded size of the tensor.
inline uint64_t size_class_of(uint64_t bytes) {
  return static_cast<uint64_t>(std::bit_width(std::max<uint64_t>(bytes, 1) - 1));
}

// The last 64 durations, and their quantiles.
class DurationWindow {
 public:
  static constexpr size_t capacity = 64;
  void add(Nanos duration);
  size_t size() const { return size_; }
  // These functions require size() > 0.
  // - median: if size() is even, the mean of the two middle values
  // - deviation: the median of |x - median|
  // - p95: the ceil(0.95 * size())-th smallest value
  double median() const;
  double deviation() const;
  Nanos p95() const;

 private:
  std::array<Nanos, capacity> values_{};
  size_t size_ = 0, next_ = 0;
};

struct DeadlineSettings {
  Nanos fixed = 0;  // if this is not 0, t_hard has this value (but at most hard_max), and measured durations do not change it
  Nanos hard_max = 30 * second;  // upper limit of t_hard (option deadline_max)
  double loss_budget = 0.05;
};

// How one phase of an operation ended at this rank.
struct PhaseOutcome {
  Nanos duration = 0;        // from the start of the phase to its close
  Nanos hard = 0;            // t_hard of the phase
  bool cut_by_hard = false;  // t_hard ended a stream, so 1.5 * `hard` is recorded instead of `duration`
  bool silent_peer = false;  // a peer sent nothing in the phase, so no duration is recorded
  double cut_missing = 0;    // among the streams that t_hard ended: the largest fraction of a stream's data that was missing
  // fraction of the data of all streams that was missing at first (data that came by repair counts as missing)
  double missing_fraction = 0;
};

class Deadline {
 public:
  explicit Deadline(const DeadlineSettings& settings) : settings_(settings) {}
  // Sets the options of the next operation. The recorded durations are kept.
  void set(const DeadlineSettings& settings) { settings_ = settings; }

  // Report the end of each stream with one of these functions. Do not report streams that were silent or have no ranges.
  // - stream_ended: no deadline cut the stream. Records `duration`, the time from its first to its last arrival.
  // - stream_cut: t_soft or t_hard cut the stream. Records 1.5 * `deadline`.
  void stream_ended(Nanos duration);
  void stream_cut(Nanos deadline);
  void phase_ended(const PhaseOutcome& outcome);

  // True until both windows hold 20 durations. While this is true, every phase is repaired until nothing is missing, and both
  // t_soft and t_hard are deadline_max.
  bool learning() const;
  // Returns the t_hard that this rank announces to the other ranks. An operation uses the median of what all ranks announced.
  Nanos hard() const;
  // Returns t_soft for an operation in which the ranks have agreed on the t_hard agreed_hard. t_soft is never longer than
  // t_hard. The two are equal in the learning phase, and if links_are_clean().
  Nanos soft(Nanos agreed_hard) const;
  // Like soft(), but does not make t_soft equal to t_hard if the links are clean.
  Nanos soft_from_durations(Nanos agreed_hard) const;
  static Nanos grace(Nanos soft);
  // True if less than 0.05 % of the data was missing in the last 64 operations. In this case, data that comes late is only
  // delayed and not lost, so t_soft is made equal to t_hard.
  bool links_are_clean() const;

 private:
  DeadlineSettings settings_;
  DurationWindow streams_, phases_;
  std::array<double, 64> missing_{};
  size_t missing_size_ = 0, missing_next_ = 0;
  // Both deadlines are at least this long. If t_hard cuts a stream of which more than loss_budget is missing, this rises to 1.5
  // * t_hard.
  Nanos deadline_min_ = 0;
  // number of operations since t_hard last cut a stream of which more than loss_budget was missing
  uint32_t calm_operations_ = 0;
};

// Returns the median of the announcements above 0 (the mean of the two middle ones if their number is even). If all
// announcements are 0, returns `own`. An announcement is 0 if it has not arrived, or if the rank that made it receives no data.
Nanos agreed_deadline(std::span<const Nanos> announced, Nanos own);

}  // namespace unisono
