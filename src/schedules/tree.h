// Binomial tree phases: log2_ceil(size) rounds. The root is position 0; the subtree of a position is the positions right
// behind it, so an order that keeps host groups together crosses between them only near the root.
#pragma once

#include "schedules/team.h"

namespace unisono {

// Block 0 is the whole tensor. The broadcast begins with the farthest child, because that one has the most still to do.
void append_tree_broadcast(const Team& team, std::vector<Step>& steps);
void append_tree_reduce(const Team& team, std::vector<Step>& steps);
// Block p is position p's; a message carries the blocks of a whole subtree.
void append_tree_scatter(const Team& team, std::vector<Step>& steps);
void append_tree_gather(const Team& team, std::vector<Step>& steps);

}  // namespace unisono
