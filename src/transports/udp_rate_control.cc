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
  if (most_ > 0) rate_ = std::min(rate_, most_);
}

void RateControl::keep_below(uint64_t rate) {
  most_ = static_cast<double>(rate);
  set(rate_);
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
  total_bytes_ += bytes;
  ++sent_datagrams_;
}

void RateControl::held_back(Nanos now) {
  held_back_ = true;
  const auto pause = 2 * millisecond + static_cast<Nanos>(2e9 * settings_.datagram_bytes / rate_);
  if (now - held_back_at_ > pause && line_.rate() > 0) set(std::min(rate_, known_rate()));
  if (now - held_back_at_ > pause) paused_ = true;
  held_back_at_ = now;
}

bool RateControl::feedback(const FlowFeedback& report, const RttEstimator& rtt, Nanos now, RateControl* all) {
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
  if (all == nullptr) line_.advance(total_bytes_, now);
  if (totals.received != latest_.received) {
    take_delay(report.delay_us, now);
    const auto passed = static_cast<uint32_t>(now / microsecond) - report.echo_sent_at_us;
    const double waited_us = std::max(delays_[(delay_count_ - 1) % delays_.size()].us - delay_minimum_us_.value(now, 0), 0.0);
    if (all == nullptr) {
      line_.report(now - Nanos{passed} * microsecond, recent_queue_us(rtt, now));
    } else {
      auto more = report;
      more.received -= latest_.received;
      more.highest_flow_seq -= latest_.highest;
      all->pool(more, waited_us, rtt, now);
    }
  }
  latest_ = totals;
  const Nanos interval_min = all == nullptr ? pooling_interval_ : 0;
  if (now - updated_ < std::max({rtt.smoothed(), interval_min, microsecond}) || latest_.highest == at_update_.highest) return false;
  const double before = rate_;
  update(rtt, now, all);
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

double RateControl::recent_queue_us(const RttEstimator& rtt, Nanos now) const {
  return delay_count_ == 0 ? 0 : std::max(recent_delay_us(rtt, now) - delay_minimum_us_.value(now, 0), 0.0);
}

// The increments of one destination's report, whose datagrams waited so long.
void RateControl::pool(const FlowFeedback& report, double queue_us, const RttEstimator& rtt, Nanos now) {
  pooling_interval_ = ArrivalMeter::report_interval;
  pooled_.received += report.received;
  pooled_.highest_flow_seq += report.highest_flow_seq;
  // What comes later than another one's, and is of an earlier time, says nothing about now.
  if (pooled_.received != report.received && static_cast<int32_t>(report.echo_sent_at_us - pooled_.echo_sent_at_us) < -2000) return;
  pooled_.echo_sent_at_us = report.echo_sent_at_us;
  pooled_.delay_us = static_cast<int32_t>(queue_us);
  (void)feedback(pooled_, rtt, now);
}

void RateControl::Line::advance(uint64_t bytes, Nanos now) {
  constexpr Nanos step = 500 * microsecond;
  now_ = {now, static_cast<double>(bytes)};
  if (count_ == 0 || now - history_[(count_ - 1) % history_.size()].at >= step) history_[count_++ % history_.size()] = now_;
}

double RateControl::Line::bytes_at(Nanos at) const {
  const size_t known = std::min(count_, history_.size());
  for (size_t back = 0; back < known; ++back) {
    const auto& later = back == 0 ? now_ : history_[(count_ - back) % history_.size()];
    const auto& earlier = history_[(count_ - back - 1) % history_.size()];
    if (earlier.at > at) continue;
    if (later.at == earlier.at) return later.bytes;
    return earlier.bytes + (later.bytes - earlier.bytes) * static_cast<double>(std::min(at, later.at) - earlier.at) / static_cast<double>(later.at - earlier.at);
  }
  return -1;
}

void RateControl::Line::report(Nanos sent_at, double queue_us) {
  constexpr double busy_us = 300;
  constexpr Nanos pause_max = 5 * millisecond, span_min = 10 * millisecond;
  const double bytes = bytes_at(sent_at);
  if (queue_us < busy_us || bytes < 0) {
    busy_ = false;
    return;
  }
  const Point left{sent_at + static_cast<Nanos>(queue_us * 1000), bytes};
  if (busy_ && sent_at < last_) return;
  if (!busy_ || sent_at - last_ > pause_max) {
    busy_ = true;
    anchor_ = left;
  } else if (left.at - anchor_.at >= span_min) {
    const double sample = (left.bytes - anchor_.bytes) / (static_cast<double>(left.at - anchor_.at) * 1e-9);
    rate_ = rate_ == 0 ? sample : rate_ + (sample - rate_) / 3;
    anchor_ = left;
  }
  last_ = sent_at;
}

void RateControl::update(const RttEstimator& rtt, Nanos now, RateControl* all) {
  const double interval = static_cast<double>(now - updated_) * 1e-9;
  const double rate_before = rate_;
  const double datagram_bytes = sent_datagrams_ > 0 ? static_cast<double>(sent_bytes_) / static_cast<double>(sent_datagrams_) : settings_.datagram_bytes;
  delivered_ = static_cast<double>(std::min(latest_.received - at_update_.received, latest_.highest - at_update_.highest)) * datagram_bytes / interval;
  const double least_us = delay_minimum_us_.value(now, 0);
  if (all != nullptr && !starting_) set(std::min(rate_, 2 * all->rate_));
  const double common_us = all == nullptr ? 0 : all->recent_queue_us(rtt, now);
  const double queue_us = std::max(recent_queue_us(rtt, now) - common_us, 0.0);
  const double last_us = delays_[(delay_count_ - 1) % delays_.size()].us - least_us - common_us;
  const double target_us = std::max(1000.0, static_cast<double>(rtt.minimum()) / 4000);
  queue_delay_ = static_cast<Nanos>(queue_us * 1000);
  const bool dropped = latest_.own_drops != at_update_.own_drops;
  const bool loses = losing(now);

  if (dropped) {
    decrease(0.7 * rate_);
  } else if (queue_us > target_us && now - decreased_at_ >= rtt.smoothed() + ArrivalMeter::report_interval) {
    // Once, until a report can show what that has done (the specification has "once per round trip"; reports take a millisecond longer).
    const bool drains = now - decreased_at_ < 4 * (rtt.smoothed() + ArrivalMeter::report_interval) && queue_us < 0.9 * decreased_queue_us_;
    decreased_at_ = now;
    decreased_queue_us_ = queue_us;
    if (!drains) {
      double rate = rate_ * (1 - 0.4 * (1 - target_us / queue_us));
      if (known_rate() > 0) rate = std::max(std::min(rate, known_rate()), std::min(rate_, 0.75 * known_rate()));
      decrease(rate);
    }
  } else if (loses) {
    decrease(std::max(0.7 * rate_, std::min(delivered_, rate_)));
  } else if (last_us < target_us / 2 && (held_back_ || static_cast<double>(sent_bytes_) >= rate_ * interval / 2)) {
    // Only a rate that is used is raised (not in the specification): else pauses would raise it without end, for nothing has been tried. It is used, too,
    // where something waits for it although little goes out: beside other destinations, or where the process seldom gets a processor.
    increase(interval, all);
  }
  if (held_back_ && !paused_) {
    allowed_ += rate_before * interval - allowed_ / 16;
    used_ += static_cast<double>(sent_bytes_) - used_ / 16;
  }
  updated_ = now;
  at_update_ = latest_;
  sent_bytes_ = sent_datagrams_ = 0;
  held_back_ = paused_ = false;
}

// The rate that makes as much go out as the line carries: a process that gets its processor late does not use all that its rate allows.
double RateControl::known_rate() const { return line_.rate() * (used_ > 0 ? std::clamp(allowed_ / used_, 1.0, 16.0) : 1.0); }

void RateControl::increase(double interval, const RateControl* all) {
  const double datagram = settings_.datagram_bytes / interval;
  double rate = starting_ ? 2 * rate_ : rate_ + std::max(datagram, 0.02 * rate_);
  const double line = known_rate();
  if (line > 0) {
    if (rate_ < line) rate = std::min(std::max(rate, (rate_ + line) / 2), line);
    else rate = rate_ + std::max(datagram / 32, 0.0025 * rate_), line_.creep(rate_ / known_rate());
  }
  if (all != nullptr) rate = std::min(rate, std::max(rate_, 1.25 * all->rate_));
  set(rate);
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
  if (unreported_ >= report_datagrams) return first_unreported_;
  return first_unreported_ + (unreported_ >= 4 ? report_interval : 3 * report_interval);
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
