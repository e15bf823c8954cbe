// Learns how long a phase of a lossy operation may wait, from earlier phases. Pure: durations come in, deadlines come out.
//
// One object per phase and size class (ceil(log2(encoded bytes of the tensor))). Source of the constants:
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

// bytes: of the encoded tensor.
inline uint64_t size_class_of(uint64_t bytes) {
  return static_cast<uint64_t>(std::bit_width(std::max<uint64_t>(bytes, 1) - 1));
}

// The last 64 durations, and their quantiles.
class DurationWindow {
 public:
  static constexpr size_t capacity = 64;
  void add(Nanos duration);
  size_t size() const { return size_; }
  // All three require size() > 0. median: mean of the middle two for an even size. deviation: median of |x - median|, unscaled.
  // p95: the ceil(0.95 n)-th smallest.
  double median() const;
  double deviation() const;
  Nanos p95() const;

 private:
  std::array<Nanos, capacity> values_{};
  size_t size_ = 0, next_ = 0;
};

struct DeadlineSettings {
  Nanos fixed = 0;               // not 0: t_hard, whatever was measured
  Nanos hard_max = 30 * second;  // deadline_max
  double loss_budget = 0.05;
};

// Outcome of one operation's phase at this rank.
struct PhaseOutcome {
  Nanos duration = 0;           // start to close
  Nanos hard = 0;               // t_hard of that phase
  bool cut_by_hard = false;     // censored: 1.5 * hard is recorded instead
  bool silent_peer = false;     // adds no phase duration
  double cut_missing = 0;       // largest missing fraction of a stream that had begun and that t_hard ended
  double missing_fraction = 0;  // over all its streams; repaired ranges count as missing
};

class Deadline {
 public:
  explicit Deadline(const DeadlineSettings& settings) : settings_(settings) {}
  // Sets the options of the next operation; what was learnt stays.
  void set(const DeadlineSettings& settings) { settings_ = settings; }

  // stream_ended: a stream's duration, from first to last arrival. stream_cut: a soft or hard deadline cut the stream; 1.5 *
  // that deadline is recorded. Do not report silent streams, nor those without ranges.
  void stream_ended(Nanos duration);
  void stream_cut(Nanos deadline);
  void phase_ended(const PhaseOutcome& outcome);

  // True until both windows hold 20 durations. While learning, phases are repaired to completion; soft and hard are
  // deadline_max.
  bool learning() const;
  // The t_hard that this rank announces, fast-up rule included. The operation uses the median over all ranks' announcements.
  Nanos hard() const;
  // t_soft of an operation with this t_hard, never above it. Equal to it while learning and on clean links.
  Nanos soft(Nanos agreed_hard) const;
  // The same without the rule for clean links.
  Nanos learnt_soft(Nanos agreed_hard) const;
  static Nanos grace(Nanos soft);
  // True if less than 0.05 % was missing over the last 64 operations. Then t_soft cuts no stream: jitter of a clean link is not
  // loss.
  bool links_are_clean() const;

 private:
  DeadlineSettings settings_;
  DurationWindow streams_, phases_;
  std::array<double, 64> missing_{};
  size_t missing_size_ = 0, missing_next_ = 0;
  Nanos at_least_ = 0;            // fast up: 1.5 * the t_hard that cut a stream which lacked more than the budget
  uint32_t calm_operations_ = 0;  // since such a cut
};

// Median of the ranks' announcements; mean of the middle two for an even number. Zeros (not received yet, or nothing to
// receive) are left out. `own` if no others remain.
Nanos agreed_deadline(std::span<const Nanos> announced, Nanos own);

}  // namespace unisono
