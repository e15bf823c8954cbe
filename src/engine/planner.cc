#include "engine/planner.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include "codecs/codec.h"
#include "schedules/choose.h"
#include "schedules/collective_facts.h"
#include "schedules/make.h"
#include "wire/frame.h"

namespace unisono {
namespace {

constexpr uint64_t codec_elements_min = 1024;  // below it encoding never pays

// A message between two ranks: one chunk, one step.
Plan message_plan(Collective direction, Rank other) {
  const bool sends = direction == Collective::send;
  Plan plan;
  plan.kind = ScheduleKind::direct;
  plan.chunk_count = 1;
  plan.direct = true;
  plan.chunks.push_back(
      {.chunk = 0, .stage_begin = 0, .stage_end = 1, .recv_count = sends ? 0u : 1u, .send_count = sends ? 1u : 0u});
  plan.order = {0};
  plan.peers = plan.partners = {other};
  plan.stages.push_back(
      {.round = 0, .send_begin = 0, .send_end = sends ? 1u : 0u, .recv_begin = sends ? 1u : 0u, .recv_end = 1});
  return plan;
}

bool is_message(const OperationRequest& q) { return q.collective == Collective::send || q.collective == Collective::recv; }

// All ranks on one host, or every rank on a host of its own: there sums in rank order need no more bytes on any link.
bool is_flat(std::span<const uint32_t> host_groups) {
  const std::set<uint32_t> hosts(host_groups.begin(), host_groups.end());
  return hosts.size() <= 1 || hosts.size() == host_groups.size();
}

// Where the order of additions cannot change a bit, any will do. Else rank order is the default where it costs nothing, which
// is a property of the group, not of the call (docs/design/decisions/0002-order-of-sums.md).
Order order_of(const OperationRequest& q, const PlanContext& context) {
  if (!adds(q.collective) || !is_floating(q.dtype)) return Order::any;
  if (q.order != Order::automatic) return q.order;
  return is_flat(context.host_groups) ? Order::in_rank_order : Order::any;
}

uint64_t key_of(const OperationRequest& q, const PlanChoice& choice) {
  const bool rooted = is_message(q) || is_rooted(q.collective);
  return uint64_t{rooted ? q.root : 0} << 18 | uint64_t{choice.relayed} << 17 | uint64_t{choice.fitted} << 16 |
         static_cast<uint64_t>(choice.outer) << 12 | static_cast<uint64_t>(choice.inner) << 8 |
         static_cast<uint64_t>(choice.kind) << 4 | static_cast<uint64_t>(q.collective);
}

}  // namespace

// The codec that can serve the request, and why it is not the one that was asked for.
static Codec possible_codec(const OperationRequest& q, const PlanContext& context, std::string_view& note) {
  auto codec = *q.codec;
  const bool reduces = q.collective == Collective::all_reduce || q.collective == Collective::reduce_scatter;
  const auto leave_out = [&](std::string_view why) {
    note = why;
    return Codec{};
  };
  if (codec.is_plain()) return {};
  if (context.world == 1) return leave_out("one rank");
  if (q.dtype != DType::f32 && q.dtype != DType::f16 && q.dtype != DType::bf16)
    return leave_out("only f32, f16 and bf16 elements are encoded");
  if (reduces && q.op != ReduceOp::sum && q.op != ReduceOp::avg) return leave_out("only sums and averages are encoded");
  for (auto* step : {&codec.reduce, &codec.across, &codec.gather}) {
    if (facts_of(step->kind).only_f32 && q.dtype != DType::f32) *step = {};
  }
  if (codec.is_plain()) note = "16-bit elements travel as they are";
  return codec;
}

// Steps that a schedule does not have get the codec of one that it has.
static Codec codec_of(Codec codec, Collective collective, ScheduleKind kind) {
  const bool reduces = collective == Collective::all_reduce || collective == Collective::reduce_scatter;
  if (!reduces) codec.reduce = codec.gather;
  if (kind != ScheduleKind::hierarchical) codec.across = codec.reduce;
  if (kind == ScheduleKind::one_shot || collective == Collective::reduce_scatter) codec.gather = codec.reduce;
  return codec;
}

// The ratio of encoded to plain bytes, for many elements.
static ChooseRequest::Encoded encoded(const Codec& codec, DType dtype) {
  constexpr size_t many = 1u << 20;
  const auto fraction = [&](const StepCodec& step) {
    return static_cast<double>(wire_codec(step, dtype, dtype, false).message_bytes(many)) /
           static_cast<double>(many * element_bytes(dtype));
  };
  return {.reduce = fraction(codec.reduce), .across = fraction(codec.across), .gather = fraction(codec.gather)};
}

// Sizes that only some ranks know must not decide: every rank has to choose alike.
static bool sizes_are_known(const OperationRequest& q) {
  return !is_message(q) && q.collective != Collective::gather && q.collective != Collective::scatter &&
         q.collective != Collective::all_to_all;
}

// Chooses by the tuning file if it has this group, else by the rates and latencies of the links. Both are equal on all ranks.
static Result<Choice> choose_plain(const ChooseRequest& request, const PlanContext& context) {
  const auto* group =
      request.kind == ScheduleKind::automatic ? context.topology.tuning.find(context.host_groups, context.world) : nullptr;
  const auto* tuned = group == nullptr ? nullptr : group->find(request.collective, request.bytes);
  if (tuned == nullptr) return choose(request);
  if (tuned->kind == ScheduleKind::one_shot) {
    auto relayed = choose(request);  // which is one_shot made quicker, and not among what was measured
    if (relayed && relayed->relayed) return relayed;
  }
  auto wish = request;
  wish.kind = tuned->kind;
  if (wish.slice_bytes == 0) wish.slice_bytes = tuned->slice_bytes;
  auto chosen = choose(wish);
  return chosen ? std::move(chosen) : choose(request);  // it passes partial sums on where rank order is wanted
}

static Result<Choice> choose_schedule(const OperationRequest& q, const PlanContext& context, Codec& codec,
                                      std::string_view& note) {
  ChooseRequest request{.collective = q.collective,
                        .bytes = schedule_bytes(q, context.world),
                        .is_16_bit_float = q.dtype == DType::f16 || q.dtype == DType::bf16,
                        .world = context.world,
                        .host_groups = context.host_groups,
                        .order = order_of(q, context),
                        .kind = q.schedule,
                        .slice_bytes = q.slice_bytes,
                        .inside = context.topology.inside,
                        .between = context.topology.between,
                        .uneven = context.uneven};
  if (codec.is_plain()) return choose_plain(request, context);
  const bool may_leave_out = q.schedule == ScheduleKind::automatic;
  if (may_leave_out && request.bytes < codec_elements_min * element_bytes(q.dtype)) {
    note = "fewer than 1024 elements";
    codec = {};
    return choose_plain(request, context);
  }
  const auto plain = may_leave_out ? choose_plain(request, context) : Result<Choice>(Choice{});
  if (!plain) return plain;
  request.encoded = encoded(codec, q.dtype);
  auto chosen = choose(request);
  if (!chosen || !may_leave_out || std::llround(chosen->predicted_us * 1000) <= std::llround(plain->predicted_us * 950))
    return chosen;
  note = "plain is predicted to be about as fast";
  codec = {};
  return plain;
}

Result<PlanChoice> choose_plan(const OperationRequest& q, const PlanContext& context) {
  PlanChoice choice{.kind = ScheduleKind::direct};
  choice.codec = possible_codec(q, context, choice.codec_note);
  if (sizes_are_known(q)) {
    const auto chosen = choose_schedule(q, context, choice.codec, choice.codec_note);
    if (!chosen) return chosen.status();
    choice.kind = chosen->kind;
    choice.inner = chosen->inner;
    choice.outer = chosen->outer;
    choice.fitted = chosen->fitted;
    choice.relayed = chosen->relayed;
    choice.slice_bytes = chosen->slice_bytes;
  } else if (q.slice_bytes != 0) {
    choice.slice_bytes = q.slice_bytes;
  }
  if (!sizes_are_known(q) && q.schedule != ScheduleKind::automatic && q.schedule != ScheduleKind::direct) {
    return Status(Code::unsupported, std::string("only the direct schedule serves ") + name(q.collective));
  }
  if (!choice.codec.is_plain()) choice.codec = codec_of(choice.codec, q.collective, choice.kind);
  // Whole elements and whole cache lines, and within what one frame may carry.
  choice.slice_bytes = std::clamp<uint64_t>(choice.slice_bytes / 64 * 64, 64, payload_bytes_max);
  choice.key = key_of(q, choice);
  return choice;
}

Result<Plan> make_plan(const OperationRequest& q, const PlanChoice& choice, const PlanContext& context) {
  if (is_message(q)) return message_plan(q.collective, q.root);
  if (choice.relayed) return relayed_plan(context.self, context.world);
  auto schedule = make_schedule({.collective = q.collective,
                                 .kind = choice.kind,
                                 .world = context.world,
                                 .rank = context.self,
                                 .root = q.root,
                                 .host_groups = context.host_groups,
                                 .inner = choice.inner,
                                 .outer = choice.outer,
                                 .around = choice.fitted && choice.kind == ScheduleKind::ring
                                               ? std::span<const Rank>(context.uneven->around())
                                               : std::span<const Rank>()});
  if (!schedule) return schedule.status();
  auto plan = compile(*schedule, context.self, context.world);
  if (!plan || !choice.fitted) return plan;
  plan->fitted = true;
  if (choice.kind == ScheduleKind::two_step) plan->shares = context.uneven->shares();
  return plan;
}

}  // namespace unisono
