// The bytes that every datagram adds on the wire, so that both virtual networks charge the same for one.
#pragma once

#include <cstddef>

namespace unisono::sim {

constexpr size_t packet_overhead = 28 + 38;  // IP and UDP headers; Ethernet's header, checksum, preamble and gap

}  // namespace unisono::sim
