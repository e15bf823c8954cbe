#include "node/result_stores.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>

namespace unisono {
namespace {

// "0-3,8,10-11": six.
uint32_t count_listed(const std::string& list) {
  uint32_t count = 0;
  for (size_t at = 0; at < list.size();) {
    const auto end = std::min(list.find(',', at), list.size());
    const auto dash = list.find('-', at);
    const auto first = std::strtoul(list.c_str() + at, nullptr, 10);
    const auto last = dash < end ? std::strtoul(list.c_str() + dash + 1, nullptr, 10) : first;
    count += end > at && last >= first ? static_cast<uint32_t>(last - first + 1) : 0;
    at = end + 1;
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
