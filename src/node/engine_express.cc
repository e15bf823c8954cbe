// Short sums without the executor: see express.h.
#include <bit>
#include <span>

#include "collectives/request.h"
#include "kernels/dispatch.h"
#include "node/engine_active.h"

namespace unisono {
namespace {

// Both speak of the same part of the same call.
bool alike(const FrameHeader& a, const FrameHeader& b) {
  return a.kind == b.kind && a.codec == b.codec && a.epoch == b.epoch && a.group == b.group && a.operation == b.operation && a.round == b.round &&
         a.chunk == b.chunk && a.slice == b.slice && a.amount == b.amount && a.descriptor == b.descriptor && a.payload_bytes == b.payload_bytes;
}

}  // namespace

// The transport that all others of the group are reached by, if one may look ahead there.
Transport* Engine::express_route(const GroupCore& group) {
  Transport* common = nullptr;
  for (const auto peer : group.members) {
    if (peer == self_peer) continue;
    const auto& p = peers_[peer];
    if (common == nullptr) common = p.route;
    if (p.route != common || !p.route->looks_ahead() || !p.lost.ok() || !p.waiting.empty()) return nullptr;
  }
  return common;
}

// One that all others of the group read.
Slot Engine::express_slot(const GroupCore& group, Transport& route, size_t bytes) {
  std::array<PeerIndex, Express::world_max> others;
  size_t count = 0;
  for (const auto peer : group.members) {
    if (peer != self_peer) others[count++] = peer;
  }
  return route.acquire(std::span(others).first(count), bytes, false);
}

bool Engine::begin_express(Express& e, GroupCore& group, OperationRequest& request, uint64_t id, Nanos now) {
  const auto bytes = request.count * element_bytes(request.dtype);
  if (request.collective != Collective::all_reduce || id != 0 || bytes == 0 || bytes > Express::bytes_max || group.world() < 2 ||
      group.world() > Express::world_max) {
    return false;
  }
  // Whatever else there is to do or to say: the executor's path knows how.
  const bool quiet = active_.empty() && unexpected_.empty() && !gave_up_ && group.ended.ok() && group.violation.ok() && now - polled_ <= news_age_max;
  if (!quiet) return false;
  const auto plan = plan_for(group, request, e.slice_bytes);
  if (!plan || (*plan)->kind != ScheduleKind::one_shot || bytes > e.slice_bytes) return false;
  e.route = express_route(group);
  if (e.route == nullptr) return false;
  const auto slot = express_slot(group, *e.route, bytes);
  if (!slot) return false;
  now_ = e.started = now;
  e.group = &group;
  e.plan = *plan;
  e.request = &request;
  e.number = group.next_operation++;
  const auto descriptor = describe(request, e.plan->kind, e.slice_bytes);
  e.header = {.kind = FrameKind::data,
              .epoch = group.epoch,
              .group = group.number,
              .operation = e.number,
              .sender = group.self,
              .round = static_cast<uint16_t>(e.plan->stages[0].round),
              .chunk = e.plan->chunks[0].chunk,
              .amount = descriptor.amount,
              .descriptor = descriptor.bits,
              .payload_bytes = static_cast<uint32_t>(bytes)};
  e.missing = ((1u << group.world()) - 1) & ~(1u << group.self);
  kernels::copy(slot.data, request.input, bytes);
  e.route->commit(slot, e.header);
  if (group.record != nullptr) {
    group.record->express_begun(e.number, bytes, {.collective = static_cast<uint8_t>(request.collective), .dtype = static_cast<uint8_t>(request.dtype),
                                                  .reduce_op = static_cast<uint8_t>(request.op), .schedule = static_cast<uint8_t>(e.plan->kind), .root = 0}, now);
  }
  return true;
}

Express::Found Engine::look(Express& e) {
  for (uint32_t left = e.missing; left != 0; left &= left - 1) {
    const auto rank = static_cast<Rank>(std::countr_zero(left));
    FrameHeader header;
    if (!e.route->next_frame(e.group->members[rank], header, e.views[rank])) continue;
    if (!alike(header, e.header) || header.sender != rank) return Express::Found::something_else;
    e.missing &= ~(1u << rank);
    e.last_rank = rank;
  }
  if (e.missing != 0) return Express::Found::nothing_yet;
  add_up(e);
  return Express::Found::all;
}

void Engine::add_up(Express& e) {
  auto& group = *e.group;
  auto& request = *e.request;
  std::array<const void*, Express::world_max> sources{};
  for (Rank rank = 0; rank < group.world(); ++rank) {
    if (rank != group.self) e.route->take_next(group.members[rank]);
    sources[rank] = rank == group.self ? request.input : e.views[rank].data;
  }
  kernels::reduce({.dtype = request.dtype,
                   .op = request.op,
                   .sources = std::span(sources).first(group.world()),
                   .destination = request.output,
                   .copy = nullptr,
                   .count = request.count,
                   .divisor = request.op == ReduceOp::avg ? group.world() : 1});
  for (Rank rank = 0; rank < group.world(); ++rank) {
    if (rank != group.self) e.route->release(e.views[rank]);
  }
  ++counters_.operations_ok;
}

Report Engine::report(const Express& e, Nanos now) const {
  const uint64_t others = e.group->world() - 1, bytes = others * (sizeof(FrameHeader) + e.header.payload_bytes);
  if (e.group->record != nullptr) e.group->record->express_ended(e.last_rank, now);
  return {.operation = name(Collective::all_reduce),
          .number = e.number,
          .schedule = name(e.plan->kind),
          .world_size = e.group->world(),
          .contributors = e.group->world(),
          .sent_bytes = bytes,
          .received_bytes = bytes,
          .sent_messages = others,
          .received_messages = others,
          .total_us = (now - e.started) / microsecond,
          .wait_us = (now - e.started) / microsecond,
          .compute_us = 0,
          .transfer_us = 0,
          .last_rank = static_cast<int32_t>(e.last_rank)};
}

std::shared_ptr<Completion> Engine::take_over(Express& e, Nanos now) {
  return guarded([&] { return launch(*e.group, std::move(*e.request), {.plan = e.plan, .slice_bytes = e.slice_bytes, .number = e.number, .is_sent = true}, e.started, now); });
}

}  // namespace unisono
