// Texts about a path that carries nothing, or no long packets, or is interrupted.
#pragma once

#include <string>

#include "base/clock.h"
#include "net/socket_address.h"
#include "net/stream_socket.h"

namespace unisono {

// Returns a text such as "large segments to it get no acknowledgement: …". Empty if everything is acknowledged in time.
std::string describe_unacknowledged(const Unacknowledged& data, const TcpAddress& to);
// Returns a text such as "3.2 s".
std::string seconds_text(Nanos time);

}  // namespace unisono
