// What a process's line carries, from what it was seen to carry while more waited to be sent: for the shares of a round and for
// what joiners are given, not for people.
//
// Bytes are counted in windows. A window counts for sending if something waited throughout it (what the kernel took into its
// buffers at first does not say how fast they drain, so the middle of several windows is taken); for receiving, the fullest
// windows count, as nobody knows what others would have sent, and none in which hardly anything came: then it was for one
// direction alone, as when somebody loads the state from here. The lower direction is told, and only as a power of two: shares
// of peers that are alike shall not differ by noise. A pure value.
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
  // What was told is kept until it is off by more than this.
  static constexpr double hysteresis = 1.6;
  // A window counts for receiving if what came is at least this part of what went.
  static constexpr uint64_t one_way = 64;

  // Whether update() would change anything; cheaper than finding out the numbers for it.
  bool wants(Nanos now, bool waiting) const { return begun_ == never || now - begun_ >= window || (waited_ && !waiting); }
  // As often as anything happens. sent, received: bytes so far. waiting: something waits to be sent.
  void update(Nanos now, uint64_t sent, uint64_t received, bool waiting);
  // Bytes per second, a power of two; once per change.
  std::optional<double> take_news();
  // Bytes per second that the line takes when receivers and processors are not what is waited for: in the fullest of the newest
  // windows. What the kernel's buffers take may be in it, up to a third of what a line of 1 Gbit/s carries in a window. 0: not
  // known yet.
  double sending() const { return sending_rate_; }

 private:
  void end_window(Nanos now, uint64_t sent, uint64_t received);
  void judge();

  Nanos begun_ = never;
  uint64_t sent_ = 0, received_ = 0;        // when the window began
  bool waited_ = false;                     // all the time since then
  std::deque<double> sending_, receiving_;  // bytes/s of the newest windows that count
  double sending_rate_ = 0, told_ = 0;
  bool news_ = false;
};

}  // namespace unisono
