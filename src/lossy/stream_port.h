// Through this interface, a lossy operation sends and requests data. The engine implements it on real or simulated datagram
// transports.
//
// No function here calls back into the operation. The engine reports events to the operation later.
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
  // Asks the sender to send the ranges in the bitmap again (format: wire/datagram.h). An empty bitmap tells the sender that
  // this rank needs nothing more.
  virtual void request_repair(Rank from, StreamName stream, uint16_t slice, uint32_t first,
                              std::span<const std::byte> bitmap) = 0;
  // Returns the time in which an answer can be expected, srtt + 4 * rttvar of the link. Before the first measurement, returns
  // 50 ms.
  virtual Nanos answer_time(Rank rank) const = 0;
  // Returns the host and the process of a rank for error messages, such as "host b, pid 42".
  virtual std::string location(Rank rank) const = 0;
};

}  // namespace unisono
