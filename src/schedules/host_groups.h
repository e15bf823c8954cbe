// Host groups: sets of ranks that are close to each other (one host, one rack), and orders of ranks that respect them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "wire/peer_id.h"

namespace unisono {

// Members of each host group in rank order; host groups in the order of their lowest rank. Every rank is in exactly one.
using HostGroups = std::vector<std::vector<Rank>>;

// From a host group number per rank (any numbers). Empty: every rank is a host group of its own.
HostGroups find_host_groups(std::span<const uint32_t> host_group_of_rank, uint32_t world);

// All ranks, starting with `first`, host group after host group, so that neighbours are close: a ring in this order leaves each
// host group once, and a binomial tree in this order crosses between host groups about as seldom as it can. Without host group
// numbers: first, first+1, … modulo world.
std::vector<Rank> order_by_host_group(std::span<const uint32_t> host_group_of_rank, uint32_t world, Rank first);

}  // namespace unisono
