// Schedules that a measurement found to be faster than the cost model's choice. `unisono tune` writes a tuning file. Groups
// read it and choose their schedules from it.
//
// The file has lines; text after # is a comment:
//
//   unisono tuning 1
//   streams 2                             TCP connections per pair of hosts
//   group 2+2 auto                        number of ranks on each host, in the order of ranks; transport
//   all_reduce 65536 one_shot             schedule for calls of up to 65536 bytes, counting the whole tensor
//   all_reduce max two_step slice 1048576
//
// The first line whose number is at least the call's number of bytes decides. Without such a line, or if the schedule cannot
// serve the call, the cost model chooses.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "schedules/schedule.h"
#include "unisono/status.h"

namespace unisono {

inline constexpr size_t tuning_bytes_max = 64u << 10;  // maximum size of a tuning file
inline constexpr uint32_t tuned_streams_max = 16;
// Other collectives cannot be tuned, because not all ranks know their sizes.
inline constexpr std::array tuned_collectives{Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather,
                                              Collective::broadcast, Collective::reduce};

struct TunedCall {
  Collective collective = Collective::all_reduce;
  uint64_t bytes_max = std::numeric_limits<uint64_t>::max();
  ScheduleKind kind = ScheduleKind::automatic;  // automatic: the cost model chooses
  uint64_t slice_bytes = 0;                     // 0: the cost model chooses
  friend bool operator==(const TunedCall&, const TunedCall&) = default;
};

struct TunedGroup {
  std::vector<uint32_t> host_groups{};  // host of each rank; hosts are numbered in the order in which they appear
  std::string transport = "auto";
  std::vector<TunedCall> calls{};  // for each collective, bytes_max is ascending
  const TunedCall* find(Collective collective, uint64_t bytes) const;
  friend bool operator==(const TunedGroup&, const TunedGroup&) = default;
};

struct Tuning {
  uint32_t streams_per_link = 0;  // 0: not tuned
  std::vector<TunedGroup> groups{};

  // Finds the group that has the same placement of ranks on hosts. The numbers of the hosts do not matter. If host_groups is
  // empty, every rank is on a host of its own. Returns null if the tuning has no such group.
  const TunedGroup* find(std::span<const uint32_t> host_groups, uint32_t world) const;
  // Returns a copy that contains only the groups of this transport.
  Tuning of(std::string_view transport) const;
  // Adds the group. If there is a group with the same transport and the same hosts, it is replaced.
  void put(TunedGroup group);
  friend bool operator==(const Tuning&, const Tuning&) = default;
};

// Renumbers the hosts in order of appearance: 0 for the first host, 1 for the next, and so on.
std::vector<uint32_t> renumbered(std::span<const uint32_t> host_groups);
// Returns text such as "2+2". If the ranks of a host are not adjacent, the text gives the host of each rank, such as "0,1,0,1".
std::string placement_text(std::span<const uint32_t> host_groups);

// Fails with Code::invalid; the message contains the invalid line and the reason.
Result<Tuning> parse_tuning(std::string_view text);
// Returns text that parse_tuning() accepts. The lines of `comment` follow the first line.
std::string to_text(const Tuning& tuning, std::string_view comment = {});

}  // namespace unisono
