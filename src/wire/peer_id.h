// Names of processes and ranks. A Rank is a position in one group; a PeerIndex is a position in this process's peer table.
#pragma once

#include <compare>
#include <cstdint>

namespace unisono {

using Rank = uint32_t;       // 0 … world_size-1 in a group
using PeerIndex = uint32_t;  // index of a process in this process's peer table; stable while that process is known

// 128 random bits, new at every process start.
struct PeerId {
  uint64_t low = 0;
  uint64_t high = 0;
  friend auto operator<=>(const PeerId&, const PeerId&) = default;
};

}  // namespace unisono
