// Schedules that were measured to be faster than the cost model's choice. `unisono tune` writes them, a group reads them and
// chooses by them. Pure.
//
// A file of lines; what follows # is for people:
//
//   unisono tuning 1
//   streams 2                             TCP connections per pair of hosts
//   group 2+2 auto                        ranks of each host, in the order of ranks; transport
//   all_reduce 65536 one_shot             calls of up to so many bytes of the whole tensor
//   all_reduce max two_step slice 1048576
//
// The first line whose number of bytes is at least the call's decides. Where there is none, or the schedule cannot serve the
// call, the cost model chooses.
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

inline constexpr size_t tuning_bytes_max = 64u << 10;  // of a file
inline constexpr uint32_t tuned_streams_max = 16;
// Where sizes are not known to all ranks nothing is chosen by them.
inline constexpr std::array tuned_collectives{Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather,
                                              Collective::broadcast, Collective::reduce};

struct TunedCall {
  Collective collective = Collective::all_reduce;
  uint64_t bytes_max = std::numeric_limits<uint64_t>::max();
  ScheduleKind kind = ScheduleKind::automatic;  // the cost model's
  uint64_t slice_bytes = 0;                     // 0: likewise
  friend bool operator==(const TunedCall&, const TunedCall&) = default;
};

struct TunedGroup {
  std::vector<uint32_t> host_groups{};  // host by rank, numbered as they come
  std::string transport = "auto";
  std::vector<TunedCall> calls{};  // of each collective with rising bytes_max
  const TunedCall* find(Collective collective, uint64_t bytes) const;
  friend bool operator==(const TunedGroup&, const TunedGroup&) = default;
};

struct Tuning {
  uint32_t streams_per_link = 0;  // 0: not tuned
  std::vector<TunedGroup> groups{};

  // Finds the group whose ranks share hosts in the same way; the hosts' numbers do not matter. Empty host_groups: every rank
  // has a host of its own. Null: none.
  const TunedGroup* find(std::span<const uint32_t> host_groups, uint32_t world) const;
  // The tuning with the groups of this transport only.
  Tuning of(std::string_view transport) const;
  // Adds the group, or replaces the one with the same transport and hosts.
  void put(TunedGroup group);
  friend bool operator==(const Tuning&, const Tuning&) = default;
};

// 0 for the first host that occurs, 1 for the next, and so on.
std::vector<uint32_t> numbered_as_they_come(std::span<const uint32_t> host_groups);
// "2+2"; where ranks of a host are not neighbours, hosts by rank: "0,1,0,1".
std::string placement_text(std::span<const uint32_t> host_groups);

// invalid: which line is wrong, and why.
Result<Tuning> parse_tuning(std::string_view text);
// Writes the text that parse_tuning reads. The comment's lines follow the first line.
std::string to_text(const Tuning& tuning, std::string_view comment = {});

}  // namespace unisono
