// The endpoints of UDP links as text: "udp://192.168.1.7:45001", "udp://[::1]:45001". The address is written as in
// socket_address.h.
#pragma once

#include <string>
#include <string_view>

#include "net/socket_address.h"
#include "unisono/status.h"

namespace unisono {

// Parses an endpoint. Returns the error invalid if the text does not have this form.
Result<TcpAddress> parse_udp_endpoint(std::string_view text);
inline std::string udp_endpoint(const TcpAddress& address) { return "udp://" + address.to_string(); }

}  // namespace unisono
