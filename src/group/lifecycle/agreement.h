// The last step of forming a group: all members are there, and all know what schedules are chosen by.
//
// Rank 0 waits until all have said that their links are up, has them measured (group/lifecycle/link_survey), and sends what was
// found to all; the others wait for that, and measure and answer meanwhile. So topologies are equal everywhere to the last bit.
// No group begins before all are there: who is quick, and leaves again, does not upset those who still come.
#pragma once

#include "base/bytes.h"
#include "group/lifecycle/runtime.h"
#include "unisono/status.h"

namespace unisono {

// Where nobody has joined since the links were measured, rank 0 (an old member, perhaps a new rank 0) passes on what it knows.
enum class Measuring : uint8_t { always, not_again };

Status agree_on_topology(Runtime& runtime, Nanos deadline, Measuring measuring);

// Any control message; those that are not about this are left alone. Under the mutex.
void hear_agreement(Runtime& runtime, PeerIndex from, ByteView message);

// Why the members cannot come together as they are: the first one whose link is gone, or that re-forms already. Under the
// mutex. They are looked at from rank `first` on.
Status trouble(Runtime& runtime, Rank first = 0);
// Likewise, but for lost links.
Status own_trouble(Runtime& runtime);

}  // namespace unisono
