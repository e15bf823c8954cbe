// The links of a group as schedules are chosen by them: measured by rank 0 when the group forms (group/lifecycle/agreement),
// and equal on all ranks to the last bit.
#pragma once

#include <optional>

#include "base/bytes.h"
#include "schedules/host_links.h"
#include "schedules/tuning.h"

namespace unisono {

inline constexpr uint32_t linked_hosts_max = 64;  // of more the links are not measured pair by pair

struct Topology {
  LinkProfile inside;                                      // between ranks of one host
  LinkProfile between;                                     // between hosts
  bool inside_measured = false, between_measured = false;  // else they are starting values
  HostLinks links{};  // pair by pair; hosts are numbered as in the roster that they were measured for
  Tuning tuning{};    // what rank 0 has read in a file: chosen before what links predict
  friend bool operator==(const Topology&, const Topology&) = default;
};

// Exact: what is decoded is what was encoded. Nothing if the bytes are no topology, or one with numbers that no link has.
Bytes encode(const Topology& topology);
std::optional<Topology> decode_topology(ByteView bytes);

}  // namespace unisono
