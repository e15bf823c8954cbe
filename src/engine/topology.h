// The speeds of a group's links, by which the library chooses schedules. Rank 0 measures them when the group forms
// (group/lifecycle/agreement). They have the same bits on all ranks.
#pragma once

#include <optional>

#include "base/bytes.h"
#include "schedules/host_links.h"
#include "schedules/tuning.h"

namespace unisono {

inline constexpr uint32_t linked_hosts_max = 64;  // if there are more hosts, links are not measured pair by pair

struct Topology {
  LinkProfile inside;                                      // links between ranks of one host
  LinkProfile between;                                     // links between hosts
  bool inside_measured = false, between_measured = false;  // false: `inside` or `between` holds default values
  HostLinks links{};  // speeds per pair of hosts; hosts have the numbers that they had in the roster during the measurement
  Tuning tuning{};    // the tuning file of rank 0; it takes precedence over predictions from link speeds
  friend bool operator==(const Topology&, const Topology&) = default;
};

// encode() keeps every bit. decode_topology() returns nothing if the bytes are malformed or the speeds are impossible.
Bytes encode(const Topology& topology);
std::optional<Topology> decode_topology(ByteView bytes);

}  // namespace unisono
