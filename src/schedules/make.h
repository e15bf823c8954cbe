// The entry point of the schedules. It returns, as data, what one rank does in one collective.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "schedules/schedule.h"
#include "wire/frame.h"

namespace unisono {

// Frames store the round in 16 bits, and a ring all-reduce has 2 * (world - 1) rounds.
inline constexpr uint32_t world_max = 32'768;
static_assert(world_max <= frame_ranks_max);

struct ScheduleRequest {
  Collective collective = Collective::all_reduce;
  ScheduleKind kind = ScheduleKind::two_step;
  uint32_t world = 1;
  Rank rank = 0;
  Rank root = 0;                            // used by broadcast, reduce, gather and scatter; ignored by other collectives
  std::span<const uint32_t> host_groups{};  // host group number of each rank; if empty, each rank is a host group of its own
  ScheduleKind inner = ScheduleKind::automatic;  // for hierarchical: the kind inside host groups
  ScheduleKind outer = ScheduleKind::automatic;  // for hierarchical: the kind between host groups
  // Order of all ranks in a ring (all_reduce, reduce_scatter, all_gather). If empty, they are ordered by host group.
  std::span<const Rank> ring_order{};
};

// Returns the schedule kinds of a collective in order of preference. The result is empty for send and recv, which need no
// schedule.
std::span<const ScheduleKind> kinds_of(Collective collective);
// Return the kinds that a hierarchical schedule can use inside and between host groups.
std::span<const ScheduleKind> inner_kinds();
std::span<const ScheduleKind> outer_kinds();

// Returns the value that Schedule::direct would have, without making the schedule. For hierarchical, this value depends on the
// host groups, and the function returns false.
bool is_direct(Collective collective, ScheduleKind kind, uint32_t world);

// Returns the schedule of one rank. All fields except `rank` must be equal on all ranks. A world of one has no steps. Host
// groups matter to rings, double trees and hierarchical only.
//
// The chunks are:
// - all_reduce, broadcast, reduce: as many parts of the tensor as the kind needs; after a reduce, only the root has complete
//   chunks
// - reduce_scatter: chunk c ends at rank c
// - all_gather, gather, scatter: chunk c is the block of rank c
// - all_to_all: chunk s*world+d goes from s to d
// - barrier: one empty chunk, which is sent all the same
//
// Fails with Code::invalid if a number is out of range or the kind is automatic. Fails with Code::unsupported if the collective
// does not have the kind; the message lists the possible kinds.
Result<Schedule> make_schedule(const ScheduleRequest& request);

}  // namespace unisono
