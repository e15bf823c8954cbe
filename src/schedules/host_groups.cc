#include "schedules/host_groups.h"

#include <algorithm>
#include <unordered_map>

namespace unisono {

HostGroups find_host_groups(std::span<const uint32_t> host_group_of_rank, uint32_t world) {
  HostGroups host_groups;
  if (host_group_of_rank.empty()) {
    for (Rank rank = 0; rank < world; ++rank) host_groups.push_back({rank});
    return host_groups;
  }
  std::unordered_map<uint32_t, size_t> index;  // for each host group number: its index in the result
  for (Rank rank = 0; rank < world; ++rank) {
    const auto [found, is_new] = index.try_emplace(host_group_of_rank[rank], host_groups.size());
    if (is_new) host_groups.emplace_back();
    host_groups[found->second].push_back(rank);
  }
  return host_groups;
}

std::vector<Rank> order_by_host_group(std::span<const uint32_t> host_group_of_rank, uint32_t world, Rank first) {
  std::vector<Rank> order;
  order.reserve(world);
  if (host_group_of_rank.empty()) {
    for (uint32_t i = 0; i < world; ++i) order.push_back((first + i) % world);
    return order;
  }
  auto host_groups = find_host_groups(host_group_of_rank, world);
  for (size_t i = 0; i < host_groups.size(); ++i) {
    const auto member = std::find(host_groups[i].begin(), host_groups[i].end(), first);
    if (member == host_groups[i].end()) continue;
    std::rotate(host_groups[i].begin(), member, host_groups[i].end());
    std::rotate(host_groups.begin(), host_groups.begin() + static_cast<std::ptrdiff_t>(i), host_groups.end());
    break;
  }
  for (const auto& host_group : host_groups) order.insert(order.end(), host_group.begin(), host_group.end());
  return order;
}

}  // namespace unisono
