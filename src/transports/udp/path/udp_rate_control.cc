#include "transports/udp/path/udp_rate_control.h"

#include <algorithm>
#include <cmath>

namespace unisono {

void RecentMinimum::add(double value, Nanos now) {
  const int64_t number = now / second;
  auto& step = steps_[static_cast<size_t>(number) % steps_.size()];
  if (step.number == number) step.minimum = std::min(step.minimum, value);
  else step = {number, value};
}

double RecentMinimum::value(Nanos now, double otherwise) const {
  const int64_t number = now / second;
  bool found = false;
  double least = otherwise;
  for (const auto& step : steps_) {
    if (step.number < 0 || step.number <= number - static_cast<int64_t>(steps_.size())) continue;
    least = found ? std::min(least, step.minimum) : step.minimum;
    found = true;
  }
  return least;
}

RateControl::RateControl(const RateSettings& settings) : settings_(settings), rate_(0) {
  set(static_cast<double>(settings.start));
}

void RateControl::set(double rate) {
  rate_ = std::clamp(rate, static_cast<double>(RateSettings::floor), 1e11);
  if (settings_.limit > 0) rate_ = std::min(rate_, static_cast<double>(settings_.limit));
  if (rate_max_ > 0) rate_ = std::min(rate_, rate_max_);
}

void RateControl::keep_below(uint64_t rate) {
  rate_max_ = static_cast<double>(rate);
  set(rate_);
}

void RateControl::probed(uint64_t dispersion_rate) {
  if (starting_ && dispersion_rate > 0) set(static_cast<double>(dispersion_rate) / 2);
}

void RateControl::destination_probed(uint64_t rate, uint64_t dispersion_rate) {
  // keep_below() follows later: the pacer does not know the destination's new rate yet.
  if (rate_max_ > 0) rate_max_ = std::max(rate_max_, static_cast<double>(rate));
  if (static_cast<double>(dispersion_rate) / 2 > rate_) probed(dispersion_rate);
}

void RateControl::set_limit(uint64_t rate) {
  settings_.limit = rate;
  set(rate_);
}

void RateControl::sent(size_t bytes) {
  sent_bytes_ += bytes;
  total_bytes_ += bytes;
  ++sent_datagrams_;
}

void RateControl::held_back(Nanos now) {
  held_back_ = true;
  const auto pause = 2 * millisecond + static_cast<Nanos>(2e9 * settings_.datagram_bytes / rate_);
  if (now - held_back_at_ > pause) {
    paused_ = true;
    // During the pause, a token bucket in the network may have filled. It then lets a higher rate pass for a short time.
    // Therefore do not continue above the known rate.
    if (line_.rate() > 0) set(std::min(rate_, known_rate()));
  }
  held_back_at_ = now;
}

bool RateControl::feedback(const FlowFeedback& report, const RttEstimator& rtt, Nanos now, RateControl* all) {
  const Totals totals{report.received, report.highest_flow_seq, report.own_drops};
  if (!any_report_) {
    any_report_ = true;
    latest_ = at_update_ = at_loss_window_ = totals;
    updated_ = now;
    sent_bytes_ = sent_datagrams_ = 0;
    delay_reference_us_ = report.delay_us;
    take_delay(report.delay_us, now);
    return false;
  }
  const auto newer = [](uint32_t a, uint32_t b) { return static_cast<int32_t>(a - b); };
  if (newer(totals.received, latest_.received) < 0 || newer(totals.highest, latest_.highest) < 0 ||
      newer(totals.own_drops, latest_.own_drops) < 0) {
    return false;  // a late report: a newer one has already been handled
  }
  if (all == nullptr) line_.sent(total_bytes_, now);
  if (totals.received != latest_.received) {
    take_delay(report.delay_us, now);
    if (all == nullptr && queue_is_shared_) {
      line_.waited(now - Nanos{static_cast<uint32_t>(now / microsecond) - report.echo_sent_at_us} * microsecond,
                   recent_queue_us(rtt, now, nullptr));
    } else if (all != nullptr) {
      auto more = report;
      more.received -= latest_.received;
      more.highest_flow_seq -= latest_.highest;
      all->add_to_pooled(more, *this, rtt, now);
    }
  }
  latest_ = totals;
  if (now - updated_ < std::max({rtt.smoothed(), interval_min_, microsecond}) || latest_.highest == at_update_.highest)
    return false;
  const double before = rate_;
  update(rtt, now, all);
  return rate_ != before;
}

// Adds the new counts in the report of one destination to pooled_. Then handles pooled_ as if it were a report of all
// destinations.
void RateControl::add_to_pooled(const FlowFeedback& more, const RateControl& from, const RttEstimator& rtt, Nanos now) {
  constexpr int32_t stale_us = 2000;
  interval_min_ = ArrivalMeter::report_interval;  // a single destination sends its reports at this interval, too
  pooled_.received += more.received;
  pooled_.highest_flow_seq += more.highest_flow_seq;
  // If another destination has already reported about a later time, the delay in this report is out of date.
  if (any_report_ && static_cast<int32_t>(more.echo_sent_at_us - pooled_.echo_sent_at_us) < -stale_us) return;
  pooled_.echo_sent_at_us = more.echo_sent_at_us;
  pooled_.delay_us = static_cast<int32_t>(from.latest_queue_us(now));
  reporters_[delay_count_ % reporters_.size()] = &from;
  size_t different = 0;
  for (size_t i = 0; i < reporters_.size(); ++i)
    different += reporters_[i] != nullptr && std::find(&reporters_[0], &reporters_[i], reporters_[i]) == &reporters_[i];
  reporters_most_ = std::max(reporters_most_, different);
  queue_is_shared_ = different >= std::min(reporters_most_, reporters_min);
  (void)feedback(pooled_, rtt, now);
}

void RateControl::take_delay(int32_t delay_us, Nanos now) {
  const auto above =
      static_cast<double>(static_cast<int32_t>(static_cast<uint32_t>(delay_us) - static_cast<uint32_t>(delay_reference_us_)));
  delay_minimum_us_.add(above, now);
  delays_[delay_count_++ % delays_.size()] = {now, above};
}

// Returns the smallest delay in the latest reports. As long as the rate is still doubled, this can be too late: by the time
// that one destination has sent four reports, the rate could be eight times too high. Therefore the result is then the delay in
// the last report. If several destinations report, the four reports come soon enough.
double RateControl::recent_delay_us(const RttEstimator& rtt, Nanos now, const RateControl* all) const {
  const auto& last = delays_[(delay_count_ - 1) % delays_.size()];
  if (starting_ && (all != nullptr ? all : this)->reporters_most_ < reporters_min) return last.us;
  double least = last.us;
  const Nanos since = std::min(updated_, now - std::max(report_age_max, rtt.smoothed()));
  for (size_t i = 0; i < std::min(delay_count_, delays_.size()); ++i) {
    if (delays_[i].at >= since) least = std::min(least, delays_[i].us);
  }
  return least;
}

double RateControl::recent_queue_us(const RttEstimator& rtt, Nanos now, const RateControl* all) const {
  return delay_count_ == 0 ? 0 : std::max(recent_delay_us(rtt, now, all) - delay_minimum_us_.value(now, 0), 0.0);
}

double RateControl::latest_queue_us(Nanos now) const {
  return std::max(delays_[(delay_count_ - 1) % delays_.size()].us - delay_minimum_us_.value(now, 0), 0.0);
}

void RateControl::update(const RttEstimator& rtt, Nanos now, const RateControl* all) {
  const double interval = static_cast<double>(now - updated_) * 1e-9;
  const double datagram_bytes =
      sent_datagrams_ > 0 ? static_cast<double>(sent_bytes_) / static_cast<double>(sent_datagrams_) : settings_.datagram_bytes;
  delivered_ = static_cast<double>(std::min(latest_.received - at_update_.received, latest_.highest - at_update_.highest)) *
               datagram_bytes / interval;
  count_use(interval);
  const double common_us = all == nullptr ? 0 : all->recent_queue_us(rtt, now, nullptr);
  const double queue_us = std::max(recent_queue_us(rtt, now, all) - common_us, 0.0);
  const double target_us = std::max(1000.0, static_cast<double>(rtt.minimum()) / 4000);
  const Nanos answer = rtt.smoothed() + ArrivalMeter::report_interval;
  queue_delay_ = static_cast<Nanos>(queue_us * 1000);
  const bool dropped = latest_.own_drops != at_update_.own_drops;
  const bool loses = losing(now);

  if (dropped) {
    decrease(0.7 * rate_);
  } else if (queue_us > target_us && now - delayed_at_ >= answer) {
    // Decrease the rate once, and then wait until a report can show the effect. This takes a millisecond longer than a round
    // trip, because reports are a millisecond apart.
    delayed(queue_us, target_us, answer, now);
  } else if (loses) {
    decrease(std::max(0.7 * rate_, std::min(delivered_, rate_)));
  } else if (latest_queue_us(now) - common_us < target_us / 2 &&
             (held_back_ || static_cast<double>(sent_bytes_) >= rate_ * interval / 2)) {
    // Raise the rate only if it is used. Otherwise pauses would raise it without end, although no higher rate was ever tried.
    // The rate also counts as used if datagrams had to wait (held_back_), because other destinations had their turn, or because
    // the process seldom gets a processor.
    increase(interval, all);
  }
  // The reports of a destination do not show the load of the other destinations. Therefore the rate of one destination is
  // limited to twice the rate of all destinations together.
  if (all != nullptr && !starting_) set(std::min(rate_, 2 * all->rate_));
  updated_ = now;
  at_update_ = latest_;
  sent_bytes_ = sent_datagrams_ = 0;
  held_back_ = paused_ = false;
}

// Decreases the rate because the queue is too long. If the rate of the path is known, it limits the new rate: from above and,
// if the queue is short, also from below. As long as the queue gets shorter, the last decrease is enough, because a long queue
// needs time to empty. If the rate were decreased again, the line would be idle afterwards.
void RateControl::delayed(double queue_us, double target_us, Nanos answer, Nanos now) {
  const bool shrinks = now - delayed_at_ < 4 * answer && queue_us < 0.9 * delayed_queue_us_;
  delayed_at_ = now;
  delayed_queue_us_ = queue_us;
  if (shrinks) return;
  line_.delayed();
  double rate = rate_ * (1 - 0.4 * (1 - target_us / queue_us));
  if (const double known = known_rate(); known > 0 && queue_is_shared_) {
    rate = std::min(rate, known);
    if (queue_us < 4 * target_us) rate = std::max(rate, std::min(rate_, 0.75 * known));
  }
  decrease(rate);
}

// Compares the bytes that the rate allowed with the bytes that were sent. It does so only for intervals in which datagrams
// always waited.
void RateControl::count_use(double interval) {
  if (!held_back_ || paused_) return;
  allowed_ += rate_ * interval - allowed_ / 8;
  used_ += static_cast<double>(sent_bytes_) - used_ / 8;
}

// Returns the rate that must be set so that the process sends as fast as the line carries; 0: not known. A process that gets
// the processor late sends less than its rate allows. Therefore the result is (the line's rate) * allowed_ / used_.
double RateControl::known_rate() const { return line_.rate() * (used_ > 0 ? std::clamp(allowed_ / used_, 1.0, 16.0) : 1.0); }

void RateControl::increase(double interval, const RateControl* all) {
  const double datagram = settings_.datagram_bytes / interval, known = known_rate();
  double rate = starting_ ? 2 * rate_ : rate_ + std::max(datagram, 0.02 * rate_);
  // If the path's rate is known, the rate rises quickly up to it, and slowly above it. Above it the rate rises slowly because a
  // token bucket in the network may let more pass for a while. When the bucket is empty, only a growing queue shows it.
  if (known > 0 && rate_ < known) {
    rate = std::min(std::max(rate, (rate_ + known) / 2), known);
  } else if (known > 0) {
    rate = rate_ + std::max(datagram / 32, 0.0025 * rate_);
    line_.exceeded(rate_ / known);
  }
  if (all != nullptr) rate = std::min(rate, std::max(rate_, (starting_ ? 4 : 1.25) * all->rate_));
  set(rate);
}

void RateControl::decrease(double rate) {
  starting_ = false;
  ++decreases_;
  set(rate);
}

// Returns true if the loss is high in two consecutive windows. It is high if loss > minimum + 5 percentage points + 3 standard
// errors. The standard errors allow for chance: the minimum over many windows is well below the mean, and in a window with few
// datagrams the loss is sometimes well above the mean.
bool RateControl::losing(Nanos now) {
  const uint32_t sent = latest_.highest - at_loss_window_.highest;
  if (sent < loss_window_datagrams) return false;
  const double datagrams = sent;
  loss_ = 1 - std::min(static_cast<double>(latest_.received - at_loss_window_.received) / datagrams, 1.0);
  const double least = loss_minimum_.value(now, loss_);
  loss_minimum_.add(loss_, now);
  at_loss_window_ = latest_;
  const double middle = (loss_ + least) / 2;
  losing_windows_ = loss_ > least + 0.05 + 3 * std::sqrt(2 * middle * (1 - middle) / datagrams) ? losing_windows_ + 1 : 0;
  return losing_windows_ >= 2;
}

void ArrivalMeter::arrived(uint32_t flow_seq, uint32_t sent_at_us, uint32_t clock_us, Nanos now) {
  if (received_ == 0 || static_cast<int32_t>(flow_seq - highest_) > 0) highest_ = flow_seq;
  ++received_;
  latest_sent_at_us_ = sent_at_us;
  latest_clock_us_ = clock_us;
  const uint32_t delay = clock_us - sent_at_us;
  if (unreported_ == 0) {
    first_unreported_ = now;
    first_delay_us_ = static_cast<int32_t>(delay);
    delay_sum_us_ = 0;
  }
  delay_sum_us_ += static_cast<int32_t>(delay - static_cast<uint32_t>(first_delay_us_));
  ++unreported_;
}

Nanos ArrivalMeter::due() const {
  if (unreported_ == 0) return never;
  if (unreported_ >= report_datagrams) return first_unreported_;
  return first_unreported_ + (unreported_ < few_datagrams ? few_interval : report_interval);
}

FlowFeedback ArrivalMeter::report(uint32_t own_drops, uint32_t clock_us) {
  if (unreported_ > 0) {
    const auto mean = static_cast<int32_t>(delay_sum_us_ / static_cast<int64_t>(unreported_));
    reported_delay_us_ = static_cast<int32_t>(static_cast<uint32_t>(first_delay_us_) + static_cast<uint32_t>(mean));
  }
  unreported_ = 0;
  first_unreported_ = never;
  return {.received = received_,
          .highest_flow_seq = highest_,
          .own_drops = own_drops,
          .echo_sent_at_us = latest_sent_at_us_,
          .echo_held_us = clock_us - latest_clock_us_,
          .delay_us = reported_delay_us_};
}

}  // namespace unisono
