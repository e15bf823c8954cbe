// A one-shot all-reduce for many ranks. As in one_shot, every rank receives the values of all ranks and adds them itself. But
// ranks pass values on, so a rank sends log2(n) messages instead of n-1. The values are distributed by the all-gather of Bruck,
// Ho, Kipnis, Upfal and Weathersby (1997), with doubling distances.
//
// Each rank keeps one block for each rank: block i at rank r is the value of rank r-i (modulo n). Before round k, a rank holds
// its first 2^k blocks. In the round, it sends one message to the rank 2^k ahead, with the blocks that this rank lacks. It
// receives as many blocks from the rank 2^k behind.
#pragma once

#include <cstdint>
#include <vector>

#include "wire/peer_id.h"

namespace unisono {

struct RelayRound {
  Rank to = 0, from = 0;
  uint32_t blocks = 0;    // number of blocks to send (from block 0 on) and to receive
  uint32_t position = 0;  // index of the first received block
};

std::vector<RelayRound> relay_rounds(Rank self, uint32_t world);
// Returns the index of the block in which rank `self` holds the value of rank `of`.
constexpr uint32_t relay_position(Rank of, Rank self, uint32_t world) { return (self + world - of) % world; }

// A receiver keeps the values of all ranks until it adds them. The values of all ranks together have at most this size.
inline constexpr uint64_t relay_bytes_max = 256u << 10;

}  // namespace unisono
