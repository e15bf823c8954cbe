#include "transports/udp/udp_endpoint.h"

namespace unisono {

Result<TcpAddress> parse_udp_endpoint(std::string_view text) {
  constexpr std::string_view prefix = "udp://";
  if (!text.starts_with(prefix))
    return Status(Code::invalid, "endpoint \"" + std::string(text) + "\": does not begin with udp://");
  auto address = parse_tcp_endpoint("tcp://" + std::string(text.substr(prefix.size())));
  if (!address.ok())
    return Status(Code::invalid, "endpoint \"" + std::string(text) + "\" is not udp://ADDRESS:PORT in numbers");
  return address;
}

}  // namespace unisono
