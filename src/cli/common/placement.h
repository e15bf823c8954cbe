// Which ranks run on which host.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "unisono/status.h"

namespace unisono::cli {

inline constexpr uint32_t world_size_max = 4096;  // what one rendezvous takes

struct HostSlots {
  std::string name;  // as ssh takes it: "b", "user@b", "10.0.0.2", "fe80::1"
  uint32_t slots = 1;
};

struct Placement {
  std::string host;  // empty: this host, without ssh
  uint32_t first_rank = 0;
  uint32_t rank_count = 0;
};

// "a:2,user@b:4,[fe80::1]:2,c"; a host without a number has one slot; a host named twice has the sum.
Result<std::vector<HostSlots>> parse_hosts(std::string_view text);

// Fills the hosts in the order given. rank_count 0 means all slots (without hosts: an error). Without hosts everything runs
// here; "localhost" and this_host run here too.
Result<std::vector<Placement>> place(uint32_t rank_count, const std::vector<HostSlots>& hosts, std::string_view this_host);

}  // namespace unisono::cli
