// How long a phase of a lossy operation may wait, learnt from those before it. Pure: durations come in, times come out.
//
// One of them for each size class (ceil(log2(encoded bytes of the tensor))) and phase. Source of the constants:
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

// Of a tensor, encoded.
inline uint64_t size_class_of(uint64_t bytes) {
  return static_cast<uint64_t>(std::bit_width(std::max<uint64_t>(bytes, 1) - 1));
}

// The last 64 durations, and their quantiles.
class DurationWindow {
 public:
  static constexpr size_t capacity = 64;
  void add(Nanos duration);
  size_t size() const { return size_; }
  // All three want size() > 0. median: mean of the middle two; deviation: the median of |x - median|, unscaled; p95: the
  // ceil(0.95 n)-th smallest.
  double median() const;
  double deviation() const;
  Nanos p95() const;

 private:
  std::array<Nanos, capacity> values_{};
  size_t size_ = 0, next_ = 0;
};

struct DeadlineSettings {
  Nanos fixed = 0;               // not 0: t_hard is this, whatever was measured
  Nanos hard_max = 30 * second;  // deadline_max
  double loss_budget = 0.05;
};

// What one finished operation's phase was like, at this rank.
struct PhaseOutcome {
  Nanos duration = 0;           // start to close
  Nanos hard = 0;               // the t_hard that it ran with
  bool cut_by_hard = false;     // censored: 1.5 * hard is recorded instead
  bool silent_peer = false;     // adds no phase duration
  double cut_missing = 0;       // of the streams that had been heard and that t_hard ended: the largest missing fraction
  double missing_fraction = 0;  // of all its streams; what was repaired counts as missing
};

class Deadline {
 public:
  explicit Deadline(const DeadlineSettings& settings) : settings_(settings) {}
  // For the next operation; what was learnt stays.
  void set(const DeadlineSettings& settings) { settings_ = settings; }

  // A stream's duration, first to last arrival; cut by a deadline (soft or hard): 1.5 * that deadline is recorded. Silent
  // streams, and those without ranges, are not told.
  void stream_ended(Nanos duration);
  void stream_cut(Nanos deadline);
  void phase_ended(const PhaseOutcome& outcome);

  // Until both windows hold 20: repair to completion, soft and hard are deadline_max.
  bool learning() const;
  // t_hard, fast up included: what this rank announces. The operation takes the median over ranks of what they announced.
  Nanos hard() const;
  // t_soft of an operation whose t_hard is this; never above it. It is this while learning, and on clean links.
  Nanos soft(Nanos agreed_hard) const;
  // The same before the rule of clean links.
  Nanos learnt_soft(Nanos agreed_hard) const;
  static Nanos grace(Nanos soft);
  // No stream is cut at t_soft while less than 0.05 % was missing over the last 64 operations: the jitter of a clean link is no
  // loss.
  bool links_are_clean() const;

 private:
  DeadlineSettings settings_;
  DurationWindow streams_, phases_;
  std::array<double, 64> missing_{};
  size_t missing_size_ = 0, missing_next_ = 0;
  Nanos at_least_ = 0;            // fast up: 1.5 * the t_hard that cut a stream of which more than the budget was missing
  uint32_t calm_operations_ = 0;  // since then
};

// Median of what the ranks announced (the mean of the middle two, if they are even in number); zeros (not heard yet, or nothing
// to receive) are left out; `own` if nothing else is there.
Nanos agreed_deadline(std::span<const Nanos> announced, Nanos own);

}  // namespace unisono
