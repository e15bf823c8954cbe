// Options of connected sockets.
#include "net/tcp_socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <gtest/gtest.h>

namespace unisono {
namespace {

std::string congestion_control(const Descriptor& socket) {
  char name[16] = {};
  socklen_t bytes = sizeof name;
  EXPECT_EQ(::getsockopt(socket.get(), IPPROTO_TCP, TCP_CONGESTION, name, &bytes), 0);
  return name;
}

struct Connection {
  explicit Connection(int family) {
    const Descriptor acceptor(::socket(family, SOCK_STREAM, 0));
    sockaddr_storage address{};
    socklen_t bytes = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    address.ss_family = static_cast<sa_family_t>(family);
    if (family == AF_INET) reinterpret_cast<sockaddr_in&>(address).sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    else reinterpret_cast<sockaddr_in6&>(address).sin6_addr = in6addr_loopback;
    auto* where = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(::bind(acceptor.get(), where, bytes), 0);
    begin_without_pacing(acceptor.get());
    EXPECT_EQ(::listen(acceptor.get(), 1), 0);
    EXPECT_EQ(::getsockname(acceptor.get(), where, &bytes), 0);
    dialled = Descriptor(::socket(family, SOCK_STREAM, 0));
    begin_without_pacing(dialled.get());
    EXPECT_EQ(::connect(dialled.get(), where, bytes), 0);
    accepted = Descriptor(::accept(acceptor.get(), nullptr, nullptr));
  }
  Descriptor dialled, accepted;
};

TEST(TcpSocket, connections_within_a_host_are_not_paced) {
  for (const int family : {AF_INET, AF_INET6}) {
    const Connection connection(family);
    // Reno must be set from the start: a socket that was once paced stays paced.
    for (const auto* end : {&connection.dialled, &connection.accepted}) {
      EXPECT_EQ(congestion_control(*end), "reno");
      set_congestion_control(end->get());
      EXPECT_EQ(congestion_control(*end), "reno");
    }
  }
}

TEST(TcpSocket, other_connections_use_the_machines_congestion_control) {
  const Descriptor alone(::socket(AF_INET, SOCK_STREAM, 0));
  const auto before = congestion_control(alone);
  begin_without_pacing(alone.get());
  EXPECT_EQ(congestion_control(alone), "reno");
  set_congestion_control(alone.get());
  EXPECT_EQ(congestion_control(alone), before);
}

}  // namespace
}  // namespace unisono
