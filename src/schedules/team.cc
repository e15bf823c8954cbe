#include "schedules/team.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace unisono {

void Team::append(std::vector<Step>& steps, const Move& move) const {
  const auto block_count = static_cast<uint32_t>(blocks.size());
  ChunkRange run;
  const auto flush = [&] {
    if (run.begin != run.end) steps.push_back({first_round + move.round, move.op, ranks[move.peer], run});
  };
  for (uint32_t i = 0; i < move.count; ++i) {
    const auto next = blocks[(move.block + i) % block_count];
    if (next.begin == next.end) continue;
    if (run.begin != run.end && next.begin == run.end) {
      run.end = next.end;
    } else {
      flush();
      run = next;
    }
  }
  flush();
}

Team team_of_world(uint32_t world, Rank rank) {
  std::vector<Rank> order(world);
  std::iota(order.begin(), order.end(), 0u);
  return team_in_order(std::move(order), rank);
}

Team team_in_order(std::vector<Rank> order, Rank rank) {
  Team team;
  team.position = static_cast<uint32_t>(std::find(order.begin(), order.end(), rank) - order.begin());
  UNISONO_CHECK(team.position < order.size());
  team.blocks.reserve(order.size());
  for (const auto member : order) team.blocks.push_back({member, member + 1});
  team.ranks = std::move(order);
  return team;
}

Team team_of_one_block(std::vector<Rank> order, Rank rank, ChunkRange chunks) {
  Team team;
  team.position = static_cast<uint32_t>(std::find(order.begin(), order.end(), rank) - order.begin());
  UNISONO_CHECK(team.position < order.size());
  team.blocks = {chunks};
  team.ranks = std::move(order);
  return team;
}

uint32_t log2_ceil(uint32_t value) { return value <= 1 ? 0 : static_cast<uint32_t>(std::bit_width(value - 1)); }

}  // namespace unisono
