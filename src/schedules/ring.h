// Ring phases: everyone sends to the next position only. size-1 rounds each, (size-1)/size of the tensor each way: the
// fewest bytes possible, over one link per rank. Patarasu and Yuan, "Bandwidth optimal all-reduce algorithms", 2009.
#pragma once

#include "schedules/team.h"

namespace unisono {

// Block p, complete, ends at position p.
void append_ring_reduce_scatter(const Team& team, std::vector<Step>& steps);
// Block p starts at position p and ends everywhere.
void append_ring_all_gather(const Team& team, std::vector<Step>& steps);

}  // namespace unisono
