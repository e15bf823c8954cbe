// Chooses the sending rate for one destination from its reports: delay in queues means congestion, loss alone does not. The
// receiver's side decides what to report. Pure: times and reports are arguments, and a rate is the result.
//
// There is one RateControl per destination, and one for everything that goes to all of them together. A delay that all
// destinations share is the queue at this host's own network port. Seven destinations that each see it with a seventh of the
// datagrams would learn about it slowly, each for itself.
//
// The clocks of both ends differ by an unknown offset, which cancels out: only the height of delay_us above its own minimum of
// the last 10 s counts. Source of constants: docs/design/methods/packet_loss.md, "Rates".
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"
#include "transports/udp/path/udp_line_rate.h"
#include "transports/udp/path/udp_rtt.h"
#include "wire/datagram.h"

namespace unisono {

// The minimum over the last 10 s, in steps of 1 s.
class RecentMinimum {
 public:
  void add(double value, Nanos now);
  // Returns `otherwise` if there was no value.
  double value(Nanos now, double otherwise) const;

 private:
  struct Step {
    int64_t number = -1;
    double minimum = 0;
  };
  std::array<Step, 10> steps_{};
};

struct RateSettings {
  uint32_t datagram_bytes = 1472;
  uint64_t start = 1'250'000;                 // bytes/s, before any measurement
  uint64_t limit = 0;                         // 0: none
  static constexpr uint64_t floor = 125'000;  // 1 Mbit/s
};

class RateControl {
 public:
  explicit RateControl(const RateSettings& settings);

  // The path probe's measurement: half of it is the starting rate. Ignored after the first decrease.
  void probed(uint64_t dispersion_rate);
  void set_limit(uint64_t rate);  // 0: none
  // A further limit that may change at any time; 0: none.
  void keep_below(uint64_t rate);
  void set_datagram_bytes(uint32_t bytes) { settings_.datagram_bytes = bytes; }

  // The kernel took one datagram of `bytes`, of any kind, for this destination.
  void sent(size_t bytes);
  // A datagram waits for its turn, or for the rate. After a pause, a rate above the known rate of the path must be tried anew.
  void held_back(Nanos now);
  // Handles a report, alone or in an acknowledgement, in any order. True if the rate has changed. all: the control of all
  // destinations together. It gets the report, too, and the delay that all destinations share counts for it, not for this one.
  bool feedback(const FlowFeedback& report, const RttEstimator& rtt, Nanos now, RateControl* all = nullptr);

  uint64_t rate() const { return static_cast<uint64_t>(rate_); }  // bytes/s
  // The values of the last update.
  Nanos queue_delay() const { return queue_delay_; }
  double loss() const { return loss_; }                 // fraction in the last window
  double delivered_rate() const { return delivered_; }  // bytes/s
  bool starting() const { return starting_; }           // no decrease so far
  uint64_t decreases() const { return decreases_; }
  const LineRate& line() const { return line_; }

 private:
  // The delay must be too long in this many of the latest reports, none older than max(10 ms, the round trip), unless the rate
  // is still being doubled. A process without a processor for some milliseconds delays one or two reports; a queue delays all.
  static constexpr size_t reports_asked = 4;
  static constexpr Nanos report_age_max = 10 * millisecond;
  // Reports of this many destinations (if there are as many) tell a shared queue from the queue of one destination.
  static constexpr size_t reporters_asked = 3;
  // Datagrams in one measurement of loss: fewer say too little about five percentage points.
  static constexpr uint32_t loss_window_datagrams = 256;

  struct Totals {
    uint32_t received = 0, highest = 0, own_drops = 0;
  };
  struct Delay {
    Nanos at = 0;
    double us = 0;
  };
  void take_delay(int32_t delay_us, Nanos now);
  double recent_delay_us(const RttEstimator& rtt, Nanos now, const RateControl* all) const;
  double recent_queue_us(const RttEstimator& rtt, Nanos now, const RateControl* all) const;
  void pool(const FlowFeedback& more, const RateControl& from, const RttEstimator& rtt, Nanos now);
  double latest_queue_us(Nanos now) const;
  void update(const RttEstimator& rtt, Nanos now, const RateControl* all);
  void delayed(double queue_us, double target_us, Nanos answer, Nanos now);
  void count_use(double interval);
  double known_rate() const;
  void increase(double interval, const RateControl* all);
  bool losing(Nanos now);
  void decrease(double rate);
  void set(double rate);

  RateSettings settings_;
  double rate_, most_ = 0;
  bool heard_ = false, starting_ = true, held_back_ = false;
  Nanos updated_ = 0, held_back_at_ = 0;
  Totals latest_, at_update_, at_loss_window_;
  uint64_t sent_bytes_ = 0, sent_datagrams_ = 0;  // since the last update
  int32_t delay_reference_us_ = 0;  // delay of the first report; others are counted from it, so that they do not wrap
  std::array<Delay, reports_asked> delays_{};  // the latest ones, in a ring
  size_t delay_count_ = 0;
  RecentMinimum delay_minimum_us_, loss_minimum_;
  int losing_windows_ = 0;
  Nanos judged_at_ = -second;   // time of a delay that was too long
  double judged_queue_us_ = 0;  // the queue's length then
  LineRate line_;
  uint64_t total_bytes_ = 0;
  double allowed_ = 0, used_ = 0;  // bytes, decaying, while datagrams waited
  bool paused_ = false;            // in this interval
  FlowFeedback pooled_;            // reports of all destinations together
  std::array<const RateControl*, reports_asked>
      reporters_{};            // destinations of delays_; only compared, because some may be gone
  size_t reporters_most_ = 0;  // largest number of different ones
  bool of_way_out_ = true;     // true if there are enough of them that a common delay is not one destination's own
  Nanos interval_min_ = 0;
  Nanos queue_delay_ = 0;
  double loss_ = 0, delivered_ = 0;
  uint64_t decreases_ = 0;
};

// The receiver's side: counts what arrives from one sender, and decides when to report.
class ArrivalMeter {
 public:
  static constexpr uint32_t report_datagrams = 32;
  static constexpr Nanos report_interval = millisecond;
  // A report about fewer datagrams waits longer: with eight ranks there would be one for every datagram, 6 % of the line's
  // rate.
  static constexpr uint32_t few_datagrams = 4;
  static constexpr Nanos few_interval = 3 * millisecond;

  // Records an authentic datagram. clock_us: this side's clock at its arrival (the kernel's time stamp if there is one); it
  // wraps.
  void arrived(uint32_t flow_seq, uint32_t sent_at_us, uint32_t clock_us, Nanos now);
  // After 32 datagrams, or 1 ms (3 ms if they are few) after the first unreported one; `never` if there is none.
  Nanos due() const;
  // The report. It counts as sent once the caller writes it into feedback or an acknowledgement.
  FlowFeedback report(uint32_t own_drops, uint32_t clock_us);

 private:
  uint32_t received_ = 0, highest_ = 0;
  uint32_t latest_sent_at_us_ = 0, latest_clock_us_ = 0;
  int32_t first_delay_us_ = 0;  // of the first unreported datagram; the others are counted from it
  int64_t delay_sum_us_ = 0;    // of (delay - first_delay_us_)
  int32_t reported_delay_us_ = 0;
  uint32_t unreported_ = 0;
  Nanos first_unreported_ = never;
};

}  // namespace unisono
