// Recursive halving and doubling for any team size. Each half takes log2_ceil(size) rounds. In these rounds, a position sends
// and receives (size-1)/size of the tensor.
//
// In the classical form, the numbers of two partners differ in one bit, so the size must be a power of two. For other sizes,
// extra ranks are folded in and out. This costs two more rounds, and these ranks send and receive one more tensor.
//
// The phases here walk a circulant graph instead. If a position has s open blocks, it sends the upper half of them to the
// position at distance ceil(s/2). This is repeated until one block is left. Rounds and bytes are optimal for every size. See
// Bar-Noy, Kipnis and Schieber, "An optimal algorithm for computing census functions in message-passing systems", 1993, and
// Traeff, "Optimal, non-pipelined reduce-scatter and allreduce algorithms", 2024.
#pragma once

#include "schedules/team.h"

namespace unisono {

// Afterwards, position p has the complete block p.
void append_halving_reduce_scatter(const Team& team, std::vector<Step>& steps);
// Copies block p from position p to all positions.
void append_doubling_all_gather(const Team& team, std::vector<Step>& steps);
// The dissemination barrier (Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization", 1988). In its rounds,
// messages go to the positions at distance 1, 2, 4, and so on. In this way, every position hears from every other position,
// directly or indirectly. A contribution may arrive more than once, so only barriers may use this phase.
void append_dissemination(const Team& team, std::vector<Step>& steps);

}  // namespace unisono
