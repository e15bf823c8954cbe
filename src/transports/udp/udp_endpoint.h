// Endpoints of UDP links: "udp://192.168.1.7:45001", "udp://[::1]:45001". Their addresses are those of socket_address.h.
#pragma once

#include <string>
#include <string_view>

#include "net/socket_address.h"
#include "unisono/status.h"

namespace unisono {

// Returns invalid if the text does not have this form.
Result<TcpAddress> parse_udp_endpoint(std::string_view text);
inline std::string udp_endpoint(const TcpAddress& address) { return "udp://" + address.to_string(); }

}  // namespace unisono
