#include "engine/topology.h"

#include <gtest/gtest.h>

#include <limits>

namespace unisono {
namespace {

TEST(Topology, decodes_to_what_was_encoded_bit_for_bit) {
  Topology topology{.inside = shared_memory_profile(3), .between = network_tcp_profile(5), .inside_measured = true};
  topology.inside.latency_us = 0.1 + 0.2;
  topology.inside.host_groups_sharing = 3;
  topology.between.bytes_per_us = 1.0 / 3;
  EXPECT_EQ(decode_topology(encode(topology)), topology);
  std::swap(topology.inside, topology.between);
  std::swap(topology.inside_measured, topology.between_measured);
  EXPECT_EQ(decode_topology(encode(topology)), topology);
}

TEST(Topology, links_between_hosts_are_decoded) {
  Topology topology;
  topology.links = HostLinks(4);
  for (uint32_t b = 1; b < 4; ++b) {
    for (uint32_t a = 0; a < b; ++a) topology.links.between(a, b) = {.latency_us = 0.1 * a, .bytes_per_us = 1.0 / b};
  }
  EXPECT_EQ(topology.links.pairs.size(), 6u);
  EXPECT_EQ(decode_topology(encode(topology)), topology);
  topology.links.between(1, 2).bytes_per_us = std::numeric_limits<double>::infinity();
  EXPECT_FALSE(decode_topology(encode(topology)).has_value());
  topology.links.between(1, 2).bytes_per_us = 0;  // 0: this pair was not measured
  EXPECT_TRUE(decode_topology(encode(topology)).has_value());
  topology.links.between(1, 2).latency_us = -1;
  EXPECT_FALSE(decode_topology(encode(topology)).has_value());
  topology.links = HostLinks(linked_hosts_max);
  EXPECT_TRUE(decode_topology(encode(topology)).has_value());
  topology.links = HostLinks(linked_hosts_max + 1);
  EXPECT_FALSE(decode_topology(encode(topology)).has_value());
}

TEST(Topology, tuning_is_decoded) {
  Topology topology;
  topology.links = HostLinks(2);
  topology.tuning = *parse_tuning("unisono tuning 1\nstreams 2\ngroup 1+1 auto\nall_reduce max ring slice 65536\n");
  EXPECT_EQ(decode_topology(encode(topology)), topology);
  auto bytes = encode(topology);
  bytes.pop_back();
  bytes.back() = std::byte{'x'};
  EXPECT_FALSE(decode_topology(bytes).has_value());
}

TEST(Topology, a_message_of_another_length_is_rejected) {
  const auto bytes = encode(Topology{});
  EXPECT_TRUE(decode_topology(bytes).has_value());
  auto longer = bytes;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(decode_topology(longer).has_value());
  EXPECT_FALSE(decode_topology(ByteView(bytes).first(bytes.size() - 1)).has_value());
  EXPECT_FALSE(decode_topology({}).has_value());
}

TEST(Topology, impossible_link_speeds_are_rejected) {
  const auto sound = [](auto&& change) {
    Topology topology;
    change(topology.between);
    return decode_topology(encode(topology)).has_value();
  };
  EXPECT_TRUE(sound([](LinkProfile& link) { link.latency_us = 0; }));
  EXPECT_FALSE(sound([](LinkProfile& link) { link.latency_us = -1; }));
  EXPECT_FALSE(sound([](LinkProfile& link) { link.bytes_per_us = 0; }));
  EXPECT_FALSE(sound([](LinkProfile& link) { link.reduce_bytes_per_us = std::numeric_limits<double>::quiet_NaN(); }));
  EXPECT_FALSE(sound([](LinkProfile& link) { link.slice_bytes = std::numeric_limits<double>::infinity(); }));
  EXPECT_FALSE(sound([](LinkProfile& link) { link.cores = 0; }));
  EXPECT_FALSE(sound([](LinkProfile& link) { link.host_groups_sharing = 0; }));
}

}  // namespace
}  // namespace unisono
