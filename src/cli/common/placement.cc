#include "cli/common/placement.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/common/text.h"

namespace unisono::cli {
namespace {

Result<HostSlots> parse_host(std::string_view entry) {
  HostSlots host;
  std::string_view slots;
  if (entry.starts_with('[')) {
    const auto close = entry.find(']');
    if (close == std::string_view::npos) return Status(Code::invalid, fmt::format("host '{}': the [ is not closed", entry));
    host.name = entry.substr(1, close - 1);
    slots = entry.substr(close + 1);
  } else {
    const auto colon = entry.find(':');
    if (colon != entry.rfind(':')) {
      return Status(Code::invalid, fmt::format("host '{}': write an IPv6 address as [address]:slots", entry));
    }
    host.name = entry.substr(0, colon);
    slots = colon == std::string_view::npos ? std::string_view{} : entry.substr(colon);
  }
  // ssh would read a name with a leading '-' as an option.
  if (host.name.empty() || host.name[0] == '-') return Status(Code::invalid, fmt::format("'{}' is not a host", entry));
  if (slots.empty()) return host;
  const auto count = parse_count(slots.substr(1), world_size_max);
  if (slots[0] != ':' || !count.ok() || *count == 0) {
    return Status(Code::invalid, fmt::format("host '{}': expected host:slots with 1 to {} slots", entry, world_size_max));
  }
  host.slots = static_cast<uint32_t>(*count);
  return host;
}

}  // namespace

Result<std::vector<HostSlots>> parse_hosts(std::string_view text) {
  std::vector<HostSlots> hosts;
  for (const auto& word : split_list(text)) {
    auto host = parse_host(word);
    if (!host.ok()) return host.status();
    const auto same =
        std::find_if(hosts.begin(), hosts.end(), [&](const HostSlots& other) { return other.name == host->name; });
    if (same == hosts.end()) hosts.push_back(*std::move(host));
    else same->slots += host->slots;
  }
  return hosts;
}

Result<std::vector<Placement>> place_ranks(uint32_t rank_count, const std::vector<HostSlots>& hosts,
                                           std::string_view this_host) {
  if (hosts.empty()) {
    if (rank_count == 0) return Status(Code::invalid, "how many ranks? Give -n 4, or --hosts a:2,b:2");
    return std::vector<Placement>{{.host = "", .first_rank = 0, .rank_count = rank_count}};
  }
  std::vector<HostSlots> known;  // all names of this host share one entry
  uint64_t slots = 0;
  for (auto host : hosts) {
    slots += host.slots;
    if (host.name == "localhost" || host.name == this_host) host.name.clear();
    const auto same = std::find_if(known.begin(), known.end(), [&](const HostSlots& other) { return other.name == host.name; });
    if (same == known.end()) known.push_back(std::move(host));
    else same->slots += host.slots;
  }
  if (slots > world_size_max)
    return Status(Code::invalid,
                  fmt::format("--hosts: {} slots are more than the {} ranks of one group", slots, world_size_max));
  if (rank_count > slots) {
    return Status(Code::invalid, fmt::format("-n {} does not fit: --hosts has {} slots; write host:slots", rank_count, slots));
  }
  const auto total = rank_count == 0 ? static_cast<uint32_t>(slots) : rank_count;
  std::vector<Placement> placements;
  for (uint32_t next = 0; const auto& host : known) {
    const auto count = std::min(host.slots, total - next);
    if (count == 0) break;
    placements.push_back({.host = host.name, .first_rank = next, .rank_count = count});
    next += count;
  }
  return placements;
}

}  // namespace unisono::cli
