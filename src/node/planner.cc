#include "node/planner.h"

#include "base/random.h"
#include "schedules/make.h"

namespace unisono {
namespace {

// A message between two ranks: one chunk, one step.
Plan message_plan(Collective direction, Rank other) {
  const bool sends = direction == Collective::send;
  Plan plan;
  plan.kind = ScheduleKind::direct;
  plan.chunk_count = 1;
  plan.direct = true;
  plan.chunks.push_back({.chunk = 0, .stage_begin = 0, .stage_end = 1, .recv_count = sends ? 0u : 1u, .send_count = sends ? 1u : 0u});
  plan.order = {0};
  plan.peers = plan.partners = {other};
  plan.stages.push_back({.round = 0, .send_begin = 0, .send_end = sends ? 1u : 0u, .recv_begin = sends ? 1u : 0u, .recv_end = 1});
  return plan;
}

bool is_message(const OperationRequest& q) { return q.collective == Collective::send || q.collective == Collective::recv; }

}  // namespace

Result<PlanChoice> choose_plan(const OperationRequest& q, Rank, uint32_t world, std::span<const uint32_t>) {
  PlanChoice choice;
  if (q.slice_bytes != 0) choice.slice_bytes = q.slice_bytes;
  choice.kind = ScheduleKind::direct;
  if (!is_message(q)) {
    const auto kinds = kinds_of(q.collective);
    choice.kind = q.schedule != ScheduleKind::automatic ? q.schedule : kinds.front();
    if (q.schedule == ScheduleKind::automatic && q.collective == Collective::all_reduce) {
      choice.kind = schedule_bytes(q, world) <= 8192 ? ScheduleKind::one_shot : ScheduleKind::two_step;
    }
  }
  const uint64_t root = is_message(q) || q.collective == Collective::broadcast || q.collective == Collective::reduce || q.collective == Collective::gather ||
                                q.collective == Collective::scatter ? q.root : 0;
  choice.key = root << 16 | static_cast<uint64_t>(choice.outer) << 12 | static_cast<uint64_t>(choice.inner) << 8 | static_cast<uint64_t>(choice.kind) << 4 | static_cast<uint64_t>(q.collective);
  return choice;
}

Result<Plan> make_plan(const OperationRequest& q, const PlanChoice& choice, Rank self, uint32_t world, std::span<const uint32_t> islands) {
  if (is_message(q)) return message_plan(q.collective, q.root);
  auto schedule = make_schedule({.collective = q.collective, .kind = choice.kind, .world = world, .rank = self, .root = q.root, .islands = islands, .inner = choice.inner, .outer = choice.outer});
  if (!schedule) return schedule.status();
  return compile(*schedule, self, world);
}

}  // namespace unisono
