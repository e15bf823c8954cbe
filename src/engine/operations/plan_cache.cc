#include "engine/operations/plan_cache.h"

#include <utility>

namespace unisono {

Result<ChosenPlan> PlanCache::choose(const OperationRequest& q, const PlanContext& context) {
  const auto bytes = schedule_bytes(q, context.world);
  for (const auto& c : latest_) {
    if (c.chosen.plan == nullptr || c.collective != q.collective || c.dtype != q.dtype || c.order != q.order ||
        c.schedule != q.schedule || c.root != q.root || c.bytes != bytes || c.slice_bytes != q.slice_bytes || c.op != q.op ||
        c.codec != *q.codec) {
      continue;
    }
    return c.chosen;
  }
  auto choice = choose_plan(q, context);
  if (!choice) return choice.status();
  auto& plan = plans_[choice->key];
  if (plan == nullptr) {
    auto made = make_plan(q, *choice, context);
    if (!made) return made.status();
    plan = std::make_unique<Plan>(std::move(*made));
  }
  const ChosenPlan chosen{
      .plan = plan.get(), .slice_bytes = choice->slice_bytes, .codec = choice->codec, .codec_note = choice->codec_note};
  latest_[at_++ % latest_.size()] = {.collective = q.collective,
                                     .dtype = q.dtype,
                                     .op = q.op,
                                     .order = q.order,
                                     .schedule = q.schedule,
                                     .root = q.root,
                                     .bytes = bytes,
                                     .slice_bytes = q.slice_bytes,
                                     .codec = *q.codec,
                                     .chosen = chosen};
  return chosen;
}

}  // namespace unisono
