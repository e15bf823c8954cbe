// Keeps the plans of one group, and the choices for its latest requests. If a request equals a recent one, the choice is used
// again: choosing takes microseconds, which is longer than a small operation. Plans live as long as the group, because
// operations point to them.
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
  const Plan* plan = nullptr;  // the cache owns it
  uint64_t slice_bytes = 0;
  Codec codec{};
  std::string_view codec_note{};
};

class PlanCache {
 public:
  // Pass the same context in every call. Only its topology may change, and only before the first call.
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
  std::map<uint64_t, std::unique_ptr<Plan>> plans_;  // the key is PlanChoice::key
  std::array<Entry, 16> latest_{};                   // a ring with the latest choices
  size_t at_ = 0;
};

}  // namespace unisono
