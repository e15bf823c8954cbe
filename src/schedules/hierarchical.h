// Hierarchical all-reduce: inside each host group, then between the host groups, then inside again, so that slow links between
// host groups carry 1/(host group size) of what a flat schedule makes each rank send over them.
//
// The tensor is cut into units. Inside a host group a reduce-scatter leaves each unit, summed over the host group, at its owner
// there; the owners of one unit, one per host group, all-reduce it among themselves; an all-gather spreads it inside. With
// the inner kinds tree and direct there is one unit and its owner is the host group's first rank (the leader): more bytes for
// the leader, fewest messages. Host groups may have any sizes, one included.
#pragma once

#include <cstdint>

#include "schedules/host_groups.h"
#include "schedules/schedule.h"

namespace unisono {

struct HierarchicalRequest {
  const HostGroups& host_groups;
  Rank rank = 0;
  ScheduleKind inner = ScheduleKind::automatic;  // of inner_kinds()
  ScheduleKind outer = ScheduleKind::automatic;  // of outer_kinds()
};

// The kinds that `automatic` stands for. Inside: two_step. Between: one_shot for two host groups (the bytes of two_step in half
// the rounds), two_step up to 16 (fewest rounds), beyond that halving_doubling (fewer peers).
ScheduleKind default_inner_kind();
ScheduleKind default_outer_kind(uint32_t host_group_count);
bool is_inner_kind(ScheduleKind kind);
bool is_outer_kind(ScheduleKind kind);

// Into how many units the tensor is cut: the host group size if all are equal (one unit per rank); otherwise a compromise
// between even shares in every host group and the number of messages, at most 4 * world / host groups.
uint32_t unit_count(const HostGroups& host_groups, ScheduleKind inner);

// Whether Schedule::direct will hold: only where no sum of a host group travels.
bool hierarchical_is_direct(const HostGroups& host_groups, ScheduleKind inner, ScheduleKind outer);

// The kinds must have passed is_inner_kind and is_outer_kind, or be automatic.
Schedule make_hierarchical_all_reduce(const HierarchicalRequest& request);

}  // namespace unisono
