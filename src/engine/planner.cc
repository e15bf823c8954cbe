#include "engine/planner.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include "codecs/codec.h"
#include "executor/confirmation.h"
#include "schedules/choose.h"
#include "schedules/collective_facts.h"
#include "schedules/make.h"
#include "wire/frame.h"

namespace unisono {
namespace {

constexpr uint64_t codec_elements_min = 1024;  // with fewer elements than this, encoding always costs more time than it saves

// Returns the plan of a message between two ranks. It has one chunk and one step.
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

// Returns true if all ranks are on one host, or if each rank has its own host. In these cases, sums in rank order need no extra
// bytes on any link.
bool is_flat(std::span<const uint32_t> host_groups) {
  const std::set<uint32_t> hosts(host_groups.begin(), host_groups.end());
  return hosts.size() <= 1 || hosts.size() == host_groups.size();
}

// Returns the order in which the request's values are added. If the order cannot change the result, it is any order. Otherwise
// it is the order that the call asks for. If the call asks for none, it is rank order if this costs nothing, and any order
// otherwise. The cost depends only on the group, and not on the call (docs/design/decisions/0002-order-of-sums.md).
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

// Returns the codec that the request can use. Sets `note` to the reason if it differs from the requested codec.
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
  if (codec.is_plain()) note = "16-bit elements are sent unchanged";
  return codec;
}

// Normalizes a codec: if the schedule lacks a step, the step gets the codec of another step. Codecs that behave equally then
// compare equal.
static Codec codec_of(Codec codec, Collective collective, ScheduleKind kind) {
  const bool reduces = collective == Collective::all_reduce || collective == Collective::reduce_scatter;
  if (!reduces) codec.reduce = codec.gather;
  if (kind != ScheduleKind::hierarchical) codec.across = codec.reduce;
  if (kind == ScheduleKind::one_shot || collective == Collective::reduce_scatter) codec.gather = codec.reduce;
  return codec;
}

// Returns the ratio of encoded to plain bytes. It holds for a large number of elements.
static ChooseRequest::Encoded encoded(const Codec& codec, DType dtype) {
  constexpr size_t many = 1u << 20;
  const auto fraction = [&](const StepCodec& step) {
    return static_cast<double>(wire_codec(step, dtype, dtype, false).message_bytes(many)) /
           static_cast<double>(many * element_bytes(dtype));
  };
  return {.reduce = fraction(codec.reduce), .across = fraction(codec.across), .gather = fraction(codec.gather)};
}

// Returns false if only some ranks know the sizes. The choice must not depend on such sizes, because all ranks must choose
// alike.
static bool sizes_are_known(const OperationRequest& q) {
  return !is_message(q) && q.collective != Collective::gather && q.collective != Collective::scatter &&
         q.collective != Collective::all_to_all;
}

// If the tuning file covers this group, chooses by the file. Otherwise chooses by the speeds of the links. The file and the
// speeds are equal on all ranks.
static Result<Choice> choose_plain(const ChooseRequest& request, const PlanContext& context) {
  const auto* group =
      request.kind == ScheduleKind::automatic ? context.topology.tuning.find(context.host_groups, context.world) : nullptr;
  const auto* tuned = group == nullptr ? nullptr : group->find(request.collective, request.bytes);
  if (tuned == nullptr) return choose(request);
  if (tuned->kind == ScheduleKind::one_shot) {
    auto relayed = choose(request);  // a faster form of one_shot, which `unisono tune` does not measure separately
    if (relayed && relayed->relayed) return relayed;
  }
  auto wish = request;
  wish.kind = tuned->kind;
  if (wish.slice_bytes == 0) wish.slice_bytes = tuned->slice_bytes;
  auto chosen = choose(wish);
  // The tuned schedule may forward partial sums although rank order is required. It cannot be used then, so choose without the
  // file.
  return chosen ? std::move(chosen) : choose(request);
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
    return Status(Code::unsupported, std::string(name(q.collective)) + " supports only the direct schedule");
  }
  if (!choice.codec.is_plain()) choice.codec = codec_of(choice.codec, q.collective, choice.kind);
  // A slice must consist of whole elements and whole cache lines, and must fit into one frame.
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
                                 .ring_order = choice.fitted && choice.kind == ScheduleKind::ring
                                                   ? std::span<const Rank>(context.uneven->ring_order())
                                                   : std::span<const Rank>()});
  if (!schedule) return schedule.status();
  auto plan = compile(*schedule, context.self, context.world);
  if (plan && is_rooted(q.collective)) {
    const bool root_compares_sizes = q.collective == Collective::gather || q.collective == Collective::scatter;
    if (root_compares_sizes) append_confirmation_by_root(*plan, context.self, context.world, q.root);
    else append_confirmation(*plan, context.self, context.world);
  }
  if (!plan || !choice.fitted) return plan;
  plan->fitted = true;
  if (choice.kind == ScheduleKind::two_step) plan->shares = context.uneven->shares();
  return plan;
}

}  // namespace unisono
