// Host groups are sets of ranks that are close to each other, on one host or in one rack. This file finds them, and orders the
// ranks by host group.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "wire/peer_id.h"

namespace unisono {

// The members of each host group in rank order. Host groups are ordered by their lowest rank. Every rank is in exactly one host
// group.
using HostGroups = std::vector<std::vector<Rank>>;

// Makes host groups from the host group number of each rank. The numbers may be arbitrary. If the span is empty, every rank is
// a host group of its own.
HostGroups find_host_groups(std::span<const uint32_t> host_group_of_rank, uint32_t world);

// Returns all ranks, beginning with `first`, one host group after another. In this order, a ring leaves each host group only
// once, and a binomial tree seldom crosses between host groups. Without host group numbers, the order is first, first+1, and so
// on, modulo world.
std::vector<Rank> order_by_host_group(std::span<const uint32_t> host_group_of_rank, uint32_t world, Rank first);

}  // namespace unisono
