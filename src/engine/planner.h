// Chooses the schedule and the slice size for a request, and makes its plan. All ranks of a group get the same result.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "engine/topology.h"
#include "executor/plan.h"
#include "executor/request.h"
#include "schedules/uneven_links.h"
#include "unisono/status.h"

namespace unisono {

struct PlanChoice {
  ScheduleKind kind = ScheduleKind::two_step;
  // The two schedules of which a hierarchical schedule consists: `inner` inside host groups, and `outer` between them.
  ScheduleKind inner = ScheduleKind::automatic, outer = ScheduleKind::automatic;
  bool fitted = false;   // true: the schedule is adapted to links of different speeds
  bool relayed = false;  // true: ranks forward the values of other ranks
  uint64_t slice_bytes = 256u << 10;
  Codec codec{};                  // plain if the requested codec is not used
  std::string_view codec_note{};  // says why the requested codec is not used; static text
  uint64_t key = 0;               // two plans with the same key are equal
};

// The data that the planner needs in addition to the request.
struct PlanContext {
  Rank self = 0;
  uint32_t world = 1;
  std::span<const uint32_t> host_groups;
  const Topology& topology;
  const UnevenLinks* uneven = nullptr;  // null if all links between hosts are equally fast
};

Result<PlanChoice> choose_plan(const OperationRequest& request, const PlanContext& context);
Result<Plan> make_plan(const OperationRequest& request, const PlanChoice& choice, const PlanContext& context);

}  // namespace unisono
