// The one-shot sum for many ranks: everyone still gets everyone's values and adds them itself, but they are passed on, in
// log2(n) messages per rank in place of n-1 (the all-gather of Bruck, Ho, Kipnis, Upfal and Weathersby 1997, by doubling
// distances).
//
// Values are kept in blocks, one per rank: block i at rank r is that of rank r-i (modulo n). Before round k a rank has the
// first 2^k of them. It sends those that the rank 2^k ahead lacks, as one message, and gets as many from the rank 2^k behind.
#pragma once

#include <cstdint>
#include <vector>

#include "wire/peer_id.h"

namespace unisono {

struct RelayRound {
  Rank to = 0, from = 0;
  uint32_t blocks = 0;    // the first so many are sent, and as many come
  uint32_t position = 0;  // of the first that comes
};

std::vector<RelayRound> relay_rounds(Rank self, uint32_t world);
// Where the values of this rank are at `self` when all are there.
constexpr uint32_t relay_position(Rank of, Rank self, uint32_t world) { return (self + world - of) % world; }

// All values together: a receiver keeps them until it adds.
inline constexpr uint64_t relay_bytes_max = 256u << 10;

}  // namespace unisono
