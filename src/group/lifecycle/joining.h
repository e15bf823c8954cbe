// How a process joins: transports, rendezvous, links to all members.
#pragma once

#include <memory>

#include "group/lifecycle/runtime.h"
#include "rendezvous/environment.h"
#include "unisono/status.h"

namespace unisono {

// Makes transports, meets the others, links up. The runtime knows its roster and peers; its world group is not made yet.
Result<std::shared_ptr<Runtime>> join_runtime(const ResolvedOptions& options);

// Starts links to those members of the roster that this process did not know, and sets the membership's peers.
Status link_up(Runtime& runtime, Nanos deadline);
// Blocks until the links to all members are up. On failure: the first link's error.
Status wait_for_links(Runtime& runtime, Nanos deadline);

}  // namespace unisono
