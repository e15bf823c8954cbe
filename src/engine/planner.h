// From a request to a plan: which schedule, how large a slice. The same answer on every rank of a group.
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
  ScheduleKind inner = ScheduleKind::automatic, outer = ScheduleKind::automatic;  // of a hierarchical schedule
  bool fitted = false;                                                            // to uneven links
  bool relayed = false;                                                           // values are passed on
  uint64_t slice_bytes = 256u << 10;
  Codec codec{};                  // plain if the one that was asked for is left out
  std::string_view codec_note{};  // why; static text
  uint64_t key = 0;               // equal keys: equal plans
};

// The facts besides the request that a plan depends on.
struct PlanContext {
  Rank self = 0;
  uint32_t world = 1;
  std::span<const uint32_t> host_groups;
  const Topology& topology;
  const UnevenLinks* uneven = nullptr;  // where the links between hosts differ
};

Result<PlanChoice> choose_plan(const OperationRequest& request, const PlanContext& context);
Result<Plan> make_plan(const OperationRequest& request, const PlanChoice& choice, const PlanContext& context);

}  // namespace unisono
