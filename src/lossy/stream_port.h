// The services that a lossy operation needs from its surroundings. The engine implements them over real or simulated datagram
// transports.
//
// No function here calls back into the operation. Events arrive later, through its event functions.
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
  // Requests ranges again; the bitmap as in wire/datagram.h. Empty: everything has arrived.
  virtual void ask(Rank from, StreamName stream, uint16_t slice, uint32_t first, std::span<const std::byte> bitmap) = 0;
  // srtt + 4 rttvar of the link; 50 ms before the first measurement.
  virtual Nanos answer_time(Rank rank) const = 0;
  // "host b, pid 42": location of a rank, for error messages.
  virtual std::string place(Rank rank) const = 0;
};

}  // namespace unisono
