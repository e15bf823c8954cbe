#include "schedules/host_groups.h"

#include <algorithm>
#include <unordered_map>

namespace unisono {

Islands find_islands(std::span<const uint32_t> island_of_rank, uint32_t world) {
  Islands islands;
  if (island_of_rank.empty()) {
    for (Rank rank = 0; rank < world; ++rank) islands.push_back({rank});
    return islands;
  }
  std::unordered_map<uint32_t, size_t> index;  // of each island number seen
  for (Rank rank = 0; rank < world; ++rank) {
    const auto [found, is_new] = index.try_emplace(island_of_rank[rank], islands.size());
    if (is_new) islands.emplace_back();
    islands[found->second].push_back(rank);
  }
  return islands;
}

std::vector<Rank> order_by_island(std::span<const uint32_t> island_of_rank, uint32_t world, Rank first) {
  std::vector<Rank> order;
  order.reserve(world);
  if (island_of_rank.empty()) {
    for (uint32_t i = 0; i < world; ++i) order.push_back((first + i) % world);
    return order;
  }
  auto islands = find_islands(island_of_rank, world);
  for (size_t i = 0; i < islands.size(); ++i) {
    const auto member = std::find(islands[i].begin(), islands[i].end(), first);
    if (member == islands[i].end()) continue;
    std::rotate(islands[i].begin(), member, islands[i].end());
    std::rotate(islands.begin(), islands.begin() + static_cast<std::ptrdiff_t>(i), islands.end());
    break;
  }
  for (const auto& island : islands) order.insert(order.end(), island.begin(), island.end());
  return order;
}

}  // namespace unisono
