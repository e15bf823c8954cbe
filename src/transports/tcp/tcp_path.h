// The kernel's information about the path of a connection.
#pragma once

#include "base/clock.h"

namespace unisono {

// The shortest measured round trip; at least the handshake's is known. 0 if unknown.
Nanos least_round_trip(int socket);

// On a short path, bounds how much the kernel holds of this connection, sent or not; tcp_path.cc says why. On other paths the
// kernel keeps its choice, because a fixed bound ends its autotuning. For a connected socket on which little has been sent.
void bound_unacknowledged(int socket);

}  // namespace unisono
