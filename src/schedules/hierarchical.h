// Hierarchical all-reduce: inside each island, then between the islands, then inside again, so that slow links between
// islands carry 1/(island size) of what a flat schedule makes each rank send over them.
//
// The tensor is cut into units. Inside an island a reduce-scatter leaves each unit, summed over the island, at its owner
// there; the owners of one unit, one per island, all-reduce it among themselves; an all-gather spreads it inside. With
// the inner kinds tree and direct there is one unit and its owner is the island's first rank (the leader): more bytes for
// the leader, fewest messages. Islands may have any sizes, one included.
#pragma once

#include <cstdint>

#include "schedules/host_groups.h"
#include "schedules/schedule.h"

namespace unisono {

struct HierarchicalRequest {
  const Islands& islands;
  Rank rank = 0;
  ScheduleKind inner = ScheduleKind::automatic;  // two_step, ring, halving_doubling, tree, direct
  ScheduleKind outer = ScheduleKind::automatic;  // one_shot, two_step, ring, halving_doubling
};

// What `automatic` stands for. Inside: two_step. Between: one_shot for two islands (the bytes of two_step in half the
// rounds), two_step up to 16 (fewest rounds), beyond that halving_doubling (fewer peers).
ScheduleKind default_inner_kind();
ScheduleKind default_outer_kind(uint32_t island_count);
bool is_inner_kind(ScheduleKind kind);
bool is_outer_kind(ScheduleKind kind);

// Into how many units the tensor is cut: the island size if all are equal (one unit per rank); otherwise a compromise
// between even shares in every island and the number of messages, at most 4 * world / islands.
uint32_t unit_count(const Islands& islands, ScheduleKind inner);

// Whether Schedule::direct will hold: only where no sum of an island travels.
bool hierarchical_is_direct(const Islands& islands, ScheduleKind inner, ScheduleKind outer);

// The kinds must have passed is_inner_kind and is_outer_kind, or be automatic.
Schedule make_hierarchical_all_reduce(const HierarchicalRequest& request);

}  // namespace unisono
