// What a lossy operation may ask of its surroundings. The engine implements it over real or simulated datagram transports.
//
// Nothing here calls back into the operation: news come as calls of its event functions, later.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/clock.h"
#include "wire/stream.h"

namespace unisono {

class StreamPort {
 public:
  virtual ~StreamPort() = default;
  virtual void send_stream(const OutStream& stream) = 0;
  virtual void drop_stream(Rank to, StreamName stream) = 0;
  // Asks for ranges again; the bitmap as in wire/datagram.h; empty: all has arrived.
  virtual void ask(Rank from, StreamName stream, uint16_t slice, uint32_t first, std::span<const std::byte> bitmap) = 0;
  // srtt + 4 rttvar of the link; 50 ms while nothing was measured.
  virtual Nanos answer_time(Rank rank) const = 0;
  // "host b, pid 42": what lies behind a rank, for messages.
  virtual std::string place(Rank rank) const = 0;
};

}  // namespace unisono
