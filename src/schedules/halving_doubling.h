// Recursive halving and doubling for any team size: log2_ceil(size) rounds each and (size-1)/size of the tensor each way.
//
// The classical form (exchange with the rank whose number differs in one bit) needs a power of two; for other sizes it folds
// the extra ranks in before and out after, which costs the folded pairs a whole tensor more each way and two more rounds.
// Instead these phases walk a circulant graph: with s blocks still open per position, the upper half of them goes to the
// position at distance s' = ceil(s/2), until one is left. That is optimal in rounds and in bytes at once for every size.
// After Bar-Noy, Kipnis and Schieber, "An optimal algorithm for computing census functions in message-passing systems", 1993,
// and Traeff, "Optimal, non-pipelined reduce-scatter and allreduce algorithms", 2024.
#pragma once

#include "schedules/team.h"

namespace unisono {

// Block p, complete, ends at position p.
void append_halving_reduce_scatter(const Team& team, std::vector<Step>& steps);
// Block p starts at position p and ends everywhere.
void append_doubling_all_gather(const Team& team, std::vector<Step>& steps);
// After it every position has heard of every other: messages at distance 1, 2, 4, … (Hensgen, Finkel and Manber,
// "Two algorithms for barrier synchronization", 1988). Contributions may arrive more than once: for barriers only.
void append_dissemination(const Team& team, std::vector<Step>& steps);

}  // namespace unisono
