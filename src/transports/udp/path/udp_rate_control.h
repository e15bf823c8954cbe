// How fast to send to one destination, learnt from what it reports: the delay in queues is congestion, loss alone is not. And
// the receiver's part: what it has to report. Pure: times and reports come in, a rate comes out.
//
// One of them is for each destination, and one for what goes to all of them together: what all destinations wait for alike is
// the way out of this host, which is one queue, and seven destinations that each learn of it by a seventh of its datagrams
// learn slowly, each for itself.
//
// The clocks of both ends differ by an unknown offset, which cancels: only how far delay_us is above its own minimum of the
// last 10 s counts. Source of constants: docs/design/methods/packet_loss.md, "Rates".
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
  // `otherwise` if there was nothing.
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
  uint64_t start = 1'250'000;                 // bytes/s, where nothing was measured
  uint64_t limit = 0;                         // 0: none
  static constexpr uint64_t floor = 125'000;  // 1 Mbit/s
};

class RateControl {
 public:
  explicit RateControl(const RateSettings& settings);

  // What the path probe measured: half of it is the start. Ignored after the first decrease.
  void probed(uint64_t dispersion_rate);
  void set_limit(uint64_t rate);  // 0: none
  // What it may be just now, beside that; 0: none.
  void keep_below(uint64_t rate);
  void set_datagram_bytes(uint32_t bytes) { settings_.datagram_bytes = bytes; }

  // One datagram to this destination, of any kind, `bytes` long, has been given to the kernel.
  void sent(size_t bytes);
  // Something waits for its turn, or for the rate. After a pause a rate above what is known to go through has to be tried anew.
  void held_back(Nanos now);
  // Feedback, alone or in an acknowledgement, in any order. True if the rate has changed. all: of all destinations together: it
  // hears of the report, too; what they wait for alike is its delay, and not this one's.
  bool feedback(const FlowFeedback& report, const RttEstimator& rtt, Nanos now, RateControl* all = nullptr);

  uint64_t rate() const { return static_cast<uint64_t>(rate_); }  // bytes/s
  // As of the last update.
  Nanos queue_delay() const { return queue_delay_; }
  double loss() const { return loss_; }                 // a fraction, of the last window
  double delivered_rate() const { return delivered_; }  // bytes/s
  bool starting() const { return starting_; }           // no decrease yet
  uint64_t decreases() const { return decreases_; }
  const LineRate& line() const { return line_; }

 private:
  // In these many of the latest reports, none older than max(10 ms, the round trip), the delay must have been too long, unless
  // the rate is still being doubled. A process that gets no processor for some milliseconds delays one report or two; a queue
  // delays all.
  static constexpr size_t reports_asked = 4;
  static constexpr Nanos report_age_max = 10 * millisecond;
  // So many destinations, where there are as many, tell a queue before all of them from one before one of them.
  static constexpr size_t reporters_asked = 3;
  // Datagrams of one measurement of loss: fewer say too little about five points.
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
  int32_t delay_reference_us_ = 0;             // the first report's; the others are counted from it, so that they do not wrap
  std::array<Delay, reports_asked> delays_{};  // the latest ones, in turn
  size_t delay_count_ = 0;
  RecentMinimum delay_minimum_us_, loss_minimum_;
  int losing_windows_ = 0;
  Nanos judged_at_ = -second;   // a delay that was too long
  double judged_queue_us_ = 0;  // how long it was then
  LineRate line_;
  uint64_t total_bytes_ = 0;
  double allowed_ = 0, used_ = 0;                              // bytes, lately, while something waited
  bool paused_ = false;                                        // in this interval
  FlowFeedback pooled_;                                        // of all destinations
  std::array<const RateControl*, reports_asked> reporters_{};  // of delays_; compared only, some may be gone
  size_t reporters_most_ = 0;                                  // that were different
  bool of_way_out_ = true;  // they are so many that what they have in common is not one destination's
  Nanos interval_min_ = 0;
  Nanos queue_delay_ = 0;
  double loss_ = 0, delivered_ = 0;
  uint64_t decreases_ = 0;
};

// The receiver's part: counts what arrives from one sender, and says when it is time to report.
class ArrivalMeter {
 public:
  static constexpr uint32_t report_datagrams = 32;
  static constexpr Nanos report_interval = millisecond;
  // A report of fewer datagrams than these waits longer: among eight ranks there would be one for every datagram, 6 % of the
  // line.
  static constexpr uint32_t few_datagrams = 4;
  static constexpr Nanos few_interval = 3 * millisecond;

  // An authentic datagram. clock_us: this side's clock when it arrived (the kernel's time stamp, where there is one), wraps.
  void arrived(uint32_t flow_seq, uint32_t sent_at_us, uint32_t clock_us, Nanos now);
  // 32 datagrams, or 1 ms (3 ms if they are few) after the first that was not reported; `never` if there is none.
  Nanos due() const;
  // The report. Written into feedback or an acknowledgement, it counts as sent.
  FlowFeedback report(uint32_t own_drops, uint32_t clock_us);

 private:
  uint32_t received_ = 0, highest_ = 0;
  uint32_t latest_sent_at_us_ = 0, latest_clock_us_ = 0;
  int32_t first_delay_us_ = 0;  // of those not reported; the others are counted from it
  int64_t delay_sum_us_ = 0;    // of (delay - first_delay_us_)
  int32_t reported_delay_us_ = 0;
  uint32_t unreported_ = 0;
  Nanos first_unreported_ = never;
};

}  // namespace unisono
