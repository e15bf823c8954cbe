#include "transports/tcp/kernel_path.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <gtest/gtest.h>

#include "net/socket_address.h"
#include "net/tcp_socket.h"

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

TEST(KernelPath, connections_within_a_host_are_not_paced) {
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

TEST(KernelPath, other_connections_use_the_machines_congestion_control) {
  const Descriptor alone(::socket(AF_INET, SOCK_STREAM, 0));
  const auto before = congestion_control(alone);
  begin_without_pacing(alone.get());
  EXPECT_EQ(congestion_control(alone), "reno");
  set_congestion_control(alone.get());
  EXPECT_EQ(congestion_control(alone), before);
}

int send_buffer(const Descriptor& socket) {
  int bytes = 0;
  socklen_t size = sizeof bytes;
  EXPECT_EQ(::getsockopt(socket.get(), SOL_SOCKET, SO_SNDBUF, &bytes, &size), 0);
  return bytes;
}

TEST(KernelPath, a_connection_inside_one_host_is_short_and_gets_a_bound) {
  const Descriptor acceptor(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof where;
  ASSERT_EQ(::bind(acceptor.get(), reinterpret_cast<sockaddr*>(&where), bytes), 0);
  ASSERT_EQ(::listen(acceptor.get(), 1), 0);
  ASSERT_EQ(::getsockname(acceptor.get(), reinterpret_cast<sockaddr*>(&where), &bytes), 0);
  // A handshake on a busy machine may take long, so the test uses the shortest of 20.
  Nanos shortest = never;
  for (int i = 0; i < 20; ++i) {
    const Descriptor dialled(::socket(AF_INET, SOCK_STREAM, 0));
    ASSERT_EQ(::connect(dialled.get(), reinterpret_cast<sockaddr*>(&where), bytes), 0);
    const Descriptor accepted(::accept(acceptor.get(), nullptr, nullptr));
    const auto round_trip = least_round_trip(dialled.get());
    EXPECT_GT(round_trip, 0);
    shortest = std::min(shortest, round_trip);
    const auto before = send_buffer(dialled);
    bound_unacknowledged(dialled.get());
    if (round_trip > 300 * microsecond) {
      EXPECT_EQ(send_buffer(dialled), before);
    } else {
      EXPECT_LE(send_buffer(dialled), 512 << 10);
    }
  }
  EXPECT_LE(shortest, 300 * microsecond);
}

TEST(KernelPath, an_unconnected_socket_is_not_changed) {
  const Descriptor alone(::socket(AF_INET, SOCK_STREAM, 0));
  const auto before = send_buffer(alone);
  EXPECT_EQ(least_round_trip(alone.get()), 0);
  bound_unacknowledged(alone.get());
  EXPECT_EQ(send_buffer(alone), before);
  EXPECT_EQ(least_round_trip(-1), 0);
}

TEST(KernelPath, nothing_is_unacknowledged_on_a_socket_without_a_connection) {
  EXPECT_EQ(unacknowledged(-1).repeats, 0u);
  const Descriptor alone(::socket(AF_INET, SOCK_STREAM, 0));
  EXPECT_EQ(unacknowledged(alone.get()).repeats, 0u);
}

}  // namespace
}  // namespace unisono
