#include "transports/udp/path/udp_line_rate.h"

#include <algorithm>

namespace unisono {

void LineRate::sent(uint64_t bytes, Nanos now) {
  newest_ = {now, static_cast<double>(bytes)};
  if (count_ == 0 || now - history_[(count_ - 1) % history_.size()].at >= step) history_[count_++ % history_.size()] = newest_;
}

// Computes how many bytes had been sent at the time `at`. Returns false if `at` is too old or in the future.
bool LineRate::bytes_at(Nanos at, double& bytes) const {
  auto later = newest_;
  if (at > later.at) return false;
  for (size_t back = 1; back <= std::min(count_, history_.size()); ++back) {
    const auto& earlier = history_[(count_ - back) % history_.size()];
    if (earlier.at <= at) {
      const auto share =
          later.at == earlier.at ? 0 : static_cast<double>(at - earlier.at) / static_cast<double>(later.at - earlier.at);
      bytes = earlier.bytes + (later.bytes - earlier.bytes) * share;
      return true;
    }
    later = earlier;
  }
  return false;
}

void LineRate::waited(Nanos sent_at, double queue_us) {
  double bytes = 0;
  if (queue_us < busy_us || !bytes_at(sent_at, bytes)) {
    busy_ = false;
    return;
  }
  // This report is late: reports of different destinations may overtake each other.
  if (busy_ && sent_at < last_sent_at_) return;
  const Point left{sent_at + static_cast<Nanos>(queue_us * 1000), bytes};
  // The previous datagram had left the queue before this one was sent, so the queue may have been empty in between.
  if (!busy_ || sent_at > last_left_at_) {
    busy_ = true;
    points_ = 0;
    anchor_ = left;
  } else {
    points_ += sent_at - last_sent_at_ >= step;
    if (points_ >= points_min && left.at - anchor_.at >= span_min) {
      measured_[measured_count_++ % measured_.size()] =
          (left.bytes - anchor_.bytes) / (static_cast<double>(left.at - anchor_.at) * 1e-9);
      points_ = delays_ = 0;
      anchor_ = left;
    } else if (sent_at - last_sent_at_ < step) {
      last_left_at_ = std::max(last_left_at_, left.at);
      return;
    }
  }
  last_sent_at_ = sent_at;
  last_left_at_ = left.at;
}

void LineRate::delayed() {
  if (++delays_ > delays_max) measured_.fill(0);
}

void LineRate::exceeded(double factor) {
  for (auto& rate : measured_) rate *= 1 + std::max(factor - 1, 0.0) / 64;
}

double LineRate::rate() const { return *std::max_element(measured_.begin(), measured_.end()); }

}  // namespace unisono
