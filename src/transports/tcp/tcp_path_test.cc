#include "transports/tcp/tcp_path.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "net/socket_address.h"
#include "net/tcp_socket.h"

namespace unisono {
namespace {

int send_buffer(const Descriptor& socket) {
  int bytes = 0;
  socklen_t size = sizeof bytes;
  EXPECT_EQ(::getsockopt(socket.get(), SOL_SOCKET, SO_SNDBUF, &bytes, &size), 0);
  return bytes;
}

TEST(TcpPath, a_connection_inside_one_host_is_short_and_gets_a_bound) {
  const Descriptor acceptor(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof where;
  ASSERT_EQ(::bind(acceptor.get(), reinterpret_cast<sockaddr*>(&where), bytes), 0);
  ASSERT_EQ(::listen(acceptor.get(), 1), 0);
  ASSERT_EQ(::getsockname(acceptor.get(), reinterpret_cast<sockaddr*>(&where), &bytes), 0);
  // A handshake on a busy machine may take long, so the shortest of several counts.
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

TEST(TcpPath, what_is_not_connected_stays_as_it_is) {
  const Descriptor alone(::socket(AF_INET, SOCK_STREAM, 0));
  const auto before = send_buffer(alone);
  EXPECT_EQ(least_round_trip(alone.get()), 0);
  bound_unacknowledged(alone.get());
  EXPECT_EQ(send_buffer(alone), before);
  EXPECT_EQ(least_round_trip(-1), 0);
}

}  // namespace
}  // namespace unisono
