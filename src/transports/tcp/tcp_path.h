// Finds out what the kernel knows about the path of a connection: how long it is, and whether it drops segments. Limits the
// kernel's buffer on short paths.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "net/socket_address.h"

namespace unisono {

// Returns the shortest round trip that was measured on the connection; 0: unknown. The handshake counts as one measurement.
Nanos least_round_trip(int socket);

// If the path is short, limits the bytes that the kernel buffers for this connection; tcp_path.cc says why. On other paths a
// fixed limit would turn off the kernel's automatic choice. Call this for a connected socket on which little has been sent.
void bound_unacknowledged(int socket);

// Data on a connection that the peer's host has not acknowledged, although the kernel has sent it again.
struct Unacknowledged {
  uint32_t repeats = 0;        // how often it was sent again since the last acknowledgement; 0: there is no such data
  uint32_t segments = 0;       // number of segments that are not acknowledged
  uint32_t segment_bytes = 0;  // size of the longest segment
  uint32_t packet_bytes = 0;   // size of a packet with such a segment
  uint64_t bytes = 0;          // number of bytes that were sent, or wait to be sent
  bool has_long_segments() const { return bytes >= segment_bytes; }
};
Unacknowledged unacknowledged(int socket);
// Returns a text such as "large segments to it get no acknowledgement: …". Empty if everything is acknowledged in time.
std::string describe_unacknowledged(const Unacknowledged& data, const TcpAddress& to);

}  // namespace unisono
