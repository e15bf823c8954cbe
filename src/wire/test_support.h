// For tests and fuzzers of datagrams: a fixed group, a fixed datagram, and all checks of a datagram that need no state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "wire/datagram.h"

namespace unisono::datagram_test {

inline constexpr uint32_t bytes_max = 1472;

inline DatagramGroup group(DatagramAuth auth = DatagramAuth::mac) {
  DatagramGroup group{.run_id = 0x1122334455667788ull, .epoch = 7, .self = 5, .world = 8, .auth = auth};
  for (size_t i = 0; i < group.key.size(); ++i) group.key[i] = static_cast<std::byte>(i);
  return group;
}

// Returns a header from rank 2 to rank 5 without a tag.
inline DatagramHeader header(uint16_t payload_bytes = 16) {
  return {.epoch = 7,
          .run_id = 0x1122334455667788ull,
          .op = 1000,
          .sender = 2,
          .receiver = 5,
          .flags = datagram_tail,
          .slice = 3,
          .packet_index = 41,
          .payload_bytes = payload_bytes,
          .flow_seq = 900,
          .sent_at_us = 123456,
          .deadline_us = 20000};
}

// Returns four floats as bytes: 1, -2, 0.5, 0.
inline std::vector<std::byte> payload() {
  const float values[] = {1, -2, 0.5f, 0};
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

inline DatagramSeal seal_to_self(const DatagramGroup& group, Rank sender) {
  return {link_key(group.key, sender, group.self, group.epoch, group.run_id), group.auth};
}

inline std::vector<std::byte> join(const DatagramHeader& header, std::span<const std::byte> payload) {
  std::vector<std::byte> bytes(sizeof header + payload.size());
  std::memcpy(bytes.data(), &header, sizeof header);
  if (!payload.empty()) std::memcpy(bytes.data() + sizeof header, payload.data(), payload.size());
  return bytes;
}

// Returns the datagram, sealed with the key of the link from header.sender to header.receiver.
inline std::vector<std::byte> sealed(DatagramHeader header, std::span<const std::byte> payload, const DatagramGroup& group) {
  seal_datagram(header, payload,
                {link_key(group.key, header.sender, header.receiver, header.epoch, header.run_id), group.auth});
  return join(header, payload);
}

// Checks a received datagram in the transport's order and returns the first fault.
inline DatagramFault check(std::span<const std::byte> datagram, const DatagramGroup& group, uint32_t limit = bytes_max) {
  DatagramHeader header;
  if (const auto fault = check_shape(datagram, limit, header); fault != DatagramFault::none) return fault;
  if (const auto fault = check_group(header, group); fault != DatagramFault::none) return fault;
  return check_tag(header, datagram, seal_to_self(group, header.sender));
}

}  // namespace unisono::datagram_test
