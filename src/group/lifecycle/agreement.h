// The last step of forming a group. All members report that they are ready, and then all of them get the same topology and the
// same terms for datagrams.
//
// Rank 0 waits until every member has reported that its links are up. Then it leads the measurements of the links
// (group/lifecycle/link_survey), in which the other members take part, and sends the topology to all members. Therefore all
// ranks have exactly the same topology. A group starts only when all its members are ready. Therefore a member that leaves soon
// after the start does not disturb slower members.
#pragma once

#include "base/bytes.h"
#include "group/lifecycle/runtime.h"
#include "unisono/status.h"

namespace unisono {

// `not_again`: no process has joined since the links were measured. Rank 0 is then always an old member, so it knows the
// topology and sends it without new measurements.
enum class Measuring : uint8_t { always, not_again };

Status agree_on_topology(Runtime& runtime, Nanos deadline, Measuring measuring);

// Handles a control message. Ignores kinds of messages that belong to other state machines.
void on_agreement_message(GuardedState& guarded, PeerIndex from, ByteView message);

// Returns ok if the members can still form the group. Otherwise returns why they cannot: either a link is lost, or a member
// already re-forms the group. The function looks for lost links in rank order, beginning with rank `first` and going on with
// rank 0 after the last rank.
Status group_error(GuardedState& guarded, Rank first = 0);
// Works like group_error(), but ignores lost links.
Status reform_error(GuardedState& guarded);

}  // namespace unisono
