// Chooses the schedule of a call for the given tensor, group and links. choose() is a pure function.
//
// If the inputs are equal on all ranks, the choices are equal, too. Predictions are compared in whole nanoseconds. If two kinds
// are equally fast, the kind that comes first in kinds_of() is chosen.
//
// The caller must make the inputs equal. For example, it can send rank 0's measurements to all ranks when the group is formed.
// If ranks chose different schedules, they would wait for each other's messages forever.
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
  // Bytes of the whole tensor. This is the input of a reduce_scatter, the output of an all_gather or gather, the root's input
  // of a scatter, and the input of one rank of an all_to_all.
  uint64_t bytes = 0;
  // True if the elements are 16-bit floats. A schedule that passes on partial sums then works on an fp32 copy, so that values
  // are rounded only once. The copy has twice the bytes.
  bool is_16_bit_float = false;
  uint32_t world = 1;
  std::span<const uint32_t> host_groups{};  // host group of each rank; if empty, each rank is a host group of its own
  // in_rank_order allows only direct schedules, which add in rank order. automatic is the same as any.
  Order order = Order::any;
  // A requested kind is used if it is possible. `automatic` stands for the fastest kind.
  ScheduleKind kind = ScheduleKind::automatic;
  ScheduleKind inner = ScheduleKind::automatic;  // for hierarchical: the kind that is used inside host groups
  ScheduleKind outer = ScheduleKind::automatic;
  uint64_t slice_bytes = 0;             // requested slice size; 0: automatic
  LinkProfile inside;                   // links between ranks of one host group
  LinkProfile between;                  // links between ranks of different host groups
  const UnevenLinks* uneven = nullptr;  // speed of the links between each pair of host groups; null if all pairs are alike
  // Is set if elements are encoded. Each ratio is (bytes on the wire) / (bytes of the tensor) in one step of the schedule. Such
  // a call uses only schedules that encode an element at most once in each step.
  struct Encoded {
    double reduce = 1, across = 1, gather = 1;
    double encode_bytes_per_us = 12'000, decode_bytes_per_us = 20'000;  // rates are in bytes of fp32 elements
  };
  std::optional<Encoded> encoded{};
};

struct Candidate {
  ScheduleKind kind = ScheduleKind::automatic;
  ScheduleKind inner = ScheduleKind::automatic;  // for hierarchical: the kinds of the fastest combination
  ScheduleKind outer = ScheduleKind::automatic;
  bool fitted = false;   // adapted to uneven links
  bool relayed = false;  // this is a one_shot in which ranks pass values on (schedules/relay.h)
  double predicted_us = 0;
  const char* excluded = nullptr;  // says why the candidate is excluded, or null
};

struct Choice {
  ScheduleKind kind = ScheduleKind::automatic;
  ScheduleKind inner = ScheduleKind::automatic;  // for hierarchical
  ScheduleKind outer = ScheduleKind::automatic;
  bool fitted = false;  // adapted to uneven links
  bool relayed = false;
  uint64_t slice_bytes = 0;
  double predicted_us = 0;
  uint32_t candidate_count = 0;
  std::array<Candidate, schedule_count> candidates{};  // all kinds of the collective, in the order of kinds_of()
  std::string reason;                                  // explains the choice in one line, for logs
};

// Fails with Code::invalid if the world is 0, the number of host group numbers is wrong, or a rate is not positive. Fails with
// Code::unsupported if the collective does not have the requested kind, or if this kind cannot add in rank order. The message
// lists the possible kinds.
Result<Choice> choose(const ChooseRequest& request);

}  // namespace unisono
