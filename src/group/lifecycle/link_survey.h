// Measures the links of a group that forms: one inside rank 0's host, and one between every two hosts.
//
// Rank 0 leads; the lowest rank of each host stands for it. Pairs of hosts that have none in common are measured side by side,
// as in a tournament, so all takes as many rounds as there are hosts, or one less. It cannot fail: a link that does not answer
// in time stays unmeasured. Groups of more than 64 hosts measure the link from rank 0 to one other host only.
#pragma once

#include "group/lifecycle/runtime.h"

namespace unisono {

// Rank 0 leads the survey; it ends at the deadline at the latest.
Topology survey_links(Runtime& runtime, Nanos deadline);

// The other ranks measure what rank 0 asks for until over() holds, which is called under the mutex. False if the deadline
// passed first.
bool serve_survey(Runtime& runtime, const Runtime::Done& over, Nanos deadline);

// Takes any control message; those of other kinds are left alone.
void on_survey_message(GuardedState& guarded, PeerIndex from, ByteView message);

}  // namespace unisono
