// The cost of a schedule: rounds, messages and bytes of its busiest rank, and a time computed from these and the links.
//
// The counts are exact (the tests count them in the schedules themselves); the time is an estimate for comparing schedules
// with each other: a latency-bandwidth model with a price per message and per byte added. docs/design/schedules.md has the
// table.
#pragma once

#include <cstdint>

#include "schedules/host_groups.h"
#include "schedules/schedule.h"

namespace unisono {

// The cost of messages between two ranks, either in one host group or in two. One rank's view; equal on all ranks.
struct LinkProfile {
  double latency_us = 0;    // from a send to the receiver's notice of it
  double bytes_per_us = 1;  // that one rank can send while it receives; if copied_by_cores, while it does nothing else
  double host_bytes_per_us =
      0;  // that all ranks of a host group can send together; 0 = no common limit. Not if copied_by_cores
  double per_message_cpu_us = 0;     // to make and to serve one message
  double per_batch_cpu_us = 0;       // to hand messages of one round to one peer: a system call on TCP, little in shared memory
  double handling_us = 0;            // more for each message that an operation's executor handles than a bare exchange takes
  double reduce_bytes_per_us = 1;    // incoming bytes that one core adds
  double slice_bytes = 256 * 1024;   // the unit of pipelining that suits the link
  double switch_us = 0;              // added to the latency for each rank above one per core: the receiver must be scheduled
  uint32_t cores = 1;                // shared by the ranks of one host group
  uint32_t host_groups_sharing = 1;  // so many host groups share the cores: containers on one machine
  bool copied_by_cores = false;      // the ranks' own cores move the bytes and do nothing else meanwhile: both on one host
  bool shares_payloads = false;      // one copy serves all receivers of a payload, and they add straight from it: shared memory
  friend bool operator==(const LinkProfile&, const LinkProfile&) = default;
};

// Up to so many bytes what goes in one round within a host needs no executor (engine/fast_path/fast_path.h); above them the
// executor's share is lost in the noise.
inline constexpr uint64_t exchange_bytes_max = 256u << 10;
inline constexpr uint32_t exchange_ranks_max = 32;

// Whether the schedule is one round, in which all values go straight from their owner to each rank that needs them.
constexpr bool is_exchange(Collective collective, ScheduleKind kind) {
  const bool sums_or_meets = collective == Collective::all_reduce || collective == Collective::barrier;
  return kind == (sums_or_meets ? ScheduleKind::one_shot : ScheduleKind::direct);
}

struct LinkSpeed {
  double latency_us = 0;    // half a round trip of a few bytes, with the work of sending and receiving them
  double bytes_per_us = 0;  // of large messages one way
  friend bool operator==(const LinkSpeed&, const LinkSpeed&) = default;
};
// The profile with its prices moved so that it predicts this speed for one message from one rank to another. Where the ranks'
// cores do all the work, prices move together; on a network the wire's part moves, and what the cores do costs the same.
LinkProfile measured_profile(const LinkProfile& start, const LinkSpeed& speed);
// The speed that the profile predicts. For a measured profile this is the measured speed.
LinkSpeed speed_of(const LinkProfile& link);

// Nothing that a cost could be computed from is missing.
bool is_usable(const LinkProfile& link);

// Starting points, for use until links are measured: shared memory, TCP over the loopback interface, TCP at 10 Gbit/s.
LinkProfile shared_memory_profile(uint32_t cores);
LinkProfile loopback_tcp_profile(uint32_t cores);
LinkProfile network_tcp_profile(uint32_t cores);

// Counts of the busiest rank. Where sends and receives differ, the larger; bytes are in units of the whole tensor.
struct Traffic {
  double rounds = 0;
  double batches = 0;   // (round, peer) pairs
  double messages = 0;  // of a tensor of one slice per chunk
  double bytes = 0;
  double written = 0;    // bytes sent, those of a payload for several peers in one round only once
  double read = 0;       // bytes received
  double shared = 0;     // of them those of payloads that others get, too
  double reduced = 0;    // bytes added
  double summed = 0;     // bytes of sums made of them: of what arrives in one round for one chunk, one
  double total = 0;      // bytes sent by all ranks together
  double passed_on = 0;  // bytes of a chunk that every round passes on: a slice of it is under way in one round at a time
};
// The traffic of every kind but hierarchical. All zeros for a world of one and for combinations that do not exist.
Traffic traffic(Collective collective, ScheduleKind kind, uint32_t world);
// The traffic of a one-shot all-reduce whose values are passed on (schedules/relay.h).
Traffic relayed_traffic(uint32_t world);

// The traffic divided between the links inside host groups and those between them.
struct Load {
  Traffic inside;
  Traffic between;
  double host_group_bytes_inside = 0;   // sent inside the busiest host group
  double host_group_bytes_between = 0;  // that leave it
  bool side_by_side = false;            // no rank does both: the slower one counts, not the sum
  bool is_exchange = false;
};
// inner and outer: of hierarchical; must be kinds, not automatic.
struct LoadRequest {
  Collective collective = Collective::all_reduce;
  ScheduleKind kind = ScheduleKind::two_step;
  ScheduleKind inner = ScheduleKind::two_step;
  ScheduleKind outer = ScheduleKind::two_step;
  const HostGroups& host_groups;
  uint32_t world = 1;
  bool relayed = false;  // only where all ranks are on one host group, or each on its own
};
Load load(const LoadRequest& request);

// Ranks for each core, at least 1.
double crowd(const LinkProfile& link, uint32_t largest_host_group, uint32_t host_groups);

struct TimeRequest {
  const Load& load;
  const LinkProfile& inside;
  const LinkProfile& between;
  double bytes = 0;  // of the tensor as it travels
  uint32_t largest_host_group = 1;
  uint32_t host_groups = UINT32_MAX;  // in the group: no more of them share cores
  double between_wire_us =
      -1;  // time on the wires between host groups, if something knows better than the profile; else negative
};
double predicted_us(const TimeRequest& request);

}  // namespace unisono
