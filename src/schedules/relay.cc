#include "schedules/relay.h"

#include <algorithm>

namespace unisono {

std::vector<RelayRound> relay_rounds(Rank self, uint32_t world) {
  std::vector<RelayRound> rounds;
  for (uint32_t distance = 1; distance < world; distance *= 2) {
    rounds.push_back({.to = (self + distance) % world,
                      .from = (self + world - distance) % world,
                      .blocks = std::min(distance, world - distance),
                      .position = distance});
  }
  return rounds;
}

}  // namespace unisono
