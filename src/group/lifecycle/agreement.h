// The last step of forming a group: all members are there, and all know what schedules are chosen by.
//
// Rank 0 waits until all have said that their links are up, has them measured (group/lifecycle/link_survey), and sends what was
// found to all; the others wait for that, and measure and answer meanwhile. So topologies are equal everywhere to the last bit.
// No group begins before all members are there, so a quick member that leaves again does not disturb the slow ones.
#pragma once

#include "base/bytes.h"
#include "group/lifecycle/runtime.h"
#include "unisono/status.h"

namespace unisono {

// Where nobody has joined since the links were measured, rank 0 (an old member, perhaps a new rank 0) passes on what it knows.
enum class Measuring : uint8_t { always, not_again };

Status agree_on_topology(Runtime& runtime, Nanos deadline, Measuring measuring);

// Takes any control message; those of other kinds are left alone.
void on_agreement_message(GuardedState& guarded, PeerIndex from, ByteView message);

// Why the members cannot come together as they are: the first one whose link is gone, from rank `first` on, or a member that
// re-forms the group already.
Status trouble(GuardedState& guarded, Rank first = 0);
// Likewise, without regard to lost links.
Status own_trouble(GuardedState& guarded);

}  // namespace unisono
