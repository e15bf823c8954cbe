// Which schedule for this tensor, on this group, over these links. One pure function.
//
// Equal inputs give the equal answer on every rank: predictions are compared in whole nanoseconds, and ties go to the kind that
// kinds_of() names first. So the caller must make the inputs equal on all ranks (rank 0's measurements, for example,
// spread when the group is formed), because ranks that choose differently wait for each other's messages in vain.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "schedules/cost.h"
#include "schedules/schedule.h"
#include "schedules/uneven_links.h"

namespace unisono {

struct ChooseRequest {
  Collective collective = Collective::all_reduce;
  // The size of the whole tensor: for reduce_scatter the input, for all_gather and gather the output, for scatter the root's
  // input, for all_to_all the input of one rank.
  uint64_t bytes = 0;
  // 16-bit floats: schedules that pass partial sums on must run on an fp32 copy, twice the bytes, to round only once.
  bool is_16_bit_float = false;
  uint32_t world = 1;
  std::span<const uint32_t> host_groups{};  // host group (host) per rank; empty: every rank is a host group of its own
  // in_rank_order: direct schedules only. automatic counts as any.
  Order order = Order::any;
  ScheduleKind kind = ScheduleKind::automatic;   // the caller's wish wins, if it can be had at all
  ScheduleKind inner = ScheduleKind::automatic;  // likewise, of hierarchical
  ScheduleKind outer = ScheduleKind::automatic;
  uint64_t slice_bytes = 0;             // likewise; 0 = automatic
  LinkProfile inside;                   // between ranks of one host group
  LinkProfile between;                  // between ranks of different host groups
  const UnevenLinks* uneven = nullptr;  // between host groups pair by pair, for these host group numbers, where pairs differ
  // Elements that are encoded on their way: bytes on the wire by bytes of the tensor, by step. Then only schedules take part in
  // which an element is encoded at most once in each step.
  struct Encoded {
    double reduce = 1, across = 1, gather = 1;
    double encode_bytes_per_us = 12'000, decode_bytes_per_us = 20'000;  // of fp32 elements
  };
  std::optional<Encoded> encoded{};
};

struct Candidate {
  ScheduleKind kind = ScheduleKind::automatic;
  ScheduleKind inner = ScheduleKind::automatic;  // of hierarchical: the best of all combinations
  ScheduleKind outer = ScheduleKind::automatic;
  bool fitted = false;   // to uneven links
  bool relayed = false;  // one_shot: values are passed on (schedules/relay.h)
  double predicted_us = 0;
  const char* excluded = nullptr;  // why it does not take part, or null
};

struct Choice {
  ScheduleKind kind = ScheduleKind::automatic;
  ScheduleKind inner = ScheduleKind::automatic;  // of hierarchical
  ScheduleKind outer = ScheduleKind::automatic;
  bool fitted = false;  // to uneven links
  bool relayed = false;
  uint64_t slice_bytes = 0;
  double predicted_us = 0;
  uint32_t candidate_count = 0;
  std::array<Candidate, schedule_count> candidates{};  // all kinds of the collective, in the order of kinds_of()
  std::string reason;                                  // one line for logs
};

// Errors: invalid (no world, host group numbers for another world, a rate that is not positive), unsupported (a wished kind
// that does not exist for the collective or cannot add in rank order; names those that can).
Result<Choice> choose(const ChooseRequest& request);

}  // namespace unisono
