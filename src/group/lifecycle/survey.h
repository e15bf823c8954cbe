// The state of a running survey of links in one process (group/lifecycle/link_survey). Guarded by the runtime's mutex.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "group/lifecycle/link_probe.h"
#include "wire/peer_id.h"

namespace unisono {

struct ProbedLink {
  PeerIndex peer = 0;
  uint32_t order = 0;  // the number by which rank 0 knows it
  LinkProbe probe;
};

struct Survey {
  std::optional<ProbedLink> probe;              // the link that this process measures
  uint32_t probes = 0;                          // so far
  uint32_t first_order = 0, orders = 0;         // rank 0: the measurements that it has asked for
  std::map<uint32_t, LinkMeasurement> results;  // rank 0: the measurements that have come back, by order
};

}  // namespace unisono
