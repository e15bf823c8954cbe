// Measures one pair of ranks over TCP: the round trip, the difference of the clocks, the bandwidth in both directions, and
// whether long frames pass.
//
// This takes about half a second on a good link, and at most Prober::measure_timeout.
#pragma once

#include "cli/doctor/doctor_facts.h"
#include "cli/doctor/doctor_stream.h"

namespace unisono::cli {

// Sends the key of the rank `other` over the new connection. If another process answers, the outcome becomes `unauthenticated`,
// and the stream is closed.
void greet(Dialled& dialled, const RankFacts& other, Nanos deadline);

Measured measure_pair(uint32_t from, const RankFacts& other, const DialRequest& dial);

}  // namespace unisono::cli
