// Bytes that each datagram takes on the wire in addition to its payload. Both virtual networks count them.
#pragma once

#include <cstddef>

namespace unisono::sim {

constexpr size_t packet_overhead = 28 + 38;  // 28: IP and UDP headers; 38: Ethernet header, checksum, preamble and gap

}  // namespace unisono::sim
