#include "cli/launch/thin_links.h"

#include <gtest/gtest.h>

namespace unisono::cli {
namespace {

constexpr Nanos late_enough = 3600 * second;
constexpr uint64_t mbit = 1'000'000;

std::string packet(size_t bytes, char mark = 'x') { return std::string(bytes, mark); }

std::vector<Arrival> all_of(ThinLinks& links) {
  std::vector<Arrival> arrivals;
  while (auto arrival = links.take(late_enough)) arrivals.push_back(*std::move(arrival));
  return arrivals;
}

TEST(ThinLinks, without_limits_a_packet_arrives_at_once_and_whole) {
  ThinLinks links({}, 2, 1);
  links.send(0, 1, packet(100), 7);
  EXPECT_EQ(links.next(), 7);
  EXPECT_FALSE(links.take(6));
  const auto arrival = links.take(7);
  ASSERT_TRUE(arrival);
  EXPECT_EQ(arrival->due, 7);
  EXPECT_EQ(arrival->to, 1u);
  EXPECT_EQ(arrival->packet, packet(100));
  EXPECT_EQ(links.next(), never);
}

TEST(ThinLinks, a_delay_is_one_way_and_keeps_the_order) {
  ThinLinks links({.delay = 20 * millisecond}, 2, 1);
  links.send(0, 1, packet(1, 'a'), 0);
  links.send(0, 1, packet(1, 'b'), 0);
  EXPECT_FALSE(links.take(20 * millisecond - 1));
  const auto arrivals = all_of(links);
  ASSERT_EQ(arrivals.size(), 2u);
  EXPECT_EQ(arrivals[0].packet, "a");
  EXPECT_EQ(arrivals[1].due, 20 * millisecond);
}

// Each packet has 1462 + 38 bytes = 12,000 bits. At 100 Mbit/s it takes 120 us on each of the two cables.
TEST(ThinLinks, a_stream_gets_the_rate_of_its_cables) {
  ThinLinks links({.bits_per_second = 100 * mbit}, 2, 1);
  for (int i = 0; i < 100; ++i) links.send(0, 1, packet(1462), 0);
  const auto arrivals = all_of(links);
  ASSERT_EQ(arrivals.size(), 100u);
  EXPECT_EQ(arrivals.front().due, 240 * microsecond);
  EXPECT_EQ(arrivals.back().due, (100 + 1) * 120 * microsecond);
}

TEST(ThinLinks, senders_share_the_cable_of_one_receiver_and_do_not_wait_for_other_receivers) {
  ThinLinks links({.bits_per_second = 100 * mbit}, 4, 1);
  for (int i = 0; i < 10; ++i) {
    for (const uint32_t from : {0, 1}) links.send(from, 2, packet(1462), 0);
    links.send(3, 0, packet(1462), 0);
  }
  Nanos last_of_shared = 0;
  Nanos last_of_other = 0;
  for (const auto& arrival : all_of(links)) (arrival.to == 2 ? last_of_shared : last_of_other) = arrival.due;
  EXPECT_EQ(last_of_shared, 21 * 120 * microsecond);
  EXPECT_EQ(last_of_other, 11 * 120 * microsecond);
}

TEST(ThinLinks, a_sender_with_a_long_queue_does_not_hold_up_another) {
  ThinLinks links({.bits_per_second = 100 * mbit}, 3, 1);
  for (int i = 0; i < 50; ++i) links.send(0, 2, packet(1462, 'a'), 0);
  links.send(1, 2, packet(1462, 'b'), 0);
  const auto arrivals = all_of(links);
  EXPECT_EQ(arrivals[1].packet[0], 'b') << "it shares the receiver's cable with the first of the others, not with the last";
}

TEST(ThinLinks, a_full_queue_drops_what_comes_last) {
  ThinLinks links({.bits_per_second = 100 * mbit}, 2, 1);
  for (int i = 0; i < 1000; ++i) links.send(0, 1, packet(1462), 0);
  // A packet takes 120 us, so the 50 ms of a queue hold 416 whole packets. Packet 417 begins within the 50 ms, so it is sent,
  // too.
  EXPECT_EQ(all_of(links).size(), 417u);
  EXPECT_EQ(links.counts().overflowed, 583u);
  EXPECT_EQ(links.counts().packets, 1000u);
}

TEST(ThinLinks, a_slow_cable_still_queues_some_packets) {
  ThinLinks links({.bits_per_second = 64'000}, 2, 1);
  for (int i = 0; i < 64; ++i) links.send(0, 1, packet(1500), 0);
  EXPECT_EQ(all_of(links).size(), 64u);
}

TEST(ThinLinks, packets_get_lost_at_the_share_asked_for) {
  ThinLinks links({.loss = 0.01}, 2, 42);
  for (int i = 0; i < 100'000; ++i) links.send(0, 1, packet(1), i);
  const auto arrived = all_of(links).size();
  EXPECT_EQ(arrived + links.counts().lost, 100'000u);
  EXPECT_GT(links.counts().lost, 850u);  // mean 1000, standard deviation 31
  EXPECT_LT(links.counts().lost, 1150u);
}

TEST(ThinLinks, memory_has_a_bound_without_a_rate) {
  ThinLinks links({.delay = second}, 2, 1);
  const size_t fit = under_way_bytes_max / 65'000;
  for (size_t i = 0; i < fit + 5; ++i) links.send(0, 1, packet(65'000), 0);
  EXPECT_EQ(links.counts().overflowed, 5u);
}

TEST(ThinLinks, limits_are_parsed_and_formatted) {
  EXPECT_EQ(parse_rate("100M").value(), 100 * mbit);
  EXPECT_EQ(parse_rate("1.5G").value(), 1500 * mbit);
  EXPECT_EQ(parse_rate("64000").value(), 64'000u);
  for (const char* text : {"", "M", "100X", "0", "-5M", "7K", "1e9G", "100MB", "nan", "inf"})
    EXPECT_FALSE(parse_rate(text).ok()) << text;
  EXPECT_DOUBLE_EQ(parse_loss("1%").value(), 0.01);
  EXPECT_DOUBLE_EQ(parse_loss("0.25").value(), 0.25);
  EXPECT_DOUBLE_EQ(parse_loss("0").value(), 0);
  for (const char* text : {"", "%", "100%", "1", "-1%", "x", "1%%", "nan"}) EXPECT_FALSE(parse_loss(text).ok()) << text;
  const LinkLimits limits{.bits_per_second = 100 * mbit, .loss = 0.01, .delay = 20 * millisecond};
  EXPECT_EQ(limits.to_string(), "100 Mbit/s per rank and direction, 1 % of packets lost, 20 ms one way");
  EXPECT_EQ(LinkLimits{}.to_string(), "");
  EXPECT_FALSE(LinkLimits{}.any());
}

}  // namespace
}  // namespace unisono::cli
