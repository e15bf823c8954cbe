// Ring phases: every position sends only to the next position. A phase takes size-1 rounds, in which a position sends and
// receives (size-1)/size of the tensor. No schedule sends fewer bytes, and each rank uses only one link. See Patarasuk and
// Yuan, "Bandwidth optimal all-reduce algorithms", 2009.
#pragma once

#include "schedules/team.h"

namespace unisono {

// Afterwards, position p has the complete block p.
void append_ring_reduce_scatter(const Team& team, std::vector<Step>& steps);
// Copies block p from position p to all positions.
void append_ring_all_gather(const Team& team, std::vector<Step>& steps);

}  // namespace unisono
