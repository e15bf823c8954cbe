// One-shot: every rank sends its whole tensor to every other rank, and adds all tensors. This takes one round, in which a rank
// sends and receives size-1 tensors. It is the fastest schedule for small tensors, for which a round costs more than the bytes.
#pragma once

#include "schedules/team.h"

namespace unisono {

// Block 0 is the whole tensor. Every position completes it, and all of them use the same contributions.
void append_one_shot(const Team& team, std::vector<Step>& steps);

}  // namespace unisono
