// An all-reduce along two binary trees at once. Each tree carries half of the tensor up to its root and down again.
//
// A rank that has children in one tree is a leaf of the other tree. (If the size is odd, one rank is a leaf of both.) So every
// rank sends about two tensors, and receives about as much. With a single tree, half of the links would be idle. There are 2 *
// floor(log2 n) rounds, and at most four messages per rank.
//
// Source: Sanders, Speck, Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", Parallel Computing 35
// (2009). The trees are numbered in order, so adjacent ranks are near each other in both trees.
#pragma once

#include "schedules/team.h"

namespace unisono {

inline constexpr uint32_t double_tree_blocks = 2;  // each tree carries one half of the tensor

// Returns the number of rounds from the leaves to the root, which is floor(log2(size)).
uint32_t double_tree_height(uint32_t size);
// The team must have double_tree_blocks blocks. Block t is completed at the root of tree t and then copied down.
void append_double_tree(const Team& team, std::vector<Step>& steps);

}  // namespace unisono
