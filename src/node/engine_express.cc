// Short sums, all-gathers and broadcasts, and barriers, without the executor: see express.h.
#include <algorithm>
#include <bit>
#include <new>
#include <span>

#include "collectives/request.h"
#include "kernels/dispatch.h"
#include "node/engine_active.h"

namespace unisono {
namespace {

// It crosses the links in one direction only: nothing that could be counted for all of them together.
void record_broadcast(const Express& e, Nanos now) {
  const auto& plan = *e.plan;
  const bool sent = plan.sends > 0;
  std::array<record::Moved, Express::world_max> moved{};
  const uint64_t bytes = e.header.payload_bytes + sizeof(FrameHeader);
  size_t count = 0;
  for (Rank rank = 0; rank < e.group->world(); ++rank) {
    if (rank == e.group->self || (!sent && rank != plan.root)) continue;
    moved[count++] = {.rank = rank, .sent_bytes = sent ? bytes : 0, .sent_messages = sent ? 1u : 0u, .received_bytes = sent ? 0 : bytes, .received_messages = sent ? 0u : 1u};
  }
  const record::Entry entry{.number = e.header.operation, .bytes = e.header.payload_bytes, .started = e.started, .first_send = sent ? e.started : 0, .last_receive = sent ? 0 : now, .ended = now,
                            .kind = {.collective = static_cast<uint8_t>(plan.collective), .dtype = static_cast<uint8_t>(plan.dtype), .reduce_op = static_cast<uint8_t>(plan.op),
                                     .schedule = static_cast<uint8_t>(plan.plan->kind), .root = plan.root},
                            .code = static_cast<uint8_t>(Code::ok), .numbering = static_cast<uint8_t>(record::Numbering::by_order), .reserved = 0, .awaited = sent ? -1 : static_cast<int32_t>(plan.root)};
  e.group->record->begun();
  e.group->record->ended(entry, now - e.started, std::span(moved).first(count));
}

}  // namespace

// The transport that all others of the group are reached by, if one may look ahead there.
Transport* Engine::express_route(const GroupCore& group) {
  if (!group.gave_up.empty()) return nullptr;
  Transport* common = nullptr;
  for (const auto peer : group.members) {
    if (peer == self_peer) continue;
    const auto& p = peers_[peer];
    if (common == nullptr) common = p.route;
    if (p.route != common || !p.lost.ok() || !p.waiting.empty()) return nullptr;
  }
  return common != nullptr && common->looks_ahead() ? common : nullptr;
}

bool Engine::plan_express(GroupCore& group, const OperationRequest& request, ExpressPlan& express) try {
  const bool barrier = request.collective == Collective::barrier, gathers = request.collective == Collective::all_gather, spreads = request.collective == Collective::broadcast;
  const auto bytes = barrier ? 0 : request.count * element_bytes(request.dtype);
  const bool is_short = bytes > 0 && schedule_bytes(request, group.world()) <= Express::bytes_max && request.recv_counts.empty();
  const bool plain = request.codec->is_plain() && request.encode_error == nullptr && request.agreement == 0;
  const bool may_be = barrier || ((request.collective == Collective::all_reduce || gathers || spreads) && is_short);
  if (!may_be || !plain || group.world() < 2 || group.world() > Express::world_max) return false;
  const auto chosen = plan_for(group, request);
  if (!chosen || !is_exchange(request.collective, chosen->plan->kind) || chosen->plan->relayed || bytes > chosen->slice_bytes) return false;
  const auto& plan = *chosen->plan;
  const auto& own = plan.chunks[gathers ? static_cast<size_t>(plan.find(group.self)) : 0];
  const auto descriptor = describe(request, plan.kind, chosen->slice_bytes);
  express = {.collective = request.collective,
             .count = request.count,
             .dtype = request.dtype,
             .op = request.op,
             .order = request.order,
             .schedule = request.schedule,
             .asked_slice_bytes = request.slice_bytes,
             .slice_bytes = chosen->slice_bytes,
             .in_place_blocks = request.in_place_blocks,
             .root = request.root,
             .plan = &plan,
             .header = {.kind = FrameKind::data,
                        .epoch = group.epoch,
                        .group = group.number,
                        .sender = group.self,
                        .round = static_cast<uint16_t>(plan.stages[own.stage_begin].round),
                        .chunk = own.chunk,
                        .amount = descriptor.amount,
                        .descriptor = descriptor.bits,
                        .payload_bytes = static_cast<uint32_t>(bytes)},
             .report = {.operation = name(request.collective), .schedule = name(plan.kind), .world_size = group.world(), .contributors = group.world()}};
  const bool sends = !spreads || request.root == group.self, receives = !spreads || request.root != group.self;
  size_t count = 0;
  for (Rank rank = 0; rank < group.world(); ++rank) {
    if (rank == group.self || (!sends && rank != request.root)) continue;
    express.others[count++] = group.members[rank];
    if (receives) express.awaited |= 1u << rank;
  }
  express.sends = sends ? count : 0;
  express.receives = receives ? count : 0;
  auto& report = express.report;
  report.sent_messages = express.sends;
  report.received_messages = express.receives;
  report.sent_bytes = express.sends * (sizeof(FrameHeader) + bytes);
  report.received_bytes = express.receives * (sizeof(FrameHeader) + bytes);
  report.sent_payload = express.sends * bytes;
  report.sent_elements = bytes == 0 ? 0 : express.sends * request.count;
  return true;
} catch (const std::bad_alloc&) {
  return false;  // the executor meets it again, and knows how to end
}

// One copy for all.
bool Engine::send_express(Express& e, std::span<const PeerIndex> others) {
  const size_t bytes = e.header.payload_bytes;
  const auto* const values = static_cast<const std::byte*>(e.request->input) + (e.request->in_place_blocks ? e.group->self * bytes : 0);
  if (bytes <= Express::short_bytes) return e.route->send_copies(others, e.header, values);
  const auto slot = e.route->acquire(others, bytes, false);
  if (!slot) return false;
  e.filling += compute_.fill(slot.data, values, bytes).cost;
  e.route->commit(slot, e.header);
  return true;
}

bool Engine::begin_express(Express& e, GroupCore& group, OperationRequest& request, uint64_t id, Nanos now) {
  // Whatever else there is to do or to say: the executor's path knows how.
  const bool quiet = id == 0 && request.delivery == Delivery::reliable && active_.empty() && unexpected_.empty() && !gave_up_ && group.ended.ok() && group.violation.ok() && now - polled_ <= news_age_max;
  auto& plan = group.express_plan(request.collective);
  if (!quiet || !(plan.serves(request) || plan_express(group, request, plan))) return false;
  e.route = express_route(group);
  if (e.route == nullptr) return false;
  e.header = plan.header;
  e.header.operation = group.next_operation;
  e.group = &group;
  e.plan = &plan;
  e.request = &request;
  if (plan.sends > 0 && !send_express(e, std::span(plan.others).first(plan.sends))) return false;
  ++group.next_operation;
  now_ = e.started = now;
  e.missing = plan.awaited;
  if (group.record != nullptr && request.collective != Collective::broadcast) {
    const uint64_t tensor = e.header.payload_bytes * (request.collective == Collective::all_gather ? uint64_t{group.world()} : 1);
    group.record->express_begun(e.header.operation, tensor, {.collective = static_cast<uint8_t>(request.collective), .dtype = static_cast<uint8_t>(request.dtype),
                                                  .reduce_op = static_cast<uint8_t>(request.op), .schedule = static_cast<uint8_t>(plan.plan->kind), .root = 0}, now);
  }
  if (request.collective == Collective::all_gather && !request.in_place_blocks) keep_block(e, group.self, request.input);
  return true;
}

Express::Found Engine::look(Express& e) {
  for (uint32_t left = e.missing; left != 0; left &= left - 1) {
    const auto rank = static_cast<Rank>(std::countr_zero(left));
    if (e.header.sender != rank) e.header.sender = rank;  // a word that was just written in part is slow to read
    const auto collective = e.request->collective;
    if (collective == Collective::all_gather) e.header.chunk = rank;
    const std::byte* values = nullptr;
    const auto next = e.route->next(e.group->members[rank], e.header, values);
    if (next == Next::none) continue;
    if (next == Next::other) return Express::Found::something_else;
    if (collective == Collective::all_gather || collective == Collective::broadcast) keep_block(e, rank, values);
    else e.values[rank] = values;
    e.missing &= ~(1u << rank);
    e.last_rank = rank;
  }
  if (e.missing != 0) return Express::Found::nothing_yet;
  add_up(e);
  return Express::Found::all;
}

// The executor may write it once more, if it takes over.
void Engine::keep_block(Express& e, Rank rank, const void* values) {
  const size_t bytes = e.header.payload_bytes;
  auto* const block = static_cast<std::byte*>(e.request->output) + (e.request->collective == Collective::all_gather ? rank * bytes : 0);
  if (block != values) e.adding += compute_.copy_now(block, values, bytes).cost;
}

void Engine::add_up(Express& e) {
  const auto& request = *e.request;
  if (request.collective == Collective::all_reduce) {
    const auto world = e.group->world();
    e.values[e.group->self] = request.input;
    const kernels::Reduction task{.dtype = request.dtype,
                                  .op = request.op,
                                  .sources = std::span(e.values).first(world),
                                  .destination = request.output,
                                  .copy = nullptr,
                                  .count = request.count,
                                  .divisor = request.op == ReduceOp::avg ? world : 1};
    e.adding = compute_.reduce_now(task).cost;
  }
  if (e.plan->receives > 0) e.route->take_next(std::span(e.plan->others).first(e.plan->receives));
  ++counters_.operations_ok;
}

// A copy of what is always the same, and few words written in it: anything else takes longer than the sum of 1 KiB.
Result<Report> Engine::report(const Express& e, Nanos now) const {
  Result<Report> result(e.plan->report);
  const Nanos compute = e.filling + e.adding, total = std::max(now - e.started, compute);
  const bool waited = e.plan->receives > 0;
  if (e.group->record != nullptr && e.request->collective != Collective::broadcast) e.group->record->express_ended(e.last_rank, now);
  else if (e.group->record != nullptr) record_broadcast(e, now);
  auto& report = *result;
  report.number = e.header.operation;
  report.total_us = total / microsecond;
  report.wait_us = waited ? (total - e.adding) / microsecond : 0;
  report.compute_us = compute / microsecond;
  report.last_rank = waited ? static_cast<int32_t>(e.last_rank) : -1;
  return result;
}

std::shared_ptr<Completion> Engine::take_over(Express& e, Nanos now) {
  return guarded([&] {
    return launch(*e.group, std::move(*e.request), {.chosen = {.plan = e.plan->plan, .slice_bytes = e.plan->slice_bytes}, .number = e.header.operation, .is_sent = e.plan->sends > 0}, e.started, now);
  });
}

}  // namespace unisono
