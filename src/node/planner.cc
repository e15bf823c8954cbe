#include "node/planner.h"

#include <algorithm>
#include <set>
#include <string>

#include "schedules/choose.h"
#include "schedules/make.h"
#include "wire/frame.h"

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

// All ranks on one host, or every rank on a host of its own: there sums in rank order need no more bytes on any link.
bool is_flat(std::span<const uint32_t> islands) {
  const std::set<uint32_t> hosts(islands.begin(), islands.end());
  return hosts.size() <= 1 || hosts.size() == islands.size();
}

// Where the order of additions cannot change a bit, any will do. Else rank order is the default where it costs nothing, which is a
// property of the group, not of the call (docs/decisions/0002-order-of-sums.md).
Order order_of(const OperationRequest& q, const PlanContext& context) {
  const bool reduces = q.collective == Collective::all_reduce || q.collective == Collective::reduce || q.collective == Collective::reduce_scatter;
  if (!reduces || !is_floating(q.dtype)) return Order::any;
  if (q.order != Order::automatic) return q.order;
  return is_flat(context.islands) ? Order::in_rank_order : Order::any;
}

uint64_t key_of(const OperationRequest& q, const PlanChoice& choice) {
  const bool rooted = is_message(q) || q.collective == Collective::broadcast || q.collective == Collective::reduce ||
                      q.collective == Collective::gather || q.collective == Collective::scatter;
  return uint64_t{rooted ? q.root : 0} << 17 | uint64_t{choice.fitted} << 16 | static_cast<uint64_t>(choice.outer) << 12 | static_cast<uint64_t>(choice.inner) << 8 |
         static_cast<uint64_t>(choice.kind) << 4 | static_cast<uint64_t>(q.collective);
}

}  // namespace

Result<PlanChoice> choose_plan(const OperationRequest& q, const PlanContext& context) {
  PlanChoice choice{.kind = ScheduleKind::direct};
  // Sizes that only some ranks know must not decide: every rank has to choose alike.
  const bool sizes_known = !is_message(q) && q.collective != Collective::gather && q.collective != Collective::scatter && q.collective != Collective::all_to_all;
  if (sizes_known) {
    const auto chosen = choose({.collective = q.collective,
                                .bytes = schedule_bytes(q, context.world),
                                .is_16_bit_float = q.dtype == DType::f16 || q.dtype == DType::bf16,
                                .world = context.world,
                                .islands = context.islands,
                                .order = order_of(q, context),
                                .kind = q.schedule,
                                .slice_bytes = q.slice_bytes,
                                .inside = context.topology.inside,
                                .between = context.topology.between,
                                .uneven = context.uneven});
    if (!chosen) return chosen.status();
    choice = {.kind = chosen->kind, .inner = chosen->inner, .outer = chosen->outer, .fitted = chosen->fitted, .slice_bytes = chosen->slice_bytes};
  } else if (q.slice_bytes != 0) {
    choice.slice_bytes = q.slice_bytes;
  }
  if (!sizes_known && q.schedule != ScheduleKind::automatic && q.schedule != ScheduleKind::direct) {
    return Status(Code::unsupported, std::string("only the direct schedule serves ") + name(q.collective));
  }
  // Whole elements and whole cache lines, and within what one frame may carry.
  choice.slice_bytes = std::clamp<uint64_t>(choice.slice_bytes / 64 * 64, 64, payload_bytes_max);
  choice.key = key_of(q, choice);
  return choice;
}

Result<Plan> make_plan(const OperationRequest& q, const PlanChoice& choice, const PlanContext& context) {
  if (is_message(q)) return message_plan(q.collective, q.root);
  auto schedule = make_schedule({.collective = q.collective,
                                 .kind = choice.kind,
                                 .world = context.world,
                                 .rank = context.self,
                                 .root = q.root,
                                 .islands = context.islands,
                                 .inner = choice.inner,
                                 .outer = choice.outer,
                                 .around = choice.fitted && choice.kind == ScheduleKind::ring ? std::span<const Rank>(context.uneven->around()) : std::span<const Rank>()});
  if (!schedule) return schedule.status();
  auto plan = compile(*schedule, context.self, context.world);
  if (!plan || !choice.fitted) return plan;
  plan->fitted = true;
  if (choice.kind == ScheduleKind::two_step) plan->shares = context.uneven->shares();
  return plan;
}

}  // namespace unisono
