// Reports events of a group: see include/unisono/event.h.
#pragma once

#include <string>

#include "group/lifecycle/guarded_state.h"
#include "unisono/group.h"

namespace unisono {

// Writes an event into the records of the groups that have `about` as a member, and adds it to the events that the runtime will
// deliver. about self_peer: the event is about no other rank.
void report_event(GuardedState& guarded, EventKind kind, PeerIndex about, const std::string& text);
// Says which process reports the events from now on: this one, with its present rank.
void set_event_source(GuardedState& guarded);
void report_joined(GuardedState& guarded);
// On rank 0, reports that anybody may read the group's data and join it, if that is so and security is automatic: the group has
// no key, and it has members on other hosts, or processes of other hosts can reach its rendezvous.
void report_unprotected(GuardedState& guarded);
void report_reformed(GuardedState& guarded, const Reformed& reformed);

}  // namespace unisono
