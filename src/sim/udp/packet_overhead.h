// Bytes on the wire per datagram besides its payload; both virtual networks charge them.
#pragma once

#include <cstddef>

namespace unisono::sim {

constexpr size_t packet_overhead = 28 + 38;  // IP and UDP headers; Ethernet's header, checksum, preamble and gap

}  // namespace unisono::sim
