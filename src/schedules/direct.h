// Direct phases: one round, each message from its source to its destination without a relay, staggered so that in no
// moment all positions send to the same one (position p begins with p+1, and expects p-1 first).
#pragma once

#include "schedules/team.h"

namespace unisono {

// Block p, complete, ends at position p. Each message is one rank's own contribution.
void append_direct_reduce_scatter(const Team& team, std::vector<Step>& steps);
// Block p starts at position p and ends everywhere.
void append_direct_all_gather(const Team& team, std::vector<Step>& steps);
// Chunk source*world + destination goes from source to destination; a rank's own block does not travel. Ranks are positions.
void append_direct_all_to_all(uint32_t world, Rank rank, std::vector<Step>& steps);

// The root is position 0. Block 0 is the whole tensor.
void append_direct_reduce(const Team& team, std::vector<Step>& steps);
void append_direct_broadcast(const Team& team, std::vector<Step>& steps);
// The root is position 0. Block p is position p's; the root's own does not travel.
void append_direct_gather(const Team& team, std::vector<Step>& steps);
void append_direct_scatter(const Team& team, std::vector<Step>& steps);

}  // namespace unisono
