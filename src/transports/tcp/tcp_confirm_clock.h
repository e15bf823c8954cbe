// Says when a stream must confirm by a frame of its own what it has read, because no other frame has said it. It has no clock.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "transports/tcp/tcp_decoder.h"

namespace unisono {

class TcpConfirmClock {
 public:
  static constexpr uint64_t bytes_max = 4u << 20, relayed_bytes_max = 256u << 10;
  static constexpr uint32_t frames_max = 256;
  static constexpr Nanos quiet = 5 * millisecond;

  explicit TcpConfirmClock(bool relayed = false) : bytes_max_(relayed ? relayed_bytes_max : bytes_max) {}

  // Call this after reading. Frames that only confirm do not count: confirmations of confirmations would never end.
  void read(const TcpDecoder::Request& what, Nanos now) {
    asked_ |= what.now;
    frames_ += what.frames;
    if (what.frames > 0) last_frame_ = now;
  }
  // Call this when a frame is queued that says `position`.
  void said(uint64_t position) {
    said_ = position;
    frames_ = 0;
    asked_ = false;
  }
  // Call this when a new connection begins: the reply or begin has said the position, but the other side may not have read it.
  void ask() { asked_ = true; }
  bool due(uint64_t position, Nanos now) const {
    return asked_ || frames_ >= frames_max || position - said_ >= bytes_max_ || now >= deadline();
  }
  Nanos deadline() const { return frames_ > 0 ? last_frame_ + quiet : never; }

 private:
  const uint64_t bytes_max_;
  uint64_t said_ = 0;
  uint32_t frames_ = 0;  // complete frames since the last confirmation
  bool asked_ = false;
  Nanos last_frame_ = 0;
};

}  // namespace unisono
