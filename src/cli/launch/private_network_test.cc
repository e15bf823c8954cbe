#include "cli/launch/private_network.h"

#include <gtest/gtest.h>

namespace unisono::cli {
namespace {

std::string packet_to(uint8_t c, uint8_t d) {
  std::string packet(40, '\0');
  packet[0] = 0x45;
  packet[16] = 10;
  packet[17] = 77;
  packet[18] = static_cast<char>(c);
  packet[19] = static_cast<char>(d);
  return packet;
}

TEST(PrivateNetwork, addresses_are_counted_from_one) {
  EXPECT_EQ(private_address(0), "10.77.0.1");
  EXPECT_EQ(private_address(254), "10.77.0.255");
  EXPECT_EQ(private_address(255), "10.77.1.0");
}

TEST(PrivateNetwork, a_packet_says_which_rank_it_is_for) {
  EXPECT_EQ(receiver_of(packet_to(0, 1)), 0u);
  EXPECT_EQ(receiver_of(packet_to(1, 0)), 255u);
}

TEST(PrivateNetwork, a_packet_for_no_rank_has_no_receiver) {
  EXPECT_FALSE(receiver_of(""));
  EXPECT_FALSE(receiver_of(packet_to(0, 1).substr(0, 19)));
  EXPECT_FALSE(receiver_of(packet_to(0, 0)));
  EXPECT_FALSE(receiver_of(packet_to(255, 255)));
  auto version_6 = packet_to(0, 1);
  version_6[0] = 0x60;
  EXPECT_FALSE(receiver_of(version_6));
  auto elsewhere = packet_to(0, 1);
  elsewhere[17] = 78;
  EXPECT_FALSE(receiver_of(elsewhere));
}

}  // namespace
}  // namespace unisono::cli
