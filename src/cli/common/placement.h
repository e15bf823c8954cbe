// Decides which ranks run on which host.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "unisono/status.h"

namespace unisono::cli {

inline constexpr uint32_t world_size_max = 4096;  // the largest number of ranks for one rendezvous

struct HostSlots {
  std::string name;  // the name in the form that ssh accepts: "b", "user@b", "10.0.0.2", "fe80::1"
  uint32_t slots = 1;
};

struct Placement {
  std::string host;  // empty: this host, where ranks are started without ssh
  uint32_t first_rank = 0;
  uint32_t rank_count = 0;
};

// Parses a list such as "a:2,user@b:4,[fe80::1]:2,c". A host without a number has one slot (place for a rank). If a host is
// listed twice, its slots are added up.
Result<std::vector<HostSlots>> parse_hosts(std::string_view text);

// Fills the hosts with ranks in the given order. If there are no hosts, all ranks run on this host. The names "localhost" and
// `this_host` also mean this host. If rank_count is 0, all slots are filled; this is an error if there are no hosts.
Result<std::vector<Placement>> place_ranks(uint32_t rank_count, const std::vector<HostSlots>& hosts,
                                           std::string_view this_host);

}  // namespace unisono::cli
