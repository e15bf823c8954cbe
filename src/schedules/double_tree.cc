#include "schedules/double_tree.h"

#include <bit>

namespace unisono {
namespace {

// A node of the first tree, which contains the numbers 1 … size in order. The level of a node is the number of trailing zero
// bits. So odd nodes are leaves, and the largest power of two is the root. If a right child would be larger than `size`, it is
// replaced by its own left child, and so on.
struct Node {
  uint32_t level = 0;
  uint32_t parent = 0;        // 0: none
  uint32_t children[2] = {};  // 0: none
};

Node node_of(uint32_t number, uint32_t size) {
  Node node{.level = static_cast<uint32_t>(std::countr_zero(number))};
  for (uint32_t own = number; own != std::bit_floor(size) && node.parent == 0;) {
    const uint32_t bit = own & (~own + 1), up = (own ^ bit) | bit << 1;
    if (up <= size) node.parent = up;
    own = up;
  }
  if (node.level == 0) return node;
  node.children[0] = number - (1u << (node.level - 1));
  for (uint32_t step = 1u << (node.level - 1); step > 0 && node.children[1] == 0; step /= 2) {
    if (number + step <= size) node.children[1] = number + step;
  }
  return node;
}

// Returns the number of a position in one of the trees. If the size is even, the second tree is a mirror image of the first. If
// it is odd, the numbers are shifted by one. So a position with an even number in one tree has an odd number in the other tree.
uint32_t number_in(uint32_t tree, uint32_t position, uint32_t size) {
  const uint32_t number = position + 1;
  if (tree == 0) return number;
  if (size % 2 == 0) return size + 1 - number;
  return number == 1 ? size : number - 1;
}

uint32_t position_of(uint32_t tree, uint32_t number, uint32_t size) {
  if (tree == 0) return number - 1;
  if (size % 2 == 0) return size - number;
  return number == size ? 0 : number;
}

}  // namespace

uint32_t double_tree_height(uint32_t size) { return static_cast<uint32_t>(std::bit_width(size)) - 1; }

// A node receives from its children in round level - 1, and sends the result to them in round 2 * height - level.
void append_double_tree(const Team& team, std::vector<Step>& steps) {
  const uint32_t size = team.size(), height = double_tree_height(size);
  if (size == 1) return;
  std::vector<Move> up, down;
  for (uint32_t tree = 0; tree < double_tree_blocks; ++tree) {
    const auto node = node_of(number_in(tree, team.position, size), size);
    const auto move = [&](std::vector<Move>& moves, uint32_t round, Op op, uint32_t number) {
      if (number != 0) moves.push_back({.round = round, .op = op, .peer = position_of(tree, number, size), .block = tree});
    };
    const auto parent_level = node.parent == 0 ? 0 : static_cast<uint32_t>(std::countr_zero(node.parent));
    move(up, parent_level - 1, Op::send, node.parent);
    move(down, 2 * height - parent_level, Op::recv_copy, node.parent);
    for (const auto child : node.children) {
      move(up, node.level - 1, Op::recv_reduce, child);
      move(down, 2 * height - node.level, Op::send, child);
    }
  }
  up.insert(up.end(), down.begin(), down.end());
  // The moves are appended round by round. Within a round, sends come before receives.
  for (uint32_t round = 0; round < 2 * height; ++round) {
    for (const bool sends : {true, false}) {
      for (const auto& one : up) {
        if (one.round == round && (one.op == Op::send) == sends) team.append(steps, one);
      }
    }
  }
}

}  // namespace unisono
