// The links of a group as schedules are chosen by them: measured by rank 0 when the group forms (node/agreement), and equal on
// all ranks to the last bit.
#pragma once

#include <optional>

#include "base/bytes.h"
#include "schedules/cost.h"

namespace unisono {

struct Topology {
  LinkProfile inside;   // between ranks of one host
  LinkProfile between;  // between hosts
  bool inside_measured = false, between_measured = false;  // else they are starting values
  friend bool operator==(const Topology&, const Topology&) = default;
};

// Exact: what is decoded is what was encoded. Nothing if the bytes are no topology, or one with numbers that no link has.
Bytes encode(const Topology& topology);
std::optional<Topology> decode_topology(ByteView bytes);

}  // namespace unisono
