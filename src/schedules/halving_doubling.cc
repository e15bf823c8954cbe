#include "schedules/halving_doubling.h"

namespace unisono {

// The following is true before a round with `open` blocks. Position p holds partial sums of the blocks p … p+open-1, and every
// contribution to a block is in exactly one partial sum. In the round, position p sends the blocks p+half … p+open-1 to
// position p+half, whose own blocks begin with these blocks.
void append_halving_reduce_scatter(const Team& team, std::vector<Step>& steps) {
  uint32_t round = 0;
  for (uint32_t open = team.size(); open > 1; ++round) {
    const auto half = (open + 1) / 2;
    const auto count = open - half;
    team.append(steps, {.round = round, .op = Op::send, .peer = team.after(half), .block = team.after(half), .count = count});
    team.append(steps,
                {.round = round, .op = Op::recv_reduce, .peer = team.before(half), .block = team.position, .count = count});
    open = half;
  }
}

// The rounds are those of the reduce-scatter in reverse order, and every message goes in the opposite direction.
void append_doubling_all_gather(const Team& team, std::vector<Step>& steps) {
  const auto rounds = log2_ceil(team.size());
  std::vector<uint32_t> open{team.size()};
  while (open.back() > 1) open.push_back((open.back() + 1) / 2);
  for (uint32_t round = 0; round < rounds; ++round) {
    const auto half = open[rounds - round];
    const auto count = open[rounds - round - 1] - half;
    team.append(steps, {.round = round, .op = Op::send, .peer = team.before(half), .block = team.position, .count = count});
    team.append(steps,
                {.round = round, .op = Op::recv_copy, .peer = team.after(half), .block = team.after(half), .count = count});
  }
}

void append_dissemination(const Team& team, std::vector<Step>& steps) {
  uint32_t round = 0;
  for (uint32_t distance = 1; distance < team.size(); distance *= 2, ++round) {
    team.append(steps, {.round = round, .op = Op::send, .peer = team.after(distance)});
    team.append(steps, {.round = round, .op = Op::recv_reduce, .peer = team.before(distance)});
  }
}

}  // namespace unisono
