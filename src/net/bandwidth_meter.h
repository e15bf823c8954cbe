// Measures what a process's network line carries, from its byte counters while more data waited to be sent. An elastic run
// divides the work of a round by it, and joiners learn it; it is not meant for display.
//
// Bytes are counted in windows. For sending, a window counts if data waited throughout it. The median of several windows is
// taken, because the kernel's buffers at first take more than the line. For receiving, the fullest windows count, because
// nobody knows what others would have sent. Windows in which hardly anything came do not count: then the traffic was one-way,
// for example while a joiner loads the state from this process. The result is the lower direction, rounded to a power of two,
// so that the shares of similar peers do not differ by noise. A pure value.
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
  // The reported value stays until the measurement is off by more than this factor.
  static constexpr double hysteresis = 1.6;
  // A window counts for receiving if the received bytes are at least the sent bytes divided by this.
  static constexpr uint64_t one_way = 64;

  // True if update() would change anything. It is cheaper than collecting the numbers for update().
  bool wants(Nanos now, bool waiting) const { return begun_ == never || now - begun_ >= window || (waited_ && !waiting); }
  // Call it whenever something happened. sent, received: bytes so far. waiting: some data waits to be sent.
  void update(Nanos now, uint64_t sent, uint64_t received, bool waiting);
  // The new rate in bytes per second, a power of two; once per change.
  std::optional<double> take_news();
  // Bytes per second in the fullest of the newest windows: what the line takes when neither receivers nor processors are the
  // bottleneck. It may include the kernel's buffers, up to a third of what a line of 1 Gbit/s carries in a window. 0: not known
  // yet.
  double sending() const { return sending_rate_; }

 private:
  void end_window(Nanos now, uint64_t sent, uint64_t received);
  void judge();

  Nanos begun_ = never;
  uint64_t sent_ = 0, received_ = 0;        // when the window began
  bool waited_ = false;                     // since the window began
  std::deque<double> sending_, receiving_;  // bytes/s of the newest windows that count
  double sending_rate_ = 0, reported_ = 0;
  bool changed_ = false;
};

}  // namespace unisono
