// An all-reduce along two binary trees at once: each tree carries half of the tensor, up to its root and down again.
//
// A rank that has children in one tree is a leaf of the other (but for one rank, which is a leaf of both). So all ranks send
// about as much as they receive, twice the tensor, where a single tree leaves half of the links idle. Two times floor(log2 n)
// rounds, and at most four messages per rank.
//
// Source: Sanders, Speck, Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", Parallel Computing 35
// (2009). The trees are numbered in order, so ranks that stand side by side are near each other in both.
#pragma once

#include "schedules/team.h"

namespace unisono {

inline constexpr uint32_t double_tree_blocks = 2;  // halves of the tensor, one per tree

// Rounds from the leaves to a root: floor(log2(size)).
uint32_t double_tree_height(uint32_t size);
// The team has double_tree_blocks blocks. Block t is completed at the root of tree t, then copied down.
void append_double_tree(const Team& team, std::vector<Step>& steps);

}  // namespace unisono
