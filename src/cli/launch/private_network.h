// A network of a rank's own, so that links between ranks of one host can be as slow and lossy as requested.
//
// The process gets name spaces for its network and its host name ("rank-2"), and in them one interface whose packets a program
// reads and writes (a TUN device, kernel Documentation/networking/tuntap.rst). Nothing of it has a name outside, and the kernel
// takes all of it away when the last process and descriptor are gone, however they went. Rejected: tc and netem on virtual
// cables, because many kernels come without netem, and because cables that were made for a run outlive a launcher that is
// killed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "cli/common/descriptor.h"
#include "unisono/status.h"

namespace unisono::cli {

inline constexpr uint32_t private_mtu = 1500;
inline constexpr uint32_t private_ranks_max = 4096;

// "10.77.0.1" of rank 0.
std::string private_address(uint32_t rank);
// The rank that an IPv4 packet is for; nothing if it is no such packet.
std::optional<uint32_t> receiver_of(std::string_view packet);

// Moves this process, which must have one thread. The descriptor reads and writes whole packets, and does not block.
// unsupported: what this system does not allow, and what would.
Result<Descriptor> enter_private_network(uint32_t rank);
// Whether that would work: tried in a process of its own.
Status try_private_network();

}  // namespace unisono::cli
