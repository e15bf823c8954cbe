#include "engine/fast_path/fast_path_runner.h"

#include <algorithm>
#include <bit>
#include <new>
#include <span>

#include "executor/block_balance.h"
#include "executor/confirmation.h"
#include "executor/request.h"
#include "kernels/dispatch.h"

namespace unisono {
namespace {

// Returns the number of the chunk that one rank sends to another. It is the same as in the executor's schedules. If the tensor
// has no blocks, it is one chunk.
uint32_t chunk_of(Collective collective, Rank from, Rank to, uint32_t world) {
  if (collective == Collective::all_to_all) return from * world + to;
  if (input_has_blocks(collective)) return to;
  return output_has_blocks(collective) ? from : 0;
}

const std::byte* input_for(const FastPath& e, Rank rank) {
  const auto block = input_has_blocks(e.request->collective) ? rank : e.request->in_place_blocks ? e.group->self : 0;
  return static_cast<const std::byte*>(e.request->input) + block * size_t{e.header.payload_bytes};
}

// Each link gets its own entry in the record, because with a root, each link carries payload in one direction only.
void record_rooted(const FastPath& e, Nanos now) {
  const auto& plan = *e.plan;
  std::array<record::Moved, FastPath::world_max> moved{};
  const uint64_t bytes = e.header.payload_bytes;
  const uint32_t received = plan.answer_comes == FastPathPlan::Answer::second ? 2 : 1;
  for (size_t i = 0; i < plan.other_count; ++i) {
    const auto rank = static_cast<Rank>(e.group->rank_of(plan.others[i]));
    const uint32_t sent = (i < plan.sends + plan.confirms ? 1 : 0) + (plan.answers ? 1 : 0);
    moved[i] = {.rank = rank,
                .sent_bytes = sent * sizeof(FrameHeader) + (i < plan.sends ? bytes : 0),
                .sent_messages = sent,
                .received_bytes = received * sizeof(FrameHeader) + ((plan.sources >> rank & 1) != 0 ? bytes : 0),
                .received_messages = received};
  }
  const record::Entry entry{.number = e.header.operation,
                            .bytes = plan.tensor_bytes,
                            .started = e.started,
                            .first_send = e.started,
                            .last_receive = now,
                            .ended = now,
                            .kind = {.collective = static_cast<uint8_t>(plan.collective),
                                     .dtype = static_cast<uint8_t>(plan.dtype),
                                     .reduce_op = static_cast<uint8_t>(plan.op),
                                     .schedule = static_cast<uint8_t>(plan.plan->kind),
                                     .root = plan.root},
                            .code = static_cast<uint8_t>(Code::ok),
                            .numbering = static_cast<uint8_t>(record::Numbering::by_order),
                            .reserved = 0,
                            .pending = static_cast<int32_t>(e.last_rank)};
  e.group->record->begun();
  e.group->record->ended(entry, now - e.started, std::span(moved).first(plan.other_count));
}

bool compares_blocks(Collective collective) { return collective == Collective::gather || collective == Collective::scatter; }

void add_other(const GroupCore& group, Rank rank, bool receives, FastPathPlan& plan) {
  plan.others[plan.other_count++] = group.members[rank];
  plan.pending |= 1u << rank;
  if (!receives) return;
  ++plan.receives;
  plan.sources |= 1u << rank;
}

// Says which ranks exchange data, and which exchange confirmations only. `first`: this rank sends to `first` only. UINT32_MAX:
// there is no such rank.
void add_all_others(const GroupCore& group, Rank first, FastPathPlan& plan) {
  const bool rooted = is_rooted(plan.collective), is_root = plan.root == group.self;
  const bool to_root = plan.collective == Collective::reduce || plan.collective == Collective::gather;
  const auto add = [&](Rank rank) { add_other(group, rank, !rooted || (to_root ? is_root : rank == plan.root), plan); };
  if (first != UINT32_MAX) add(first);
  for (uint32_t distance = 1; distance < group.world(); ++distance) {
    if (const Rank rank = (group.self + distance) % group.world(); rank != first) add(rank);
  }
}

// For a gather or a scatter: the root exchanges frames with all ranks, and each other rank with the root only.
void fill_others_of_root(const GroupCore& group, FastPathPlan& plan) {
  const bool gather = plan.collective == Collective::gather, answered = has_last_confirmation(group.world());
  const Rank told = first_confirmed(group.world(), plan.root);
  if (group.self == plan.root) {
    add_all_others(group, gather && told != group.self ? told : UINT32_MAX, plan);
    plan.sends = gather ? 0 : plan.other_count;
    plan.confirms = gather && told != group.self ? 1 : 0;
    plan.answers = answered;
    return;
  }
  add_other(group, plan.root, !gather, plan);
  plan.sends = gather ? 1 : 0;
  plan.confirms = 1 - plan.sends;
  const bool answer_is_first = gather && told != group.self;
  if (answered) plan.answer_comes = answer_is_first ? FastPathPlan::Answer::alone : FastPathPlan::Answer::second;
}

void fill_others(const GroupCore& group, FastPathPlan& plan) {
  if (compares_blocks(plan.collective)) return fill_others_of_root(group, plan);
  const bool rooted = is_rooted(plan.collective), is_root = plan.root == group.self;
  add_all_others(group, rooted && !is_root ? plan.root : UINT32_MAX, plan);
  if (!rooted) plan.sends = plan.other_count;
  else if (plan.collective == Collective::reduce) plan.sends = is_root ? 0 : 1;
  else plan.sends = is_root ? plan.other_count : 0;
  if (rooted) plan.confirms = plan.other_count - plan.sends;
}

// Fills in the part of the report that says how much is sent and received.
void fill_traffic(FastPathPlan& plan) {
  const uint64_t bytes = plan.header.payload_bytes;
  auto& report = plan.report;
  report.sent_messages = plan.sends + plan.confirms + (plan.answers ? plan.other_count : 0);
  report.received_messages = plan.other_count + (plan.answer_comes == FastPathPlan::Answer::second ? 1 : 0);
  report.sent_bytes = report.sent_messages * sizeof(FrameHeader) + plan.sends * bytes;
  report.received_bytes = report.received_messages * sizeof(FrameHeader) + plan.receives * bytes;
  report.sent_payload = plan.sends * bytes;
  report.sent_elements = bytes == 0 ? 0 : plan.sends * plan.count;
}

// Fills in the amounts of an all-to-all whose blocks all have one size.
void fill_amounts(const GroupCore& group, FastPathPlan& plan) {
  if (plan.collective != Collective::all_to_all) return;
  for (Rank rank = 0; rank < group.world(); ++rank)
    plan.amounts[rank] = even_share(even_weight(rank, group.world()), plan.count) << amount_bits | plan.count;
  plan.header.amount = plan.amounts[group.self];
}

// Sends a frame without payload. It needs no credit.
void send_header(Transport& route, std::span<const PeerIndex> to, const FrameHeader& header) {
  route.send_copies(to, header, reinterpret_cast<const std::byte*>(&header));
}

// Returns the header of a frame without payload.
FrameHeader without_payload(const FrameHeader& data, uint32_t round, uint32_t chunk) {
  auto header = data;
  header.round = static_cast<uint16_t>(round);
  header.chunk = chunk;
  header.payload_bytes = 0;
  return header;
}

}  // namespace

// Returns the transport that links this rank to all other members. Returns null if they have different transports, or if the
// transport cannot show the next frame before it delivers it.
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
                          .sender = frame_sender(group.self),
                          .round = static_cast<uint16_t>(plan.stages.front().round),
                          .amount = sizes_per_pair(collective) ? request.count : descriptor.amount,
                          .descriptor = descriptor.bits,
                          .payload_bytes = static_cast<uint32_t>(bytes)},
               .report = {.operation = name(collective),
                          .schedule = name(plan.kind),
                          .world_size = group.world(),
                          .contributors = group.world()}};
  fast_path.confirmation = without_payload(fast_path.header, 0, plan.chunk_count);
  fast_path.answer = without_payload(fast_path.header, last_confirmation_round, plan.chunk_count + 1);
  fill_others(group, fast_path);
  fill_amounts(group, fast_path);
  fill_traffic(fast_path);
  return true;
} catch (const std::bad_alloc&) {
  return false;  // the executor will fail for the same reason, and will end the operation
}

bool FastPathRunner::send(FastPath& e, std::span<const PeerIndex> others) {
  if (input_has_blocks(e.request->collective)) return send_blocks(e, others);
  const size_t bytes = e.header.payload_bytes;
  const auto* const values = input_for(e, e.group->self);
  e.header.chunk = chunk_of(e.request->collective, e.group->self, e.group->self, e.group->world());
  if (bytes <= FastPath::short_bytes) return e.route->send_copies(others, e.header, values);
  const auto slot = e.route->acquire(others, bytes, false);  // one copy, which all others read
  if (!slot) return false;
  e.filling += compute_.fill(slot.data, values, bytes).cost;
  e.route->commit(slot, e.header);
  return true;
}

// Sends all blocks. If there is not enough credit for all of them, sends none.
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
  if (!plan.matches(request) && !FastPathRunner::plan(group, request, topology, plan)) return false;
  e.route = route_of(group);
  if (e.route == nullptr) return false;
  e.header = plan.header;
  e.header.operation = group.numbers.next();
  e.group = &group;
  e.plan = &plan;
  e.request = &request;
  if (plan.sends > 0 && !send(e, std::span(plan.others).first(plan.sends))) return false;
  if (is_rooted(request.collective)) confirm(e);
  e.first_taken = false;
  e.awaits_answer = plan.answer_comes == FastPathPlan::Answer::alone;
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
  // From here on, the block in the output serves as the input. The caller's input may overlap the output. Blocks of other ranks
  // may then overwrite it before the executor takes over.
  const bool keeps_block = request.collective == Collective::all_gather || request.collective == Collective::gather;
  if (keeps_block && request.output != nullptr && !request.in_place_blocks)
    request.input = static_cast<const std::byte*>(request.output) + group.self * size_t{e.header.payload_bytes};
  return true;
}

// Sets the headers of the frames without payload, and sends the confirmations.
void FastPathRunner::confirm(FastPath& e) {
  const auto& plan = *e.plan;
  e.confirmation = plan.confirmation;
  e.confirmation.operation = e.header.operation;
  if (plan.confirms > 0) send_header(*e.route, std::span(plan.others).subspan(plan.sends, plan.confirms), e.confirmation);
  if (!plan.answers && plan.answer_comes == FastPathPlan::Answer::none) return;
  e.answer = plan.answer;
  e.answer.operation = e.header.operation;
  if (!plan.answers) e.answer.sender = frame_sender(plan.root);
}

// Returns the header of the frame that `rank` must send next.
const FrameHeader& FastPathRunner::expected(FastPath& e, Rank rank) {
  if (e.awaits_answer) return e.answer;
  if ((e.plan->sources >> rank & 1) == 0) {
    e.confirmation.sender = frame_sender(rank);
    return e.confirmation;
  }
  // Write only if the value differs: it is slow to read a word right after a part of it was written.
  if (e.header.sender != rank) {
    e.header.sender = frame_sender(rank);
    e.header.chunk = chunk_of(e.request->collective, rank, e.group->self, e.group->world());
    if (e.plan->collective == Collective::all_to_all) e.header.amount = e.plan->amounts[rank];
  }
  return e.header;
}

FastPath::Found FastPathRunner::look(FastPath& e) {
  for (uint32_t left = e.missing; left != 0; left &= left - 1) {
    const auto rank = static_cast<Rank>(std::countr_zero(left));
    const auto& header = expected(e, rank);
    const std::byte* values = nullptr;
    const auto next = e.route->next(e.group->members[rank], header, values);
    if (next == Next::none) continue;
    if (next == Next::other) return FastPath::Found::unexpected_frame;
    if (header.payload_bytes > 0 && adds(e.request->collective)) e.values[rank] = values;
    else if (header.payload_bytes > 0) keep_block(e, rank, values);
    e.missing &= ~(1u << rank);
    e.last_rank = rank;
  }
  if (e.missing != 0) return FastPath::Found::incomplete;
  if (look_for_answer_next(e)) return look(e);
  finish(e);
  return FastPath::Found::all;
}

// If the root's answer is its second frame, takes the first one, because a transport shows only the next frame. Returns true if
// the answer is still to come.
bool FastPathRunner::look_for_answer_next(FastPath& e) {
  if (e.plan->answer_comes != FastPathPlan::Answer::second || e.first_taken) return false;
  e.route->take_next(std::span(e.plan->others).first(1));
  e.missing = e.plan->pending;
  return e.first_taken = e.awaits_answer = true;
}

std::optional<TakenFrame> FastPathRunner::taken_frame(const FastPath& e) {
  if (!e.first_taken) return std::nullopt;
  if (e.plan->sources == 0) return TakenFrame{.header = e.confirmation};
  return TakenFrame{.header = e.header, .payload = static_cast<const std::byte*>(e.request->output)};
}

// Copies a block into the output. If the executor takes over, it copies the block again.
void FastPathRunner::keep_block(FastPath& e, Rank rank, const void* values) {
  const size_t bytes = e.header.payload_bytes;
  auto* const block =
      static_cast<std::byte*>(e.request->output) + (output_has_blocks(e.request->collective) ? rank * bytes : 0);
  if (block != values) e.adding += compute_.copy_now(block, values, bytes).cost;
}

// Adds the values, and gives the frames back to the transport.
void FastPathRunner::finish(FastPath& e) {
  const auto& request = *e.request;
  if (e.plan->answers) send_header(*e.route, std::span(e.plan->others).first(e.plan->other_count), e.answer);
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
  e.route->take_next(std::span(e.plan->others).first(e.plan->other_count));
  ++counters_.operations_ok;
}

// Copies the constant part of the report, and sets a few fields. It would take longer to build the report anew than to add 1
// KiB.
Result<Report> FastPathRunner::report(const FastPath& e, Nanos now) {
  Result<Report> result(e.plan->report);
  const Nanos compute = e.filling + e.adding, total = std::max(now - e.started, compute);
  if (e.group->record != nullptr && !is_rooted(e.request->collective)) e.group->record->fast_path_ended(e.last_rank, now);
  else if (e.group->record != nullptr) record_rooted(e, now);
  auto& report = *result;
  report.number = e.header.operation;
  report.total_us = total / microsecond;
  report.wait_us = (total - e.adding) / microsecond;
  report.compute_us = compute / microsecond;
  report.last_rank = static_cast<int32_t>(e.last_rank);
  return result;
}

}  // namespace unisono
