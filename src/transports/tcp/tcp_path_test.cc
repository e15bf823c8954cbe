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

TEST(TcpPath, an_unconnected_socket_is_not_changed) {
  const Descriptor alone(::socket(AF_INET, SOCK_STREAM, 0));
  const auto before = send_buffer(alone);
  EXPECT_EQ(least_round_trip(alone.get()), 0);
  bound_unacknowledged(alone.get());
  EXPECT_EQ(send_buffer(alone), before);
  EXPECT_EQ(least_round_trip(-1), 0);
}

TEST(TcpPath, the_text_about_long_segments_says_how_to_test_the_path) {
  const Unacknowledged data{.repeats = 6, .segments = 11, .segment_bytes = 1448, .packet_bytes = 1500, .bytes = 400'000};
  EXPECT_EQ(
      describe_unacknowledged(data, *parse_tcp_endpoint("tcp://10.9.0.2:29500")),
      "large segments to it get no acknowledgement: TCP has sent 11 of up to 1448 bytes, and the first one again 6 times. "
      "Either the network carries nothing to it, or no packets of 1500 bytes; \"ping -M do -s 1472 10.9.0.2\" tells which");
  EXPECT_EQ(describe_unacknowledged(data, *parse_tcp_endpoint("tcp://[::ffff:10.9.0.2]:29500")),
            describe_unacknowledged(data, *parse_tcp_endpoint("tcp://10.9.0.2:29500")));
  EXPECT_NE(describe_unacknowledged(data, *parse_tcp_endpoint("tcp://[fd00::2]:29500")).find("\"ping -M do -s 1452 fd00::2\""),
            std::string::npos);
}

TEST(TcpPath, the_text_about_a_few_bytes_says_nothing_of_long_segments) {
  EXPECT_EQ(describe_unacknowledged({.repeats = 3, .segments = 1, .segment_bytes = 1448, .packet_bytes = 1500, .bytes = 64},
                                    *parse_tcp_endpoint("tcp://10.9.0.2:29500")),
            "64 bytes to it get no acknowledgement, although TCP has sent them again 3 times");
}

TEST(TcpPath, there_is_no_text_where_everything_is_acknowledged) {
  EXPECT_EQ(describe_unacknowledged(unacknowledged(-1), {}), "");
  const Descriptor alone(::socket(AF_INET, SOCK_STREAM, 0));
  EXPECT_EQ(unacknowledged(alone.get()).repeats, 0u);
}

}  // namespace
}  // namespace unisono
