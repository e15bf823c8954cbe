// Who is meant. A Rank is a place in one group; a PeerIndex is a place in this node's roster of processes.
#pragma once

#include <compare>
#include <cstdint>

namespace unisono {

using Rank = uint32_t;       // 0 … world_size-1 in a group
using PeerIndex = uint32_t;  // index of a process in the node's peer table; stable while the process is known

// 128 random bits, new at every process start.
struct PeerId {
  uint64_t low = 0;
  uint64_t high = 0;
  friend auto operator<=>(const PeerId&, const PeerId&) = default;
};

}  // namespace unisono
