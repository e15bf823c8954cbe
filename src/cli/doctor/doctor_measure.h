// Measures one pair of ranks over TCP: round trip and clock, whether long frames pass, bandwidth both ways.
//
// Short and bounded: about half a second where all is well, Prober::measure_patience at the worst.
#pragma once

#include "cli/doctor/doctor_facts.h"
#include "cli/doctor/doctor_stream.h"

namespace unisono::cli {

// Shows the key of the rank that is meant. If another process answers, that makes the outcome `unauthenticated peer`, and the
// stream is closed.
void greet(Dialled& dialled, const RankFacts& other, Nanos deadline);

Measured measure_pair(uint32_t from, const RankFacts& other, const DialRequest& dial);

}  // namespace unisono::cli
