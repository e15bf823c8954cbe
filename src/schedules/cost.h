// The cost of a schedule. It consists of counts for the busiest rank (rounds, messages, bytes), and of a time that is computed
// from the counts and the links.
//
// The counts are exact: tests compare them with the steps of the schedules. The time is an estimate, and serves only to compare
// schedules. Its model has a latency, a bandwidth, a cost for each message, and a cost for each added byte.
// docs/design/schedules.md has the table.
#pragma once

#include <cstdint>

#include "schedules/host_groups.h"
#include "schedules/schedule.h"

namespace unisono {

// The cost of a message between two ranks. There is one profile for ranks of the same host group, and one for ranks of
// different host groups. A profile must be equal on all ranks.
struct LinkProfile {
  double latency_us = 0;  // from the send until the receiver notices the message
  // The rate at which a rank sends while it also receives. If copied_by_cores, the rank does nothing else meanwhile.
  double bytes_per_us = 1;
  double host_bytes_per_us =
      0;  // rate at which the ranks of a host group send together; 0: no common limit; unused if copied_by_cores
  double per_message_cpu_us = 0;  // time to send and receive one message
  // The time to send one peer all messages of one round. On TCP, this is a system call; in shared memory, it is very little.
  double per_batch_cpu_us = 0;
  double handling_us = 0;           // additional cost of a message if an operation's executor handles it
  double reduce_bytes_per_us = 1;   // rate at which one core adds incoming bytes
  double slice_bytes = 256 * 1024;  // slice size that suits the link
  double switch_us = 0;  // Additional latency for each rank above one on a core, because the receiver must first be scheduled.
  uint32_t cores = 1;    // cores that the ranks of one host group share
  uint32_t host_groups_sharing = 1;  // number of host groups, such as containers on one machine, that share the cores
  bool copied_by_cores = false;      // Both ranks are on one host. Their cores copy the bytes, and do nothing else meanwhile.
  // As in shared memory, one copy of a payload serves all of its receivers, and they add straight from this copy.
  bool shares_payloads = false;
  friend bool operator==(const LinkProfile&, const LinkProfile&) = default;
};

// Messages of up to this size bypass the executor if they take one round within a host (engine/fast_path/fast_path.h). For
// larger messages, the executor's cost is negligible.
inline constexpr uint64_t exchange_bytes_max = 256u << 10;
inline constexpr uint32_t exchange_ranks_max = 32;

// Returns whether the schedule has a single round, in which every value goes straight from its owner to the ranks that need it.
constexpr bool is_exchange(Collective collective, ScheduleKind kind) {
  const bool reduces_or_synchronizes = collective == Collective::all_reduce || collective == Collective::barrier;
  return kind == (reduces_or_synchronizes ? ScheduleKind::one_shot : ScheduleKind::direct);
}

struct LinkSpeed {
  double latency_us = 0;    // half of the time of a round trip of a few bytes, including the work to send and receive
  double bytes_per_us = 0;  // rate at which large messages travel in one direction
  friend bool operator==(const LinkSpeed&, const LinkSpeed&) = default;
};
// Returns a profile that predicts `speed` for one message between two ranks. If copied_by_cores, all costs of `start` change by
// the same factor. On a network, only the costs of the wire change.
LinkProfile measured_profile(const LinkProfile& start, const LinkSpeed& speed);
// Returns the speed that the profile predicts. For a result of measured_profile(), this is the measured speed.
LinkSpeed speed_of(const LinkProfile& link);

// Returns whether all numbers of the profile are valid: rates must be positive, and costs must not be negative.
bool is_usable(const LinkProfile& link);

// Profiles that are used until links are measured: for shared memory, TCP over the loopback interface, and TCP at 10 Gbit/s.
LinkProfile shared_memory_profile(uint32_t cores);
LinkProfile loopback_tcp_profile(uint32_t cores);
LinkProfile network_tcp_profile(uint32_t cores);

// Counts for the busiest rank. They count its sends or its receives, whichever are more. Bytes are measured in tensors: 1 means
// as many bytes as the tensor has.
struct Traffic {
  double rounds = 0;
  double batches = 0;   // number of (round, peer) pairs
  double messages = 0;  // number of messages if each chunk is one slice
  double bytes = 0;
  double written = 0;  // bytes sent; a payload that goes to several peers in one round counts once
  double read = 0;     // bytes received
  double shared = 0;   // part of `read`: bytes of payloads that other ranks receive, too
  double reduced = 0;  // bytes that are received and then added
  double summed = 0;   // bytes of the sums; the values that arrive for one chunk in one round make one sum
  double total = 0;    // bytes that all ranks together send
  // Size of the chunk that ranks pass on slice by slice in every round. 0: ranks do not pass slices on.
  double passed_on = 0;
};
// Returns the traffic of any kind except hierarchical. All members are 0 if the world has one rank, or if the collective does
// not have the kind.
Traffic traffic(Collective collective, ScheduleKind kind, uint32_t world);
// Returns the traffic of a one-shot all-reduce in which ranks pass values on (schedules/relay.h).
Traffic relayed_traffic(uint32_t world);

// The traffic of a schedule, divided between links inside host groups and links between host groups.
struct Load {
  Traffic inside;
  Traffic between;
  double host_group_bytes_inside = 0;   // bytes that are sent inside the busiest host group
  double host_group_bytes_between = 0;  // bytes that leave the busiest host group
  // A rank sends on only one kind of links. So the time is the longer one of both parts, not their sum.
  bool side_by_side = false;
  bool is_exchange = false;
};
// `inner` and `outer` are used only by hierarchical, and must not be automatic.
struct LoadRequest {
  Collective collective = Collective::all_reduce;
  ScheduleKind kind = ScheduleKind::two_step;
  ScheduleKind inner = ScheduleKind::two_step;
  ScheduleKind outer = ScheduleKind::two_step;
  const HostGroups& host_groups;
  uint32_t world = 1;
  bool relayed = false;  // requires a single host group, or one rank in each host group
};
Load load(const LoadRequest& request);

// Returns the number of ranks that share a core, which is at least 1.
double ranks_per_core(const LinkProfile& link, uint32_t largest_host_group, uint32_t host_groups);

struct TimeRequest {
  const Load& load;
  const LinkProfile& inside;
  const LinkProfile& between;
  double bytes = 0;  // size of the tensor, or of its fp32 copy if 16-bit floats are widened
  uint32_t largest_host_group = 1;
  uint32_t host_groups = UINT32_MAX;  // number of host groups; LinkProfile::host_groups_sharing is limited to it
  // time on the wires between host groups; if negative, it is unknown and computed from the profile
  double between_wire_us = -1;
};
double predicted_us(const TimeRequest& request);

}  // namespace unisono
