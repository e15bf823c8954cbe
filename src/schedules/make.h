// The one entry to the schedules: what one rank does in one collective, as data.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "schedules/schedule.h"

namespace unisono {

// Round numbers travel in 16 bits, and a ring all-reduce has 2 * (world - 1) rounds.
inline constexpr uint32_t world_max = 32'768;

struct ScheduleRequest {
  Collective collective = Collective::all_reduce;
  ScheduleKind kind = ScheduleKind::two_step;
  uint32_t world = 1;
  Rank rank = 0;
  Rank root = 0;                                 // of broadcast, reduce, gather, scatter; ignored otherwise
  std::span<const uint32_t> host_groups{};       // host group number per rank; empty: every rank is a host group of its own
  ScheduleKind inner = ScheduleKind::automatic;  // of hierarchical: inside host groups
  ScheduleKind outer = ScheduleKind::automatic;  // of hierarchical: between host groups
  std::span<const Rank> around{};  // all ranks, as an all-reduce, reduce-scatter or all-gather ring goes; empty: by host groups
};

// The schedules of a collective, by preference; empty for send and recv, which need no schedule.
std::span<const ScheduleKind> kinds_of(Collective collective);
// Those that a hierarchical schedule may have inside host groups, and between them.
std::span<const ScheduleKind> inner_kinds();
std::span<const ScheduleKind> outer_kinds();

// Whether Schedule::direct holds; known without making the schedule. For hierarchical (which depends on the host groups):
// false.
bool is_direct(Collective collective, ScheduleKind kind, uint32_t world);

// Chunks: all_reduce, broadcast and reduce cut the tensor into as many as the kind likes. reduce_scatter: chunk c ends at
// rank c. all_gather: chunk c is rank c's block. gather, scatter: likewise, world chunks. all_to_all: chunk s*world+d goes
// from s to d. barrier: one empty chunk, sent all the same. A reduce ends complete at the root only. A world of one has no
// steps. The host groups order rings and trees, and make up hierarchical; other kinds do not look at them.
// The schedules of all ranks fit together only if all fields but `rank` are equal on all ranks.
// Errors: invalid (numbers out of range, kind automatic), unsupported (no such kind for this collective; the message names
// those that exist).
Result<Schedule> make_schedule(const ScheduleRequest& request);

}  // namespace unisono
