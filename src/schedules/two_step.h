// Schedules in two halves: a reduce-scatter and then an all-gather. The all-reduces two_step (direct), ring and
// halving_doubling are this with different halves; so are the broadcasts and reduces for large tensors.
#pragma once

#include "schedules/team.h"

namespace unisono {

// The halves by kind: two_step or direct, ring, halving_doubling. Other kinds are a bug of the caller.
void append_reduce_scatter(ScheduleKind kind, const Team& team, std::vector<Step>& steps);
void append_all_gather(ScheduleKind kind, const Team& team, std::vector<Step>& steps);
// Rounds of one half.
uint32_t half_rounds(ScheduleKind kind, uint32_t size);

// Block p is completed at position p.
void append_two_step(ScheduleKind kind, Team team, std::vector<Step>& steps);
// A reduce-scatter over all, then every owner sends its block to the root (a position).
void append_reduce_in_two_steps(ScheduleKind kind, Team team, uint32_t root, std::vector<Step>& steps);
// order[0] is the root. It deals world-1 chunks out to the others, who all-gather them: each rank receives the tensor once
// and nobody, the root included, sends it more than once. (With a chunk of its own the root would send nearly two.)
void append_broadcast_in_two_steps(ScheduleKind kind, const std::vector<Rank>& order, Rank rank, std::vector<Step>& steps);

}  // namespace unisono
