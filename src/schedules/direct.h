// Direct phases. They have one round, in which each message goes straight from its source to its destination. Position p sends
// to p+1 first, and expects its first message from p-1. In this way, the positions do not all send to the same position at
// once.
#pragma once

#include "schedules/team.h"

namespace unisono {

// Afterwards, position p has the complete block p. Each message is the own contribution of one rank.
void append_direct_reduce_scatter(const Team& team, std::vector<Step>& steps);
// Copies block p from position p to all positions.
void append_direct_all_gather(const Team& team, std::vector<Step>& steps);
// Chunk source*world + destination goes from rank `source` to rank `destination`. A rank's block for itself is not sent.
void append_direct_all_to_all(uint32_t world, Rank rank, std::vector<Step>& steps);

// The root is position 0; block 0 is the whole tensor.
void append_direct_reduce(const Team& team, std::vector<Step>& steps);
void append_direct_broadcast(const Team& team, std::vector<Step>& steps);
// The root is position 0; block p belongs to position p. The root's own block is not sent.
void append_direct_gather(const Team& team, std::vector<Step>& steps);
void append_direct_scatter(const Team& team, std::vector<Step>& steps);

}  // namespace unisono
