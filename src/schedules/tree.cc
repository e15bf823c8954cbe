#include "schedules/tree.h"

#include <algorithm>
#include <bit>

namespace unisono {
namespace {

// The level of a position is the index of its lowest set bit. The level of the root is the height of the tree. The parent of
// position p is p - 2^level, and its children are p + 2^l for all l < level.
uint32_t level(const Team& team) {
  return team.position == 0 ? log2_ceil(team.size()) : static_cast<uint32_t>(std::countr_zero(team.position));
}

// The blocks that are sent between `child` and its parent.
struct Span {
  uint32_t block = 0;
  uint32_t count = 1;
};
enum class Payload : uint8_t { tensor, subtree };

Span span(const Team& team, uint32_t child, Payload payload) {
  if (payload == Payload::tensor) return {};
  const auto reach = child & (~child + 1);
  return {child, std::min(reach, team.size() - child)};
}

void append_down(const Team& team, Payload payload, std::vector<Step>& steps) {
  const auto height = log2_ceil(team.size());
  const auto own = level(team);
  if (team.position != 0) {
    const auto [block, count] = span(team, team.position, payload);
    team.append(
        steps,
        {.round = height - 1 - own, .op = Op::recv_copy, .peer = team.position - (1u << own), .block = block, .count = count});
  }
  for (auto l = own; l-- > 0;) {
    const auto child = team.position + (1u << l);
    if (child >= team.size()) continue;
    const auto [block, count] = span(team, child, payload);
    team.append(steps, {.round = height - 1 - l, .op = Op::send, .peer = child, .block = block, .count = count});
  }
}

void append_up(const Team& team, Payload payload, std::vector<Step>& steps) {
  const auto own = level(team);
  const auto receive = payload == Payload::tensor ? Op::recv_reduce : Op::recv_copy;
  for (uint32_t l = 0; l < own; ++l) {
    const auto child = team.position + (1u << l);
    if (child >= team.size()) break;
    const auto [block, count] = span(team, child, payload);
    team.append(steps, {.round = l, .op = receive, .peer = child, .block = block, .count = count});
  }
  if (team.position == 0) return;
  const auto [block, count] = span(team, team.position, payload);
  team.append(steps, {.round = own, .op = Op::send, .peer = team.position - (1u << own), .block = block, .count = count});
}

}  // namespace

void append_tree_broadcast(const Team& team, std::vector<Step>& steps) { append_down(team, Payload::tensor, steps); }
void append_tree_reduce(const Team& team, std::vector<Step>& steps) { append_up(team, Payload::tensor, steps); }
void append_tree_scatter(const Team& team, std::vector<Step>& steps) { append_down(team, Payload::subtree, steps); }
void append_tree_gather(const Team& team, std::vector<Step>& steps) { append_up(team, Payload::subtree, steps); }

}  // namespace unisono
