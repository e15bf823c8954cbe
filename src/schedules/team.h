// A team: the ranks that run one phase of a schedule together, and the chunks that they exchange.
//
// Every schedule is a few phases (reduce-scatter, all-gather, reduce, broadcast, …) one after another. A phase is written
// once, in terms of positions 0 … size-1 and blocks, and knows neither ranks nor chunks; the team translates. So the ring
// over all ranks, the ring inside one host group and the ring between the owners of one piece are the same ten lines.
#pragma once

#include <cstdint>
#include <vector>

#include "schedules/schedule.h"

namespace unisono {

// One step in positions and blocks. The blocks are block … block+count-1, counted modulo the team's blocks.
struct Move {
  uint32_t round = 0;  // in the phase
  Op op = Op::send;
  uint32_t peer = 0;  // position
  uint32_t block = 0;
  uint32_t count = 1;
};

struct Team {
  std::vector<Rank> ranks;         // of each position
  std::vector<ChunkRange> blocks;  // of each block; may be empty ranges: nothing is exchanged for those
  uint32_t position = 0;           // of the rank whose steps are made
  uint32_t first_round = 0;        // of this phase in the schedule

  uint32_t size() const { return static_cast<uint32_t>(ranks.size()); }
  // The position at this distance behind (or, with size() - distance, before) this one.
  uint32_t after(uint32_t distance) const { return (position + distance) % size(); }
  uint32_t before(uint32_t distance) const { return (position + size() - distance % size()) % size(); }
  // One step for each run of chunks without a gap: blocks that lie side by side become one ChunkRange.
  void append(std::vector<Step>& steps, const Move& move) const;
};

// Position = rank; block p = chunk p.
Team team_of_world(uint32_t world, Rank rank);
// Position p is order[p]; block p = chunk order[p]: reduce-scatter and all-gather leave chunk r at rank r, whatever the order.
// The rank must be in the order.
Team team_in_order(std::vector<Rank> order, Rank rank);
// Position p is order[p]; one block, which is all the chunks. For phases that move the tensor whole.
Team team_of_one_block(std::vector<Rank> order, Rank rank, ChunkRange chunks);

// The smallest k with 2^k >= value; 0 for 0 and 1.
uint32_t log2_ceil(uint32_t value);

}  // namespace unisono
