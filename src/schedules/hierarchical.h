// The hierarchical all-reduce first works inside each host group, then between host groups, and then inside again. Over the
// slow links between host groups, a rank sends only 1/(size of its host group) of the bytes that a flat schedule sends.
//
// The tensor is divided into units. First, a reduce-scatter inside each host group gives the sum of each unit to the owner of
// the unit. Then the owners of a unit, one in each host group, all-reduce it. Last, an all-gather inside each host group
// distributes the results.
//
// If the inner kind (inside host groups) is tree or direct, there is a single unit. Its owner is the first rank of the host
// group, the leader. This takes the fewest messages, but the leader sends more bytes. Host groups may have any size, including
// 1.
#pragma once

#include <cstdint>

#include "schedules/host_groups.h"
#include "schedules/schedule.h"

namespace unisono {

struct HierarchicalRequest {
  const HostGroups& host_groups;
  Rank rank = 0;
  ScheduleKind inner = ScheduleKind::automatic;  // one of inner_kinds(), or automatic
  ScheduleKind outer = ScheduleKind::automatic;  // one of outer_kinds(), or automatic
};

// Return the kinds that `automatic` stands for. Inside a host group, it stands for two_step. Between host groups, it depends on
// their number:
// - 2: one_shot, which sends as many bytes as two_step, in half of the rounds
// - 3 to 16: two_step, which has the fewest rounds
// - more: halving_doubling, which has fewer peers
ScheduleKind default_inner_kind();
ScheduleKind default_outer_kind(uint32_t host_group_count);
bool is_inner_kind(ScheduleKind kind);
bool is_outer_kind(ScheduleKind kind);

// Returns the number of units. If all host groups have the same size, the number is this size, and each rank owns one unit.
// Otherwise the number is a compromise between even shares and few messages. It is at most 4 * world / (number of host groups).
uint32_t unit_count(const HostGroups& host_groups, ScheduleKind inner);

// Returns the value that Schedule::direct will have. It is true only if no message that is added carries a sum.
bool hierarchical_is_direct(const HostGroups& host_groups, ScheduleKind inner, ScheduleKind outer);

// The kinds must satisfy is_inner_kind and is_outer_kind, or be automatic.
Schedule make_hierarchical_all_reduce(const HierarchicalRequest& request);

}  // namespace unisono
