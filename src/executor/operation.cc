// The executor: how lanes advance, and how messages are sent and combined.
#include "executor/operation.h"

#include <algorithm>
#include <new>
#include <utility>

namespace unisono {
namespace {

bool is_in_last_stage(const Plan& plan, const OperationLane& lane) {
  return lane.stage + 1 == plan.chunks[lane.chunk].stage_end;
}

// Returns true if the lane only sends in this stage, to one rank, and then only waits for a message of that rank. That message
// mostly confirms what was sent. So the lane waits for it in the next stage, which overwrites nothing before it has come.
bool is_answered(const Plan& plan, const OperationLane& lane) {
  const auto& stage = plan.stages[lane.stage];
  if (plan.relayed || stage.recv_begin != stage.recv_end || is_in_last_stage(plan, lane)) return false;
  const auto to = plan.sends(stage), from = plan.receives(plan.stages[lane.stage + 1]);
  return to.size() == 1 && from.size() == 1 && to[0] == from[0];
}

}  // namespace

const std::byte* Operation::value(const Lane& lane) const {
  const auto& memory = chunk_memory_[lane.chunk];
  const std::byte* base = lane.has_output ? memory.output : memory.input;
  return base == nullptr ? nullptr : base + lane_offset(lane);
}

std::byte* Operation::output(const Lane& lane) const {
  const auto& memory = chunk_memory_[lane.chunk];
  return memory.output == nullptr ? nullptr : memory.output + lane_offset(lane);
}

void Operation::make_ready(uint32_t lane) {
  if (lanes_[lane].ready || lanes_[lane].finished) return;
  lanes_[lane].ready = true;
  ready_.push_back(lane);
}

// Advances all lanes that can advance. Events put runnable lanes on ready_; only the outermost call takes lanes from it.
void Operation::run(Nanos now) {
  now_ = now;
  if (running_) return;
  running_ = true;
  try {
    for (size_t i = 0; i < ready_.size() && !done_; ++i) {
      const auto lane = ready_[i];
      lanes_[lane].ready = false;
      advance(lane);
    }
  } catch (const std::bad_alloc&) {
    out_of_memory(now);
  }
  ready_.clear();
  running_ = false;
  if (in_transit_.need_memory(lanes_left_)) release_memory_early();
}

// Returns true if combining does not overwrite what the lane sends. While it combines, most of that is acknowledged.
bool Operation::keeps_what_it_sends(const Lane& lane) const {
  const auto& memory = chunk_memory_[lane.chunk];
  return lane.combined || (!lane.has_output && !coded_ && !plan_->relayed && memory.input != memory.output);
}

// The lane has all messages of its stage, and transports have all that it sends. If it must now combine what has arrived, the
// result may overwrite what is being sent, so it asks for that memory at once. A lane that only sends can wait longer, because
// other lanes make progress meanwhile.
void Operation::wait_for_memory(Lane& lane, uint32_t index) {
  if (std::exchange(lane.waits_for_memory, true)) return;
  ++in_transit_.waiting;
  in_transit_.blocked += is_in_last_stage(*plan_, lane) ? 0 : 1;
  if (lane.arrived_messages > 0) port_->release_early(index);
}

// A lane whose messages have arrived may go on without copies. The others may wait until it needs no more messages: by then,
// theirs have mostly arrived, too.
void Operation::release_memory_early() {
  if (done_ || in_transit_.waiting == 0 || std::exchange(in_transit_.asked_for_all, true)) return;
  if (!port_->release_acknowledged()) port_->release_all_early();
}

void Operation::advance(uint32_t index) {
  auto& lane = lanes_[index];
  const auto end = plan_->chunks[lane.chunk].stage_end;
  while (!lane.finished && !done_) {
    if (lane.stage == end) return finish_lane(index);
    if (!lane.entered) enter(index);
    const auto& stage = plan_->stages[lane.stage];
    const auto expected = stage.recv_end - stage.recv_begin;
    if (lane.computing || lane.arrived_messages < expected) return;
    in_transit_.await_answer(lane, false);
    const bool only_in_transit = lane.sends_pending == lane.in_transit;
    if (lane.sends_pending > 0 && !(only_in_transit && keeps_what_it_sends(lane))) {
      if (only_in_transit) wait_for_memory(lane, index);
      return;
    }
    if (expected > 0 && !lane.combined && !combine(index)) return;
    if (lane.sends_pending > 0) {
      if (!only_in_transit || !is_answered(*plan_, lane)) return wait_for_memory(lane, index);
      in_transit_.await_answer(lane, true);
    }
    ++lane.stage;
    lane.entered = lane.combined = false;
  }
}

void Operation::enter(uint32_t index) {
  auto& lane = lanes_[index];
  const auto& stage = plan_->stages[lane.stage];
  lane.entered = true;
  lane.arrived_messages = 0;
  for (uint32_t i = 0; i < stage.recv_end - stage.recv_begin; ++i) {
    lane.arrived_messages += arrivals_.arrived(lane.arrivals + stage.recv_before + i);
  }
  if (!lane.committed) send_together(index, stage);
  const bool committed = lane.committed;
  lane.committed = false;
  for (const auto to : plan_->sends(stage)) {
    if (committed && port_->slot_bytes(to) > 0) continue;
    ++lane.sends_pending;
    auto& queue = queue_for(flows_[to], lane, stage);
    const auto item = static_cast<int32_t>(items_.size());
    items_.push_back({index, lane.stage, -1});
    if (!queue.empty()) items_[static_cast<size_t>(queue.tail)].next = item;
    else queue.head = item;
    queue.tail = item;
    pump(to);
  }
}

// Sends the message once to all ranks that read this rank's slots.
void Operation::send_together(uint32_t index, const Stage& stage) {
  const auto& lane = lanes_[index];
  const auto bytes = message_bytes(lane, stage);
  const auto slot = acquire_for(stage, bytes, false);
  if (!slot) return;
  const bool only_here = is_encoded(stage) && messages_[index].data == nullptr &&
                         slot_readers_.size() == plan_->sends(stage).size() && !sends_later(lane, 1) && !stage.reduces;
  if (only_here) encode(index, stage, slot.data);
  else port_->fill(slot, message_of(index, stage), bytes);
  port_->commit(slot, header_for(lane, stage));
  count_as_sent(index, stage);
}

// Returns true if the stage's messages are results, because this rank receives nothing more for the chunk.
bool Operation::is_result(const Lane& lane, const Stage& stage) const {
  const auto& chunk = plan_->chunks[lane.chunk];
  return chunk.ends_with_reduce && stage.recv_before == chunk.recv_count;
}

SendQueue& Operation::queue_for(Flow& flow, const Lane& lane, const Stage& stage) const {
  return is_result(lane, stage) ? flow.results : flow.contributions;
}

FrameHeader Operation::header_for(const Lane& lane, const Stage& stage) const {
  auto header = setup_.frame;
  header.kind = FrameKind::data;
  header.round = static_cast<uint16_t>(stage.round);
  header.chunk = plan_->chunks[lane.chunk].chunk;
  header.slice = lane.slice;
  header.amount = sizes_per_pair(setup_.request.collective) ? share_ | chunk_memory_[lane.chunk].elements : descriptor_.amount;
  header.descriptor = descriptor_.bits;
  header.codec = coded_ ? static_cast<uint8_t>(codec_of(stage).kind) : 0;
  header.payload_bytes = static_cast<uint32_t>(message_bytes(lane, stage));
  return header;
}

void Operation::pump(Rank to) {
  auto& flow = flows_[to];
  for (auto* queue : {&flow.results, &flow.contributions}) {
    while (!queue->empty() && !done_) {
      const auto& head = items_[static_cast<size_t>(queue->head)];
      const auto bytes = message_bytes(lanes_[head.lane], plan_->stages[head.stage]);
      if (!flow.may_send(bytes) && !(flow.may_overdraw() && bring_oldest_forward(*queue))) break;
      const auto item = items_[static_cast<size_t>(queue->head)];
      if (!send_queued(to, item)) {
        if (queue == &flow.contributions) request_credit(to);
        break;
      }
      queue->head = item.next;
      if (queue->empty()) queue->tail = -1;
      count_send(flow, lanes_[item.lane], plan_->stages[item.stage]);
    }
  }
}

// Returns false if there is no send credit.
bool Operation::send_queued(Rank to, const SendItem& item) {
  auto& lane = lanes_[item.lane];
  const auto& stage = plan_->stages[item.stage];
  auto header = header_for(lane, stage);
  if (sizes_per_pair(setup_.request.collective) && plan_->is_confirmation(lane.chunk)) header.amount = elements_shown_to(to);
  const auto bytes = message_bytes(lane, stage);
  PortSlot slot;
  if (bytes > 0 && bytes <= port_->slot_bytes(to)) {
    if (is_result(lane, stage)) slot = port_->acquire({&to, 1}, bytes, true);
    if (!slot) slot = port_->acquire({&to, 1}, bytes, false);
  }
  if (slot) {
    port_->fill(slot, message_of(item.lane, stage), bytes);
    port_->commit(slot, header);
  } else {
    if (port_->credit(to) == 0) return false;
    const auto* payload = message_of(item.lane, stage);
    if (!port_->send(to, header, {payload, payload == nullptr ? 0 : bytes}, item.lane)) {
      if (++lane.in_transit == lane.sends_pending) make_ready(item.lane);
      return true;
    }
  }
  --lane.sends_pending;
  make_ready(item.lane);
  return true;
}

// Moves a message of the oldest lane to the front of the queue. Returns false if the queue holds no message of this lane.
bool Operation::bring_oldest_forward(SendQueue& queue) {
  if (oldest_ == lanes_.size() || !lanes_[oldest_].entered || lanes_[oldest_].sends_pending == 0) return false;
  int32_t before = -1, at = queue.head;
  while (at >= 0 && items_[static_cast<size_t>(at)].lane != oldest_)
    before = std::exchange(at, items_[static_cast<size_t>(at)].next);
  if (at < 0 || before < 0) return at >= 0;
  items_[static_cast<size_t>(before)].next = items_[static_cast<size_t>(at)].next;
  if (queue.tail == at) queue.tail = before;
  items_[static_cast<size_t>(at)].next = std::exchange(queue.head, at);
  return true;
}

// Called if a message cannot be sent because there is no send credit. The partner may hold all shared memory of this rank, in
// messages that wait there for another lane or operation. So this rank asks it to copy them, once until send credit returns.
// Operations mostly end in order. An operation with `is_next` therefore asks at once; others first wait for a limited time.
void Operation::request_credit(Rank to) {
  auto& flow = flows_[to];
  if (flow.credit_requested || port_->slot_bytes(to) == 0) return;
  if (!setup_.is_next) {
    if (becomes_next_at_ == never)
      becomes_next_at_ = now_ + std::min(setup_.request.timeout / credit_wait_divisor, credit_wait_max);
    return;
  }
  const bool another = flow.send_used == 0 || !setup_.hold_views;
  if (!bring_oldest_forward(flow.contributions) && !another) return;
  flow.credit_requested = true;
  port_->request_credit(to, std::exchange(flow.credit_requested_ever, true));
}

void Operation::becomes_next(Nanos now) {
  setup_.is_next = true;
  becomes_next_at_ = never;
  if (done_) return;
  now_ = now;
  for (const auto to : plan_->partners) {
    if (flows_[to].waits_to_send()) pump(to);
  }
  run(now);
}

void Operation::copy_out(Rank from) {
  if (done_) return;
  flows_[from].copies = true;
  for (const auto& lane : lanes_) {
    if (lane.finished || lane.computing) continue;
    const auto& chunk = plan_->chunks[lane.chunk];
    for (auto s = lane.stage; s < chunk.stage_end; ++s) {
      const auto ranks = plan_->receives(plan_->stages[s]);
      const auto at = std::lower_bound(ranks.begin(), ranks.end(), from);
      if (at == ranks.end() || *at != from) continue;
      const auto entry = lane.arrivals + plan_->stages[s].recv_before + static_cast<size_t>(at - ranks.begin());
      if (arrivals_.state(entry) == ArrivalMap::State::held && arrivals_.piece(entry).handle != 0)
        arrivals_.hold(entry, copied(arrivals_.piece(entry)));
    }
  }
}

// Called when the oldest lane has finished. The next unfinished lane is now the oldest and may exceed a window.
void Operation::pass_oldest() {
  while (oldest_ < lanes_.size() && lanes_[oldest_].finished) ++oldest_;
  if (oldest_ == lanes_.size()) return;
  const auto& lane = lanes_[oldest_];
  if (!lane.entered || lane.sends_pending == 0) return;
  for (const auto to : plan_->sends(plan_->stages[lane.stage])) pump(to);
}

bool Operation::combine(uint32_t index) {
  auto& lane = lanes_[index];
  const auto& stage = plan_->stages[lane.stage];
  if (stage.reduces) return reduce_lane(index);
  if (is_encoded(stage)) return decode_lane(index);
  const auto& piece = arrivals_.piece(lane.arrivals + stage.recv_before);
  lane.combined = true;
  if (plan_->relayed) {
    if (piece.data != copy_destination(lane, stage) && piece.bytes > 0)
      kernels::copy(copy_destination(lane, stage), piece.data, piece.bytes);
    if (lane.stage + 1 == plan_->chunks[lane.chunk].stage_end && !add_relayed(index)) return false;
  } else if (piece.data != output(lane) && piece.bytes > 0) {
    lane.computing = !port_->copy(output(lane), piece.data, piece.bytes, index);
    if (lane.computing) return false;
  }
  after_combine(index);
  return true;
}

// Returns a slot that all slot readers of this stage can read. If one of these ranks may not receive the message now, returns
// none.
PortSlot Operation::acquire_for(const Stage& stage, size_t bytes, bool result) {
  if (bytes == 0) return {};
  slot_readers_.clear();
  for (const auto to : plan_->sends(stage)) {
    if (port_->slot_bytes(to) < bytes) continue;
    const auto& flow = flows_[to];
    if (!flow.may_send(bytes) || !(result ? flow.results : flow.contributions).empty()) return {};
    slot_readers_.push_back(to);
  }
  return slot_readers_.empty() ? PortSlot{} : port_->acquire(slot_readers_, bytes, result);
}

// If the next stage sends the sum, returns a slot. The reduction then also writes the sum into this slot, in the same pass.
PortSlot Operation::acquire_result(uint32_t index) {
  const auto& lane = lanes_[index];
  const auto& chunk = plan_->chunks[lane.chunk];
  if (lane.stage + 1 >= chunk.stage_end) return {};
  const auto& next = plan_->stages[lane.stage + 1];
  return acquire_for(next, message_bytes(lane, next), is_result(lane, next));
}

bool Operation::reduce_lane(uint32_t index) {
  auto& lane = lanes_[index];
  const auto& stage = plan_->stages[lane.stage];
  const auto& chunk = plan_->chunks[lane.chunk];
  const auto ranks = plan_->receives(stage);
  const auto& memory = chunk_memory_[lane.chunk];
  const bool completes =
      chunk.ends_with_reduce && (memory.wanted || memory.owned) && stage.recv_before + ranks.size() == chunk.recv_count;
  const bool folds =
      coded_ && lane.elements > 0 && (is_encoded(stage) || (completes && plan_->has_gather() && !codecs_[2].is_plain()));
  if (folds) return fold_lane(index, completes);
  sources_.clear();
  bool own_added = value(lane) == nullptr;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (!own_added && ranks[i] > setup_.self) sources_.push_back(value(lane)), own_added = true;
    sources_.push_back(arrivals_.piece(lane.arrivals + stage.recv_before + i).data);
  }
  if (!own_added) sources_.push_back(value(lane));
  lane.combined = true;
  if (lane.elements == 0) return after_combine(index), true;
  const auto slot = acquire_result(index);
  const bool as_it_is = slot && !is_encoded(plan_->stages[lane.stage + 1]);
  kernels::Reduction task{.dtype = widened_ ? DType::f32 : setup_.request.dtype,
                          .op = setup_.request.op,
                          .sources = sources_,
                          .destination = output(lane),
                          .copy = as_it_is ? slot.data : nullptr,
                          .count = lane.elements,
                          .divisor = completes && setup_.request.op == ReduceOp::avg ? setup_.world : 1};
  if (slot) slots_.push_back({index, slot, as_it_is});
  lane.computing = !port_->reduce(task, index);
  if (lane.computing) return false;
  after_combine(index);
  return true;
}

void Operation::after_combine(uint32_t index) {
  auto& lane = lanes_[index];
  const auto& stage = plan_->stages[lane.stage];
  const auto ranks = plan_->receives(stage);
  lane.has_output = true;
  drop_message(index + static_cast<uint32_t>(lanes_.size()));
  const auto slot = std::find_if(slots_.begin(), slots_.end(), [&](const auto& s) { return s.lane == index; });
  if (slot != slots_.end()) {
    const auto& next = plan_->stages[lane.stage + 1];
    if (!slot->filled) port_->fill(slot->slot, message_of(index, next), message_bytes(lane, next));
    port_->commit(slot->slot, header_for(lane, next));
    count_as_sent(index, next);
    slots_.erase(slot);
  }
  for (size_t i = 0; i < ranks.size(); ++i) {
    const auto entry = lane.arrivals + stage.recv_before + i;
    const auto bytes = arrivals_.piece(entry).bytes;
    if (is_encoded(stage) && !stage.reduces && bytes > 0 && sends_later(lane, 1)) keep_message(index, arrivals_.piece(entry));
    else port_->release(arrivals_.piece(entry));
    arrivals_.used(entry);
    consume(ranks[i], bytes);
  }
}

void Operation::consume(Rank from, uint64_t bytes) {
  auto& flow = flows_[from];
  flow.recv_consumed += bytes;
  grant_more(from);
}

void Operation::grant_more(Rank from) {
  const auto grant = flows_[from].next_grant(setup_.limits);
  if (grant > 0) port_->grant(from, grant);
}

void Operation::finish_lane(uint32_t index) {
  auto& lane = lanes_[index];
  const auto& memory = chunk_memory_[lane.chunk];
  if (!lane.has_output && memory.wanted && memory.input != nullptr && memory.output != memory.input && lane_bytes(lane) > 0) {
    port_->copy_now(output(lane), value(lane), lane_bytes(lane));
  }
  drop_message(index);
  lane.finished = true;
  if (--lanes_left_ == 0) return all_lanes_finished();
  if (index == oldest_) pass_oldest();
}

void Operation::granted(Rank from, uint64_t bytes, Nanos now) {
  if (done_ || from >= flows_.size()) return;
  auto& flow = flows_[from];
  flow.opened = true;
  flow.send_allowed = std::min(flow.send_total, std::max(flow.send_allowed, bytes));
  credit(from, now);
}

void Operation::credit(Rank to, Nanos now) {
  if (done_ || to >= flows_.size() || !flows_[to].waits_to_send()) return;
  now_ = now;
  flows_[to].credit_requested = false;
  pump(to);
  run(now);
}

void Operation::sent(uint32_t lane, Nanos now) {
  if (done_ || lane >= lanes_.size() || lanes_[lane].in_transit == 0) return;
  auto& sender = lanes_[lane];
  --sender.sends_pending;
  --sender.in_transit;
  if (sender.sends_pending == 0) in_transit_.await_answer(sender, false);
  if (std::exchange(sender.waits_for_memory, false)) {
    --in_transit_.waiting;
    in_transit_.blocked -= is_in_last_stage(*plan_, sender) ? 0 : 1;
    in_transit_.asked_for_all = false;
  }
  make_ready(lane);
  run(now);
}

void Operation::computed(uint32_t lane, Nanos now) {
  if (done_ || lane >= lanes_.size() || !lanes_[lane].computing) return;
  now_ = now;
  lanes_[lane].computing = false;
  after_combine(lane);
  make_ready(lane);
  run(now);
}

}  // namespace unisono
