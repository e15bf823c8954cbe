#include "transports/udp_rate_control.h"

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

RateControl::RateControl(const RateSettings& settings) : settings_(settings), rate_(0) { set(static_cast<double>(settings.start)); }

void RateControl::set(double rate) {
  rate_ = std::clamp(rate, static_cast<double>(RateSettings::floor), 1e11);
  if (settings_.limit > 0) rate_ = std::min(rate_, static_cast<double>(settings_.limit));
}

void RateControl::probed(uint64_t dispersion_rate) {
  if (starting_ && dispersion_rate > 0) set(static_cast<double>(dispersion_rate) / 2);
}

void RateControl::set_limit(uint64_t rate) {
  settings_.limit = rate;
  set(rate_);
}

void RateControl::sent(size_t bytes) {
  sent_bytes_ += bytes;
  ++sent_datagrams_;
}

bool RateControl::feedback(const FlowFeedback& report, const RttEstimator& rtt, Nanos now) {
  const Totals totals{report.received, report.highest_flow_seq, report.own_drops};
  if (!heard_) {
    heard_ = true;
    latest_ = at_update_ = at_loss_window_ = totals;
    updated_ = now;
    sent_bytes_ = sent_datagrams_ = 0;
    delay_reference_us_ = report.delay_us;
    take_delay(report.delay_us, now);
    return false;
  }
  const auto newer = [](uint32_t a, uint32_t b) { return static_cast<int32_t>(a - b); };
  if (newer(totals.received, latest_.received) < 0 || newer(totals.highest, latest_.highest) < 0 || newer(totals.own_drops, latest_.own_drops) < 0) {
    return false;  // overtaken by another report
  }
  if (totals.received != latest_.received) take_delay(report.delay_us, now);
  latest_ = totals;
  if (now - updated_ < std::max(rtt.smoothed(), microsecond) || latest_.highest == at_update_.highest) return false;
  const double before = rate_;
  update(rtt, now);
  return rate_ != before;
}

void RateControl::take_delay(int32_t delay_us, Nanos now) {
  const auto above = static_cast<double>(static_cast<int32_t>(static_cast<uint32_t>(delay_us) - static_cast<uint32_t>(delay_reference_us_)));
  delay_minimum_us_.add(above, now);
  delays_[delay_count_++ % delays_.size()] = {now, above};
}

// The smallest of the latest reports; while the rate is still doubled, the last one's: waiting for more would be eight times too fast.
double RateControl::recent_delay_us(const RttEstimator& rtt, Nanos now) const {
  const auto& last = delays_[(delay_count_ - 1) % delays_.size()];
  if (starting_) return last.us;
  double least = last.us;
  const Nanos since = std::min(updated_, now - std::max(report_age_max, rtt.smoothed()));
  for (size_t i = 0; i < std::min(delay_count_, delays_.size()); ++i) {
    if (delays_[i].at >= since) least = std::min(least, delays_[i].us);
  }
  return least;
}

void RateControl::update(const RttEstimator& rtt, Nanos now) {
  const double interval = static_cast<double>(now - updated_) * 1e-9;
  const double datagram_bytes = sent_datagrams_ > 0 ? static_cast<double>(sent_bytes_) / static_cast<double>(sent_datagrams_) : settings_.datagram_bytes;
  delivered_ = static_cast<double>(std::min(latest_.received - at_update_.received, latest_.highest - at_update_.highest)) * datagram_bytes / interval;
  const double least_us = delay_minimum_us_.value(now, 0);
  const double queue_us = std::max(recent_delay_us(rtt, now) - least_us, 0.0);
  const double last_us = delays_[(delay_count_ - 1) % delays_.size()].us - least_us;
  const double target_us = std::max(1000.0, static_cast<double>(rtt.minimum()) / 4000);
  queue_delay_ = static_cast<Nanos>(queue_us * 1000);
  const bool dropped = latest_.own_drops != at_update_.own_drops;
  const bool loses = losing(now);

  if (dropped) {
    decrease(0.7 * rate_);
  } else if (queue_us > target_us && now - decreased_at_ >= rtt.smoothed() + ArrivalMeter::report_interval) {
    // Once, until a report can show what that has done (the specification has "once per round trip"; reports take a millisecond longer).
    decreased_at_ = now;
    decrease(rate_ * (1 - 0.4 * (1 - target_us / queue_us)));
  } else if (loses) {
    decrease(std::max(0.7 * rate_, std::min(delivered_, rate_)));
  } else if (last_us < target_us / 2 && (held_back_ || static_cast<double>(sent_bytes_) >= rate_ * interval / 2)) {
    // Only a rate that is used is raised (not in the specification): else pauses would raise it without end, for nothing has been tried. It is used, too,
    // where something waits for it although little goes out: beside other destinations, or where the process seldom gets a processor.
    set(starting_ ? 2 * rate_ : rate_ + std::max(settings_.datagram_bytes / interval, 0.02 * rate_));
  }
  updated_ = now;
  at_update_ = latest_;
  sent_bytes_ = sent_datagrams_ = 0;
  held_back_ = false;
}

void RateControl::decrease(double rate) {
  starting_ = false;
  ++decreases_;
  set(rate);
}

// Loss more than five points above its minimum in two windows running. Three standard errors are added (not in the specification): the
// minimum over many windows is well below the mean, and a window of few datagrams well above it now and then.
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
  return unreported_ >= report_datagrams ? first_unreported_ : first_unreported_ + report_interval;
}

FlowFeedback ArrivalMeter::report(uint32_t own_drops, uint32_t clock_us) {
  if (unreported_ > 0) {
    const auto mean = static_cast<int32_t>(delay_sum_us_ / static_cast<int64_t>(unreported_));
    reported_delay_us_ = static_cast<int32_t>(static_cast<uint32_t>(first_delay_us_) + static_cast<uint32_t>(mean));
  }
  unreported_ = 0;
  first_unreported_ = never;
  return {.received = received_, .highest_flow_seq = highest_, .own_drops = own_drops, .echo_sent_at_us = latest_sent_at_us_,
          .echo_held_us = clock_us - latest_clock_us_, .delay_us = reported_delay_us_};
}

}  // namespace unisono
