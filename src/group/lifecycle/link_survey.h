// Measures the links of a group that forms: one inside rank 0's host, and one between every two hosts.
//
// Rank 0 leads; the lowest rank of each host stands for it. Pairs of hosts that have none in common are measured side by side,
// as in a tournament, so all takes as many rounds as there are hosts, or one less. It cannot fail: a link that does not answer
// in time stays unmeasured. Groups of more than 64 hosts measure the link from rank 0 to one other host only.
#pragma once

#include <functional>

#include "group/lifecycle/runtime.h"

namespace unisono {

// Rank 0. Until the deadline at the latest.
Topology survey_links(Runtime& runtime, Nanos deadline);

// The others: measure what rank 0 asks for, until over() holds, which is called under the mutex. False if the deadline passed
// first.
bool serve_survey(Runtime& runtime, const std::function<bool()>& over, Nanos deadline);

// Any control message; those that are not about this are left alone. Under the mutex.
void hear_survey(Runtime& runtime, PeerIndex from, ByteView message);

}  // namespace unisono
