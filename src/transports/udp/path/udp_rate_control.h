// Chooses the sending rate for one destination from the reports of its receiver. If datagrams wait in queues, the path is
// congested; loss alone does not mean that. ArrivalMeter is the receiver's side, and decides what to report. The classes have
// no clock: they get times and reports as arguments, and their result is a rate.
//
// There is one RateControl per destination, and one more for all destinations together. If all destinations see a delay, it
// comes from the queue at this host's network port. With seven destinations, each of them sees only a seventh of the datagrams
// in that queue, so one destination alone would notice the queue too slowly.
//
// The clocks of the sender and the receiver differ by an unknown offset. The offset has no effect, because only the difference
// between delay_us and its minimum of the last 10 s is used. Source of the constants: docs/design/methods/packet_loss.md,
// "Rates".
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"
#include "transports/udp/path/udp_line_rate.h"
#include "transports/udp/path/udp_rtt.h"
#include "wire/datagram.h"

namespace unisono {

// Keeps the minimum of the values of the last 10 s, with a precision of 1 s.
class RecentMinimum {
 public:
  void add(double value, Nanos now);
  // Returns the minimum, or `otherwise` if there was no value.
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
  uint64_t start = 1'250'000;                 // rate before any measurement, bytes/s
  uint64_t limit = 0;                         // largest rate, bytes/s; 0: no limit
  static constexpr uint64_t floor = 125'000;  // smallest rate, bytes/s: 1 Mbit/s
};

class RateControl {
 public:
  explicit RateControl(const RateSettings& settings);

  // Uses the estimate of the path probe: the rate becomes half of it. After the first decrease of the rate, the estimate is
  // ignored.
  void probed(uint64_t dispersion_rate);
  // For the control of all destinations: handles the estimate for one of them, whose rate is now `rate`. This estimate only
  // raises the rate, because the other paths may be faster.
  void destination_probed(uint64_t rate, uint64_t dispersion_rate);
  void set_limit(uint64_t rate);  // 0: no limit
  // Sets one more limit, which may change at any time; 0: no limit.
  void keep_below(uint64_t rate);
  void set_datagram_bytes(uint32_t bytes) { settings_.datagram_bytes = bytes; }

  // Call this when the kernel has taken a datagram of `bytes` for this destination. All kinds of datagrams count.
  void sent(size_t bytes);
  // Call this when a datagram waits for its turn or for tokens. After a pause, it reduces the rate to the known rate of the
  // path, because it is not known whether the path still carries more.
  void held_back(Nanos now);
  // Handles a report, which may be part of an acknowledgement. Reports may come in any order. Returns true if the rate has
  // changed. `all` is the control of all destinations together, and gets the report, too. If all destinations see the same
  // delay, only `all` reacts to it.
  bool feedback(const FlowFeedback& report, const RttEstimator& rtt, Nanos now, RateControl* all = nullptr);

  uint64_t rate() const { return static_cast<uint64_t>(rate_); }  // in bytes/s
  // The following values are those of the last update.
  Nanos queue_delay() const { return queue_delay_; }
  double loss() const { return loss_; }                 // this fraction of the datagrams was lost in the last window
  double delivered_rate() const { return delivered_; }  // in bytes/s
  bool starting() const { return starting_; }           // true until the first decrease
  uint64_t decreases() const { return decreases_; }
  const LineRate& line() const { return line_; }

 private:
  // The rate is decreased only if the delay is too long in each of the latest reports_min reports. If the process gets no
  // processor for some milliseconds, only one or two reports show a delay; if there is a queue, all reports show it. As long as
  // the rate is still doubled, one report is enough. Only those reports are used that came after the last update, or within
  // max(10 ms, the round trip).
  static constexpr size_t reports_min = 4;
  static constexpr Nanos report_age_max = 10 * millisecond;
  // A queue counts as shared only if the latest reports come from at least reporters_min destinations. If there are fewer
  // destinations than that, all of them must have reported.
  static constexpr size_t reporters_min = 3;
  // The loss is measured over this many datagrams. With fewer datagrams, a difference of five percentage points may be chance.
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
  void add_to_pooled(const FlowFeedback& more, const RateControl& from, const RttEstimator& rtt, Nanos now);
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
  double rate_, rate_max_ = 0;
  bool any_report_ = false, starting_ = true, held_back_ = false;
  Nanos updated_ = 0, held_back_at_ = 0;
  Totals latest_, at_update_, at_loss_window_;
  uint64_t sent_bytes_ = 0, sent_datagrams_ = 0;  // counted since the last update
  // The delay in the first report. Other delays are stored relative to it, so that they do not wrap.
  int32_t delay_reference_us_ = 0;
  std::array<Delay, reports_min> delays_{};  // circular buffer of the latest delays
  size_t delay_count_ = 0;
  RecentMinimum delay_minimum_us_, loss_minimum_;
  int losing_windows_ = 0;
  Nanos delayed_at_ = -second;   // the last time when the delay was too long
  double delayed_queue_us_ = 0;  // queue delay (us) at the time delayed_at_
  LineRate line_;
  uint64_t total_bytes_ = 0;
  // The bytes that the rate allowed and the bytes that were sent, while datagrams waited. Old bytes count less and less.
  double allowed_ = 0, used_ = 0;
  bool paused_ = false;  // there was a pause in this interval
  FlowFeedback pooled_;  // sum of the reports of all destinations
  // The destinations whose reports are in delays_. Some of them may no longer exist, so the pointers are only compared.
  std::array<const RateControl*, reports_min> reporters_{};
  size_t reporters_most_ = 0;  // the largest number of different destinations that were in reporters_ so far
  // True if the latest reports come from enough destinations. If all of them see a delay, it comes from the queue that they
  // share.
  bool queue_is_shared_ = true;
  Nanos interval_min_ = 0;
  Nanos queue_delay_ = 0;
  double loss_ = 0, delivered_ = 0;
  uint64_t decreases_ = 0;
};

// The receiver's side: it counts the datagrams that arrive from one sender, and decides when to report.
class ArrivalMeter {
 public:
  static constexpr uint32_t report_datagrams = 32;
  static constexpr Nanos report_interval = millisecond;
  // A report about fewer datagrams than this waits longer. Otherwise, with eight ranks, each datagram would cause a report, and
  // the reports would take 6 % of the line's rate.
  static constexpr uint32_t few_datagrams = 4;
  static constexpr Nanos few_interval = 3 * millisecond;

  // Records an authentic datagram. clock_us is the time of this process's clock when the datagram arrived; it is taken from the
  // kernel's time stamp if there is one. clock_us wraps.
  void arrived(uint32_t flow_seq, uint32_t sent_at_us, uint32_t clock_us, Nanos now);
  // Returns the time at which the next report must be sent; `never` if no datagram is unreported. After 32 datagrams the report
  // must be sent at once. Otherwise it must be sent 1 ms after the first unreported datagram, or after 3 ms if there are fewer
  // than 4 datagrams.
  Nanos due() const;
  // Returns the report, and counts it as sent. The caller must send it, as feedback or in an acknowledgement.
  FlowFeedback report(uint32_t own_drops, uint32_t clock_us);

 private:
  uint32_t received_ = 0, highest_ = 0;
  uint32_t latest_sent_at_us_ = 0, latest_clock_us_ = 0;
  int32_t first_delay_us_ = 0;  // the delay of the first datagram that is not yet reported
  int64_t delay_sum_us_ = 0;    // the sum of (delay - first_delay_us_) over the datagrams that are not yet reported
  int32_t reported_delay_us_ = 0;
  uint32_t unreported_ = 0;
  Nanos first_unreported_ = never;
};

}  // namespace unisono
