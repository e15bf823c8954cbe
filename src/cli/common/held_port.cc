#include "cli/common/held_port.h"

#include <netinet/in.h>
#include <sys/socket.h>

namespace unisono::cli {
namespace {

bool set_flag(int socket, int level, int option, int value) {
  return ::setsockopt(socket, level, option, &value, sizeof(value)) == 0;
}

}  // namespace

HeldPort HeldPort::take() {
  HeldPort held;
  sockaddr_in6 six{};
  six.sin6_family = AF_INET6;
  six.sin6_addr = in6addr_any;
  sockaddr_in four{};
  four.sin_family = AF_INET;
  // Tries one socket for IPv6 and IPv4. If that fails, tries IPv4 alone, because the kernel may lack IPv6.
  held.socket_.reset(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const bool both = held.socket_ && set_flag(held.socket_.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0) &&
                    set_flag(held.socket_.get(), SOL_SOCKET, SO_REUSEADDR, 1) &&
                    ::bind(held.socket_.get(), reinterpret_cast<const sockaddr*>(&six), sizeof(six)) == 0;
  if (!both) {
    held.socket_.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const bool bound = held.socket_ && set_flag(held.socket_.get(), SOL_SOCKET, SO_REUSEADDR, 1) &&
                       ::bind(held.socket_.get(), reinterpret_cast<const sockaddr*>(&four), sizeof(four)) == 0;
    if (!bound) return HeldPort();
  }
  sockaddr_storage name{};
  socklen_t size = sizeof(name);
  if (::getsockname(held.socket_.get(), reinterpret_cast<sockaddr*>(&name), &size) != 0) return HeldPort();
  held.number_ = ntohs(name.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&name)->sin6_port
                                                  : reinterpret_cast<sockaddr_in*>(&name)->sin_port);
  return held;
}

}  // namespace unisono::cli
