// Phases in a binomial tree. They take log2_ceil(size) rounds. The root is position 0, and the subtree of a position consists
// of the positions that follow it. So if the order keeps host groups together, only messages near the root cross between host
// groups.
#pragma once

#include "schedules/team.h"

namespace unisono {

// Block 0 is the whole tensor. The root sends to its farthest child first, because that child has the highest subtree.
void append_tree_broadcast(const Team& team, std::vector<Step>& steps);
void append_tree_reduce(const Team& team, std::vector<Step>& steps);
// Block p belongs to position p. A message carries the blocks of a whole subtree.
void append_tree_scatter(const Team& team, std::vector<Step>& steps);
void append_tree_gather(const Team& team, std::vector<Step>& steps);

}  // namespace unisono
