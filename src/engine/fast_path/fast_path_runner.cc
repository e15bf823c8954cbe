#include "engine/fast_path/fast_path_runner.h"

#include <algorithm>
#include <bit>
#include <new>
#include <span>

#include "executor/request.h"
#include "kernels/dispatch.h"

namespace unisono {
namespace {

// The chunk that carries a block from one rank to another, numbered as the schedules do; a whole tensor is one chunk.
uint32_t chunk_of(Collective collective, Rank from, Rank to, uint32_t world) {
  if (collective == Collective::all_to_all) return from * world + to;
  if (gives_blocks(collective)) return to;
  return gets_blocks(collective) ? from : 0;
}

const std::byte* input_for(const FastPath& e, Rank rank) {
  const auto block = gives_blocks(e.request->collective) ? rank : e.request->in_place_blocks ? e.group->self : 0;
  return static_cast<const std::byte*>(e.request->input) + block * size_t{e.header.payload_bytes};
}

// With a root the payload crosses each link in one direction only, so every link has its own entry.
void record_rooted(const FastPath& e, Nanos now) {
  const auto& plan = *e.plan;
  const bool sent = plan.sends > 0;
  std::array<record::Moved, FastPath::world_max> moved{};
  const uint64_t bytes = e.header.payload_bytes + sizeof(FrameHeader);
  const auto count = plan.sends + plan.receives;
  for (size_t i = 0; i < count; ++i) {
    const auto rank = static_cast<Rank>(e.group->rank_of(plan.others[i]));
    moved[i] = {.rank = rank,
                .sent_bytes = sent ? bytes : 0,
                .sent_messages = sent ? 1u : 0u,
                .received_bytes = sent ? 0 : bytes,
                .received_messages = sent ? 0u : 1u};
  }
  const record::Entry entry{.number = e.header.operation,
                            .bytes = plan.tensor_bytes,
                            .started = e.started,
                            .first_send = sent ? e.started : 0,
                            .last_receive = sent ? 0 : now,
                            .ended = now,
                            .kind = {.collective = static_cast<uint8_t>(plan.collective),
                                     .dtype = static_cast<uint8_t>(plan.dtype),
                                     .reduce_op = static_cast<uint8_t>(plan.op),
                                     .schedule = static_cast<uint8_t>(plan.plan->kind),
                                     .root = plan.root},
                            .code = static_cast<uint8_t>(Code::ok),
                            .numbering = static_cast<uint8_t>(record::Numbering::by_order),
                            .reserved = 0,
                            .pending = sent ? -1 : static_cast<int32_t>(e.last_rank)};
  e.group->record->begun();
  e.group->record->ended(entry, now - e.started, std::span(moved).first(count));
}

}  // namespace

// The transport that reaches all other members, if it lets the engine look at the next frame before it is delivered.
Transport* FastPathRunner::route_of(const GroupCore& group) const {
  if (!group.aborted.empty()) return nullptr;
  Transport* common = nullptr;
  for (const auto peer : group.members) {
    if (peer == self_peer) continue;
    const auto& p = peers_[peer];
    if (common == nullptr) common = p.route;
    if (p.route != common || !p.lost.ok() || !p.waiting.empty()) return nullptr;
  }
  return common != nullptr && common->looks_ahead() ? common : nullptr;
}

bool FastPathRunner::plan(GroupCore& group, const OperationRequest& request, const Topology& topology,
                          FastPathPlan& fast_path) try {
  const auto collective = request.collective;
  const bool barrier = collective == Collective::barrier,
             message = collective == Collective::send || collective == Collective::recv;
  const uint64_t bytes = barrier ? 0 : request.count * element_bytes(request.dtype);
  const bool even = request.send_counts.empty() && request.recv_counts.empty();
  const bool is_short = (barrier || bytes > 0) && bytes * (has_blocks(collective) ? group.world() : 1) <= FastPath::bytes_max;
  const bool plain = request.codec->is_plain() && request.encode_error == nullptr && request.agreement == 0;
  if (message || !even || !is_short || !plain || group.world() < 2 || group.world() > FastPath::world_max) return false;
  const auto chosen = group.plans.choose(request, group.plan_context(topology));
  if (!chosen || !is_exchange(collective, chosen->plan->kind) || chosen->plan->relayed || bytes > chosen->slice_bytes)
    return false;
  const auto& plan = *chosen->plan;
  const auto descriptor = describe(request, plan.kind, chosen->slice_bytes, group.world());
  fast_path = {.collective = collective,
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
               .tensor_bytes = barrier ? 0 : tensor_bytes(request, group.world(), group.self),
               .header = {.kind = FrameKind::data,
                          .epoch = group.epoch,
                          .group = group.number,
                          .sender = group.self,
                          .round = static_cast<uint16_t>(plan.stages.front().round),
                          .amount = descriptor.amount != 0 || barrier ? descriptor.amount : request.count,
                          .descriptor = descriptor.bits,
                          .payload_bytes = static_cast<uint32_t>(bytes)},
               .report = {.operation = name(collective),
                          .schedule = name(plan.kind),
                          .world_size = group.world(),
                          .contributors = group.world()}};
  const bool rooted = is_rooted(collective), to_root = collective == Collective::gather || collective == Collective::reduce,
             is_root = request.root == group.self;
  const bool sends = !rooted || to_root != is_root, receives = !rooted || to_root == is_root;
  size_t count = 0;
  for (uint32_t distance = 1; distance < group.world(); ++distance) {
    const Rank rank = (group.self + distance) % group.world();
    if (rooted && !is_root && rank != request.root) continue;
    fast_path.others[count++] = group.members[rank];
    if (receives) fast_path.pending |= 1u << rank;
  }
  fast_path.sends = sends ? count : 0;
  fast_path.receives = receives ? count : 0;
  auto& report = fast_path.report;
  report.sent_messages = fast_path.sends;
  report.received_messages = fast_path.receives;
  report.sent_bytes = fast_path.sends * (sizeof(FrameHeader) + bytes);
  report.received_bytes = fast_path.receives * (sizeof(FrameHeader) + bytes);
  report.sent_payload = fast_path.sends * bytes;
  report.sent_elements = bytes == 0 ? 0 : fast_path.sends * request.count;
  return true;
} catch (const std::bad_alloc&) {
  return false;  // the executor runs out of memory again, and ends the operation
}

bool FastPathRunner::send(FastPath& e, std::span<const PeerIndex> others) {
  if (gives_blocks(e.request->collective)) return send_blocks(e, others);
  const size_t bytes = e.header.payload_bytes;
  const auto* const values = input_for(e, e.group->self);
  e.header.chunk = chunk_of(e.request->collective, e.group->self, e.group->self, e.group->world());
  if (bytes <= FastPath::short_bytes) return e.route->send_copies(others, e.header, values);
  const auto slot = e.route->acquire(others, bytes, false);  // one copy for all
  if (!slot) return false;
  e.filling += compute_.fill(slot.data, values, bytes).cost;
  e.route->commit(slot, e.header);
  return true;
}

// All of them, or none.
bool FastPathRunner::send_blocks(FastPath& e, std::span<const PeerIndex> others) {
  const size_t bytes = e.header.payload_bytes;
  std::array<Slot, FastPath::world_max> slots;
  for (size_t i = 0; i < others.size(); ++i) {
    slots[i] = e.route->acquire(others.subspan(i, 1), bytes, false);
    if (slots[i]) continue;
    for (size_t taken = 0; taken < i; ++taken) e.route->abandon(slots[taken]);
    return false;
  }
  const auto self = e.group->self, world = e.group->world();
  for (size_t i = 0; i < others.size(); ++i) {
    const auto to = static_cast<Rank>((self + 1 + i) % world);
    e.header.chunk = chunk_of(e.request->collective, self, to, world);
    e.filling += compute_.fill(slots[i].data, input_for(e, to), bytes).cost;
    e.route->commit(slots[i], e.header);
  }
  return true;
}

bool FastPathRunner::begin(FastPath& e, GroupCore& group, OperationRequest& request, const Topology& topology, Nanos now) {
  auto& plan = group.fast_path[static_cast<size_t>(request.collective)];
  if (!plan.serves(request) && !FastPathRunner::plan(group, request, topology, plan)) return false;
  e.route = route_of(group);
  if (e.route == nullptr) return false;
  e.header = plan.header;
  e.header.operation = group.numbers.next();
  e.group = &group;
  e.plan = &plan;
  e.request = &request;
  if (plan.sends > 0 && !send(e, std::span(plan.others).first(plan.sends))) return false;
  group.numbers.advance();
  e.started = now;
  e.missing = plan.pending;
  const bool rooted = is_rooted(request.collective);
  if (group.record != nullptr && !rooted) {
    group.record->fast_path_begun(e.header.operation, plan.tensor_bytes,
                                  {.collective = static_cast<uint8_t>(request.collective),
                                   .dtype = static_cast<uint8_t>(request.dtype),
                                   .reduce_op = static_cast<uint8_t>(request.op),
                                   .schedule = static_cast<uint8_t>(plan.plan->kind),
                                   .root = 0},
                                  now);
  }
  if (adds(request.collective)) e.values[group.self] = input_for(e, group.self);
  else if (e.header.payload_bytes > 0 && (!rooted || request.root == group.self))
    keep_block(e, group.self, input_for(e, group.self));
  // From here on the block in the output is the input. The caller's input may overlap the output, so that blocks of others
  // overwrite it before the executor takes over.
  if (request.collective == Collective::gather || (request.collective == Collective::all_gather && !request.in_place_blocks)) {
    if (plan.receives > 0)
      request.input = static_cast<const std::byte*>(request.output) + group.self * size_t{e.header.payload_bytes};
  }
  return true;
}

FastPath::Found FastPathRunner::look(FastPath& e) {
  for (uint32_t left = e.missing; left != 0; left &= left - 1) {
    const auto rank = static_cast<Rank>(std::countr_zero(left));
    const auto collective = e.request->collective;
    if (e.header.sender != rank) {  // a word that was just written in part is slow to read
      e.header.sender = rank;
      e.header.chunk = chunk_of(collective, rank, e.group->self, e.group->world());
    }
    const std::byte* values = nullptr;
    const auto next = e.route->next(e.group->members[rank], e.header, values);
    if (next == Next::none) continue;
    if (next == Next::other) return FastPath::Found::something_else;
    if (adds(collective)) e.values[rank] = values;
    else if (e.header.payload_bytes > 0) keep_block(e, rank, values);
    e.missing &= ~(1u << rank);
    e.last_rank = rank;
  }
  if (e.missing != 0) return FastPath::Found::nothing_yet;
  reduce(e);
  return FastPath::Found::all;
}

// If the executor takes over, it writes the block once more.
void FastPathRunner::keep_block(FastPath& e, Rank rank, const void* values) {
  const size_t bytes = e.header.payload_bytes;
  auto* const block = static_cast<std::byte*>(e.request->output) + (gets_blocks(e.request->collective) ? rank * bytes : 0);
  if (block != values) e.adding += compute_.copy_now(block, values, bytes).cost;
}

void FastPathRunner::reduce(FastPath& e) {
  const auto& request = *e.request;
  if (adds(request.collective) && e.plan->receives > 0) {
    const auto world = e.group->world();
    auto* const output = static_cast<std::byte*>(request.output) +
                         (request.in_place_blocks ? e.group->self * size_t{e.header.payload_bytes} : 0);
    const kernels::Reduction task{.dtype = request.dtype,
                                  .op = request.op,
                                  .sources = std::span(e.values).first(world),
                                  .destination = output,
                                  .copy = nullptr,
                                  .count = request.count,
                                  .divisor = request.op == ReduceOp::avg ? world : 1};
    e.adding = compute_.reduce_now(task).cost;
  }
  if (e.plan->receives > 0) e.route->take_next(std::span(e.plan->others).first(e.plan->receives));
  ++counters_.operations_ok;
}

// Copies the part that never changes and writes a few words into it: anything else takes longer than the sum of 1 KiB.
Result<Report> FastPathRunner::report(const FastPath& e, Nanos now) {
  Result<Report> result(e.plan->report);
  const Nanos compute = e.filling + e.adding, total = std::max(now - e.started, compute);
  const bool waited = e.plan->receives > 0;
  if (e.group->record != nullptr && !is_rooted(e.request->collective)) e.group->record->fast_path_ended(e.last_rank, now);
  else if (e.group->record != nullptr) record_rooted(e, now);
  auto& report = *result;
  report.number = e.header.operation;
  report.total_us = total / microsecond;
  report.wait_us = waited ? (total - e.adding) / microsecond : 0;
  report.compute_us = compute / microsecond;
  report.last_rank = waited ? static_cast<int32_t>(e.last_rank) : -1;
  return result;
}

}  // namespace unisono
