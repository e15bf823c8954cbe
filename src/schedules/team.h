// A team is the set of ranks that execute one phase of a schedule together, and the chunks that they exchange.
//
// A schedule consists of a few phases, one after another, such as a reduce-scatter and an all-gather. The code of a phase uses
// positions 0 … size-1 and blocks. The team translates positions to ranks, and blocks to chunks. So the same code can make the
// ring over all ranks, the ring inside a host group, and the ring between the owners of a unit.
#pragma once

#include <cstdint>
#include <vector>

#include "schedules/schedule.h"

namespace unisono {

// One step of a phase, with positions and blocks. Its blocks are block … block+count-1, modulo the team's number of blocks.
struct Move {
  uint32_t round = 0;  // counted from the first round of the phase
  Op op = Op::send;
  uint32_t peer = 0;  // position of the other rank
  uint32_t block = 0;
  uint32_t count = 1;
};

struct Team {
  std::vector<Rank> ranks;         // rank of each position
  std::vector<ChunkRange> blocks;  // chunks of each block; blocks with an empty range are not exchanged
  uint32_t position = 0;           // position of the rank whose steps are being made
  uint32_t first_round = 0;        // the phase begins in this round of the schedule

  uint32_t size() const { return static_cast<uint32_t>(ranks.size()); }
  // Return the position that is `distance` positions after (or before) this one, modulo the size.
  uint32_t after(uint32_t distance) const { return (position + distance) % size(); }
  uint32_t before(uint32_t distance) const { return (position + size() - distance % size()) % size(); }
  // Appends the steps of a move. Blocks with adjacent chunks are in one step. After each gap between chunks, a new step begins.
  void append(std::vector<Step>& steps, const Move& move) const;
};

// Makes a team in which position p is rank p, and block p is chunk p.
Team team_of_world(uint32_t world, Rank rank);
// Makes a team in which position p is rank order[p], and block p is chunk order[p]. So reduce-scatter and all-gather leave
// chunk r at rank r, whatever the order is. `order` must contain `rank`.
Team team_in_order(std::vector<Rank> order, Rank rank);
// Makes a team in which position p is rank order[p]. Its only block contains all chunks. Phases that move the whole tensor use
// it.
Team team_of_one_block(std::vector<Rank> order, Rank rank, ChunkRange chunks);

// Returns the smallest k with 2^k >= value. Returns 0 for 0 and 1.
uint32_t log2_ceil(uint32_t value);

}  // namespace unisono
