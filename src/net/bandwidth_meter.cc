#include "net/bandwidth_meter.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace unisono {

namespace {

void keep(std::deque<double>& windows, double rate) {
  windows.push_back(rate);
  if (windows.size() > BandwidthMeter::windows_kept) windows.pop_front();
}

}  // namespace

void BandwidthMeter::update(Nanos now, uint64_t sent, uint64_t received, bool waiting) {
  if (begun_ == never) begun_ = now, sent_ = sent, received_ = received, waited_ = waiting;
  waited_ = waited_ && waiting;
  if (now - begun_ < window) return;
  end_window(now, sent, received);
  begun_ = now;
  sent_ = sent;
  received_ = received;
  waited_ = waiting;
}

void BandwidthMeter::end_window(Nanos now, uint64_t sent, uint64_t received) {
  // Ignore a window that lasted too long: the process was asleep.
  if (now - begun_ >= 2 * window || !waited_) return;
  const auto seconds = static_cast<double>(now - begun_) / 1e9;
  keep(sending_, static_cast<double>(sent - sent_) / seconds);
  if ((received - received_) * one_way >= sent - sent_) keep(receiving_, static_cast<double>(received - received_) / seconds);
  update_rate();
}

void BandwidthMeter::update_rate() {
  if (sending_.size() < windows_needed) return;
  std::vector<double> sorted(sending_.begin(), sending_.end());
  std::ranges::sort(sorted);
  const auto out = sorted[sorted.size() / 2];
  sending_rate_ = sorted.back();
  const auto rate = receiving_.empty() ? out : std::min(out, *std::max_element(receiving_.begin(), receiving_.end()));
  if (rate <= 0 || (reported_ > 0 && rate < reported_ * hysteresis && rate > reported_ / hysteresis)) return;
  const auto power = std::exp2(std::round(std::log2(rate)));
  if (power == reported_) return;
  reported_ = power;
  changed_ = true;
}

std::optional<double> BandwidthMeter::take_change() {
  if (!std::exchange(changed_, false)) return std::nullopt;
  return reported_;
}

}  // namespace unisono
