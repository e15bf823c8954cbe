// Identifiers of processes and ranks. A Rank is the position of a process in one group. A PeerIndex is its position in the
// table of peers that each process keeps for itself.
#pragma once

#include <compare>
#include <cstdint>

namespace unisono {

using Rank = uint32_t;       // 0 … world_size-1 in a group
using PeerIndex = uint32_t;  // index in the table of peers of this process; it stays the same as long as the peer is known

// Identifies a process. It has 128 random bits, which are drawn anew whenever a process starts.
struct PeerId {
  uint64_t low = 0;
  uint64_t high = 0;
  friend auto operator<=>(const PeerId&, const PeerId&) = default;
};

}  // namespace unisono
