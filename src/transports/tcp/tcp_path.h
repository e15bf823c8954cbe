// What the kernel knows of the way to the other end of a connection.
#pragma once

#include "base/clock.h"

namespace unisono {

// The shortest round trip seen, at least that of the handshake; 0 if unknown.
Nanos least_round_trip(int socket);

// On a short way, bounds what the kernel holds of this connection, sent or not: see tcp_path.cc. Elsewhere it stays with the
// kernel, because a bound that is set ends its autotuning. For a connected socket on which little has been sent.
void bound_unacknowledged(int socket);

}  // namespace unisono
