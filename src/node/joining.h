// How a node comes into being: transports, rendezvous, links to all members, agreement on what schedules are chosen by.
#pragma once

#include <memory>

#include "node/environment.h"
#include "node/node.h"
#include "unisono/status.h"

namespace unisono {

// First byte of a control message.
enum class ControlKind : uint8_t { reform = 1, topology = 2, ready = 3 };

// Makes transports, meets the others, links up. The node knows its roster and peers; its world group is not made yet.
Result<std::shared_ptr<Node>> join_node(const ResolvedOptions& options);

// Starts links to those members of the roster that this process did not know, and fills in the node's peers.
Status link_up(Node& node, Nanos deadline);
// Blocks until the links to all members are up. On failure: the first link's error.
Status wait_for_links(Node& node, Nanos deadline);

// All tell rank 0 that their links are up; then it tells all what it chooses schedules by, and the others wait for that. Ends with equal
// topologies everywhere, and not before all members are there: who is quick, and leaves again, does not upset those who still come.
Status agree_on_topology(Node& node, Nanos deadline);

}  // namespace unisono
