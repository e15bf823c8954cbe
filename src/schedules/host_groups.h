// Islands: sets of ranks that are close to each other (one host, one rack), and orders of ranks that respect them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "wire/peer_id.h"

namespace unisono {

// Members of each island in rank order; islands in the order of their lowest rank. Every rank is in exactly one.
using Islands = std::vector<std::vector<Rank>>;

// From an island number per rank (any numbers). Empty: every rank is an island of its own.
Islands find_islands(std::span<const uint32_t> island_of_rank, uint32_t world);

// All ranks, starting with `first`, island after island, so that neighbours are close: a ring in this order leaves each
// island once, and a binomial tree in this order crosses between islands about as seldom as it can. Without island
// numbers: first, first+1, … modulo world.
std::vector<Rank> order_by_island(std::span<const uint32_t> island_of_rank, uint32_t world, Rank first);

}  // namespace unisono
