// A private network for a rank. With it, links between ranks on one host can be as slow and as lossy as requested.
//
// The process gets a name space for its network, and another one for its host name ("rank-2"). Its only network interface is a
// TUN device (kernel Documentation/networking/tuntap.rst): a program reads and writes the packets. No name in the host's
// network refers to the private network. The kernel removes it when the last process and the last descriptor that use it are
// gone, even if they were killed.
//
// Another way was rejected: the kernel's own emulation (tc with netem) on pairs of virtual network interfaces. Many kernels
// lack netem, and the interfaces would remain if the launcher were killed.
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

// Returns the address of a rank: "10.77.0.1" for rank 0.
std::string private_address(uint32_t rank);
// Returns the rank to which an IPv4 packet is addressed. Returns nullopt for all other packets.
std::optional<uint32_t> receiver_of(std::string_view packet);

// Moves this process into a private network. The process must have only one thread. The returned descriptor reads and writes
// whole packets, and does not block. Returns Code::unsupported if the system forbids this; the message says what it forbids,
// and how to allow it.
Result<Descriptor> enter_private_network(uint32_t rank);
// Finds out whether enter_private_network() would succeed, by trying it in a child process.
Status try_private_network();

}  // namespace unisono::cli
