// One-shot: everyone sends its whole tensor to everyone, and everyone adds. One round, size-1 tensors each way: the
// quickest for small tensors, where the round costs more than the bytes.
#pragma once

#include "schedules/team.h"

namespace unisono {

// Block 0 is the whole tensor. Every position completes it itself, from the same size contributions.
void append_one_shot(const Team& team, std::vector<Step>& steps);

}  // namespace unisono
