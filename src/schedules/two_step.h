// Schedules that consist of two halves: a reduce-scatter, then an all-gather. The all-reduces two_step (direct), ring and
// halving_doubling differ only in the halves that they use. Broadcasts and reduces of large tensors use the same halves.
#pragma once

#include "schedules/team.h"

namespace unisono {

// Append one half. `kind` must be two_step, direct, ring or halving_doubling; two_step and direct mean the same.
void append_reduce_scatter(ScheduleKind kind, const Team& team, std::vector<Step>& steps);
void append_all_gather(ScheduleKind kind, const Team& team, std::vector<Step>& steps);
// Returns the number of rounds of one half.
uint32_t half_rounds(ScheduleKind kind, uint32_t size);

// Appends both halves. Block p is completed at position p.
void append_two_step(ScheduleKind kind, Team team, std::vector<Step>& steps);
// Appends a reduce-scatter over all positions. Afterwards, every owner of a block sends it to position `root`.
void append_reduce_in_two_steps(ScheduleKind kind, Team team, uint32_t root, std::vector<Step>& steps);
// The root is order[0]. It sends one of world-1 chunks to each other rank, and these ranks all-gather the chunks. So each rank
// receives the tensor once, and no rank sends more than one tensor. If the root kept a chunk for itself, it would have to send
// nearly two tensors.
void append_broadcast_in_two_steps(ScheduleKind kind, const std::vector<Rank>& order, Rank rank, std::vector<Step>& steps);

}  // namespace unisono
