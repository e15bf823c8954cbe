// The measured speeds of the links between each pair of hosts in a group.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "schedules/cost.h"

namespace unisono {

// Hosts are numbered like host groups. The two directions between a pair of hosts count as one link.
struct HostLinks {
  uint32_t hosts = 0;
  std::vector<LinkSpeed> pairs{};  // in the order (0,1) (0,2) (1,2) (0,3) …; a rate of 0 means that the pair was not measured

  HostLinks() = default;
  explicit HostLinks(uint32_t count) : hosts(count), pairs(pair_count(count)) {}

  static constexpr size_t pair_count(uint32_t count) { return size_t{count} * (count - (count > 0 ? 1 : 0)) / 2; }
  LinkSpeed& between(uint32_t a, uint32_t b) { return pairs[index(a, b)]; }
  const LinkSpeed& between(uint32_t a, uint32_t b) const { return pairs[index(a, b)]; }
  friend bool operator==(const HostLinks&, const HostLinks&) = default;

 private:
  static size_t index(uint32_t a, uint32_t b) { return pair_count(std::max(a, b)) + std::min(a, b); }
};

// Returns the median. If there are two middle values, returns the larger one. `values` must not be empty.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace unisono
