// How a process joins a group: it makes its transports, meets the other processes at the rendezvous, and connects to all
// members.
#pragma once

#include <memory>

#include "group/lifecycle/runtime.h"
#include "rendezvous/environment.h"
#include "unisono/status.h"

namespace unisono {

// Makes the transports, meets the other processes at the rendezvous, and connects the links. The runtime that is returned knows
// its roster and its peers. The caller must still make the world group.
Result<std::shared_ptr<Runtime>> join_runtime(const ResolvedOptions& options);

enum class LinkPurpose : uint8_t {
  first,
  anew,  // a link to this process is lost; if it refuses where it has answered before, it is gone
};
// Starts a link to the member with this rank of the roster. It must be up at `deadline`. The member with the lower rank dials.
// Members that join a running group have the highest ranks, so the members that were there before dial them.
Status start_link(GuardedState& guarded, Rank rank, PeerIndex peer, Nanos deadline, LinkPurpose purpose);

// Starts links to those members of the roster that are new to this process. Afterwards the membership's peers are the members
// of the new roster.
Status link_up(Runtime& runtime, Nanos deadline);
// Blocks until the links to all members are up. If a link fails, returns the error of the first one.
Status wait_for_links(Runtime& runtime, Nanos deadline);

}  // namespace unisono
