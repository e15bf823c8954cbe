#include "net/datagram_socket.h"

#include <cstring>

#include <netinet/in.h>

namespace unisono {

bool same_endpoint(const TcpAddress& a, const TcpAddress& b) {
  if (a.family() != b.family()) return false;
  if (a.family() == AF_INET) {
    const auto& x = reinterpret_cast<const sockaddr_in&>(a.storage);
    const auto& y = reinterpret_cast<const sockaddr_in&>(b.storage);
    return x.sin_addr.s_addr == y.sin_addr.s_addr && x.sin_port == y.sin_port;
  }
  if (a.family() != AF_INET6) return false;
  const auto& x = reinterpret_cast<const sockaddr_in6&>(a.storage);
  const auto& y = reinterpret_cast<const sockaddr_in6&>(b.storage);
  const bool one_scope = x.sin6_scope_id == y.sin6_scope_id || x.sin6_scope_id == 0 || y.sin6_scope_id == 0;
  return one_scope && x.sin6_port == y.sin6_port && std::memcmp(&x.sin6_addr, &y.sin6_addr, sizeof(in6_addr)) == 0;
}

}  // namespace unisono
