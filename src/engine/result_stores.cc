#include "engine/result_stores.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>

#include "base/split.h"

namespace unisono {
namespace {

// Counts the processors in a list as the kernel writes it. For "0-3,8,10-11" it returns 7.
uint32_t count_listed(const std::string& list) {
  uint32_t count = 0;
  for (const auto part : split(list, ',')) {
    const std::string range(part);
    char* end = nullptr;
    const auto first = std::strtoul(range.c_str(), &end, 10), last = *end == '-' ? std::strtoul(end + 1, nullptr, 10) : first;
    if (!range.empty() && last >= first) count += static_cast<uint32_t>(last - first + 1);
  }
  return count;
}

}  // namespace

SharedCache read_shared_cache(const std::string& folder) {
  std::ifstream size_file(folder + "/size"), list_file(folder + "/shared_cpu_list");
  std::string size, list;
  if (!(size_file >> size) || !(list_file >> list)) return {};
  char* unit = nullptr;
  const auto number = std::strtoull(size.c_str(), &unit, 10);
  return {.bytes = number << (*unit == 'M' ? 20 : *unit == 'K' ? 10 : 0), .sharers = std::max(1u, count_listed(list))};
}

}  // namespace unisono
