// The plans of one group, and what was chosen for its latest requests. Choosing costs microseconds, a small operation less, so
// equal requests find their plan here. Plans live as long as the group; operations point at them.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string_view>

#include "engine/planner.h"
#include "executor/plan.h"
#include "executor/request.h"
#include "unisono/status.h"

namespace unisono {

struct ChosenPlan {
  const Plan* plan = nullptr;  // owned by the cache
  uint64_t slice_bytes = 0;
  Codec codec{};
  std::string_view codec_note{};
};

class PlanCache {
 public:
  // The context must be the same at every call, but for a topology that is set before the first one.
  Result<ChosenPlan> choose(const OperationRequest& request, const PlanContext& context);
  size_t plans() const { return plans_.size(); }

 private:
  struct Entry {
    Collective collective = Collective::all_reduce;
    DType dtype = DType::f32;
    ReduceOp op = ReduceOp::sum;
    Order order = Order::automatic;
    ScheduleKind schedule = ScheduleKind::automatic;
    Rank root = 0;
    uint64_t bytes = 0, slice_bytes = 0;
    Codec codec{};
    ChosenPlan chosen{};
  };
  std::map<uint64_t, std::unique_ptr<Plan>> plans_;  // by PlanChoice::key
  std::array<Entry, 16> latest_{};                   // a ring
  size_t at_ = 0;
};

}  // namespace unisono
