// Measures links when a group forms: one link inside the host of rank 0, and one link between every two hosts.
//
// Rank 0 leads the survey. On each host, the lowest rank measures. A round measures several pairs of hosts at once, and every
// host is in at most one of these pairs. Therefore there are at most as many rounds as hosts. The survey cannot fail: if a link
// does not answer in time, it counts as not measured. If a group has more than 64 hosts, it measures only the link from rank 0
// to one other host.
#pragma once

#include "group/lifecycle/runtime.h"

namespace unisono {

// Called on rank 0. Leads the survey and returns the topology. The survey ends at the deadline at the latest.
Topology survey_links(Runtime& runtime, Nanos deadline);

// Called on the other ranks. Makes the measurements that rank 0 asks for, until finished() returns true. Returns false if the
// deadline passes first. finished() is called under the mutex.
bool serve_survey(Runtime& runtime, const Runtime::Done& finished, Nanos deadline);

// Handles a control message. Ignores kinds of messages that belong to other state machines.
void on_survey_message(GuardedState& guarded, PeerIndex from, ByteView message);

}  // namespace unisono
