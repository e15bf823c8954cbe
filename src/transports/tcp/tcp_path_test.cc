#include "transports/tcp/tcp_path.h"

#include <gtest/gtest.h>

namespace unisono {
namespace {

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

TEST(TcpPath, there_is_no_text_where_everything_is_acknowledged) { EXPECT_EQ(describe_unacknowledged({}, {}), ""); }

}  // namespace
}  // namespace unisono
