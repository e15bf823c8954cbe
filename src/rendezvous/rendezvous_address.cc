#include <algorithm>
#include <string>
#include <string_view>

#include "base/concat.h"
#include "net/socket_address.h"
#include "rendezvous/environment.h"

namespace unisono {

std::string RendezvousAddress::to_string() const {
  switch (kind) {
    case Kind::none: return "none";
    case Kind::file: return "file://" + path;
    case Kind::tcp: break;
  }
  const bool bare_v6 = host.find_first_of(":,") != std::string::npos;
  return concat("tcp://", bare_v6 ? "[" + host + "]" : host, ":", port);
}

bool is_on_this_host(const RendezvousAddress& address) {
  if (address.kind != RendezvousAddress::Kind::tcp) return true;
  for (std::string_view rest = address.host;;) {
    const auto end = std::min(rest.find(','), rest.size());
    const auto host = rest.substr(0, end);
    const auto numeric = parse_tcp_address(host);
    if (host != "localhost" && !(numeric.ok() && numeric->is_loopback())) return false;
    if (end == rest.size()) return true;
    rest.remove_prefix(end + 1);
  }
}

}  // namespace unisono
