// Measures the bandwidth of a process's network line. In an elastic run the measured bandwidth decides which share of a round's
// work the peer gets, and joining peers are told the bandwidth, too. It is not meant for display.
//
// The meter counts bytes in windows of 50 ms. A window counts only if data waited to be sent during the whole window.
// - For sending, the meter takes the median of several windows. A single window may be too high, because the kernel's buffers
//   take bytes that the line has not carried yet.
// - For receiving, the meter takes the window in which the most bytes arrived, because the receiver does not know how much its
//   peers wanted to send. Windows in which almost nothing arrived do not count: in these the traffic went one way only, for
//   example while a joiner loaded the state.
// The reported bandwidth is the lower of the two, rounded to a power of two. Because of the rounding, noise does not change the
// shares of similar peers. The class has no clock and no thread.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "base/clock.h"

namespace unisono {

class BandwidthMeter {
 public:
  static constexpr Nanos window = 50 * millisecond;
  static constexpr size_t windows_kept = 32, windows_needed = 4;
  // The reported value changes only if a measurement differs by more than this factor.
  static constexpr double hysteresis = 1.6;
  // A window in which almost nothing arrived does not count for receiving. It counts only if (received bytes) * one_way >=
  // (sent bytes).
  static constexpr uint64_t one_way = 64;

  // Returns whether update() would change anything. This check is cheaper than collecting the arguments of update().
  bool needs_update(Nanos now, bool waiting) const {
    return begun_ == never || now - begun_ >= window || (waited_ && !waiting);
  }
  // Call this after every event. `sent` and `received` are the total bytes so far. `waiting` says whether data waits to be
  // sent.
  void update(Nanos now, uint64_t sent, uint64_t received, bool waiting);
  // If the reported rate has changed since the last call, returns the new rate: a power of two, in bytes per second.
  std::optional<double> take_change();
  // Returns the sending rate of the recent window in which the most bytes were sent, in bytes per second; 0: not known yet. If
  // neither receivers nor processors limit the rate, it is the line's capacity. It may be too high, because bytes that are
  // still in the kernel's buffers count as sent. On a line of 1 Gbit/s, such bytes are up to a third of a window's bytes.
  double sending() const { return sending_rate_; }

 private:
  void end_window(Nanos now, uint64_t sent, uint64_t received);
  void update_rate();

  Nanos begun_ = never;
  uint64_t sent_ = 0, received_ = 0;        // byte totals at the beginning of the window
  bool waited_ = false;                     // true: data has waited to be sent ever since the window began
  std::deque<double> sending_, receiving_;  // rates (bytes/s) of the newest windows that counted
  double sending_rate_ = 0, reported_ = 0;
  bool changed_ = false;
};

}  // namespace unisono
