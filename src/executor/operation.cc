// The executor: how lanes advance, how messages are sent, received and combined.
#include "executor/operation.h"

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "base/check.h"

namespace unisono {

const std::byte* Operation::value(const Lane& lane) const {
  const auto& place = chunk_memory_[lane.chunk];
  const std::byte* base = lane.has_output ? place.output : place.input;
  return base == nullptr ? nullptr : base + lane_offset(lane);
}

std::byte* Operation::output(const Lane& lane) const {
  const auto& place = chunk_memory_[lane.chunk];
  return place.output == nullptr ? nullptr : place.output + lane_offset(lane);
}

void Operation::make_ready(uint32_t lane) {
  if (lanes_[lane].ready || lanes_[lane].finished) return;
  lanes_[lane].ready = true;
  ready_.push_back(lane);
}

// Advances lanes until none can. Each event puts runnable lanes on ready_; only the outermost call processes them.
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
}

void Operation::advance(uint32_t index) {
  auto& lane = lanes_[index];
  const auto end = plan_->chunks[lane.chunk].stage_end;
  while (!lane.finished && !done_) {
    if (lane.stage == end) return finish_lane(index);
    if (!lane.entered) enter(index);
    const auto& stage = plan_->stages[lane.stage];
    const auto expected = stage.recv_end - stage.recv_begin;
    if (lane.sends_pending > 0 || lane.computing || lane.got < expected) return;
    if (expected > 0 && !lane.combined && !combine(index)) return;
    ++lane.stage;
    lane.entered = lane.combined = false;
  }
}

void Operation::enter(uint32_t index) {
  auto& lane = lanes_[index];
  const auto& stage = plan_->stages[lane.stage];
  lane.entered = true;
  lane.got = 0;
  for (uint32_t i = 0; i < stage.recv_end - stage.recv_begin; ++i) {
    lane.got += arrivals_.arrived(lane.arrivals + stage.recv_before + i);
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

// Sends to the ranks that read this rank's slots: one copy serves all of them.
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

// A stage's messages are results if nothing is received after it: their receiver waits for nothing else.
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
  header.amount = descriptor_.amount != 0 ? descriptor_.amount : chunk_memory_[lane.chunk].elements;
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

// False: no send credit.
bool Operation::send_queued(Rank to, const SendItem& item) {
  auto& lane = lanes_[item.lane];
  const auto& stage = plan_->stages[item.stage];
  const auto header = header_for(lane, stage);
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
    if (!port_->send(to, header, {payload, payload == nullptr ? 0 : bytes}, item.lane)) return true;
  }
  --lane.sends_pending;
  make_ready(item.lane);
  return true;
}

// Moves a message of the oldest lane to the front of the queue. False if the queue has none.
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

// No send credit is left. The partner may hold all memory that this rank can share with it, in messages that wait for others:
// of later lanes, while everyone waits for the message to be sent now, or of another operation, which must not block this one.
// So this rank asks the partner to keep copies instead, also of messages in flight; once until send credit returns. Operations
// that all ranks begin in one order mostly finish in it, so only the first one asks; the others wait for a limited time.
void Operation::request_credit(Rank to) {
  auto& flow = flows_[to];
  if (flow.credit_requested || port_->slot_bytes(to) == 0) return;
  if (!setup_.is_next) {
    if (becomes_next_at_ == never) becomes_next_at_ = now_ + std::min(setup_.request.timeout / patience_part, patience_max);
    return;
  }
  const bool another = flow.send_used == 0 || !setup_.hold_lent;
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

// Called when the oldest lane is finished: the next lane's messages may have waited for that.
void Operation::pass_oldest() {
  while (oldest_ < lanes_.size() && lanes_[oldest_].finished) ++oldest_;
  if (oldest_ == lanes_.size()) return;
  const auto& lane = lanes_[oldest_];
  if (!lane.entered || lane.sends_pending == 0) return;
  for (const auto to : plan_->sends(plan_->stages[lane.stage])) pump(to);
}

// payload: null if it has not arrived yet.
Status Operation::locate(Rank from, const FrameHeader& header, Message& message, const std::byte* payload) const {
  const auto wrong = [&](const std::string& what) {
    return Status(Code::invalid, label() + ": rank " + std::to_string(from) + " sent " + what);
  };
  if (header.descriptor != descriptor_.bits || (descriptor_.amount != 0 && header.amount != descriptor_.amount)) {
    return {Code::invalid, label() + ": calls differ: rank " + std::to_string(from) + " " +
                               difference({header.descriptor, header.amount}, descriptor_)};
  }
  const auto chunk = plan_->find(header.chunk);
  if (chunk < 0) return wrong("chunk " + std::to_string(header.chunk) + ", which it should not");
  const auto& chunk_plan = plan_->chunks[static_cast<size_t>(chunk)];
  const auto elements = chunk_memory_[static_cast<size_t>(chunk)].elements;
  if (descriptor_.amount == 0 && header.amount != elements) {
    return wrong("a block of " + std::to_string(header.amount) + " elements where this rank expects " +
                 std::to_string(elements));
  }
  if (header.slice >= slice_count(static_cast<size_t>(chunk)))
    return wrong("slice " + std::to_string(header.slice) + " beyond the chunk's end");
  const auto begin = plan_->stages.begin() + chunk_plan.stage_begin, end = plan_->stages.begin() + chunk_plan.stage_end;
  const auto stage = std::lower_bound(begin, end, header.round, [](const Stage& s, uint32_t round) { return s.round < round; });
  if (stage == end || stage->round != header.round)
    return wrong("a message of round " + std::to_string(header.round) + ", which has none");
  const auto ranks = plan_->receives(*stage);
  const auto at = std::lower_bound(ranks.begin(), ranks.end(), from);
  if (at == ranks.end() || *at != from)
    return wrong("a message of round " + std::to_string(header.round) + " that is not its turn");
  message.lane = first_lane_[static_cast<size_t>(chunk)] + header.slice;
  message.stage = static_cast<uint32_t>(stage - plan_->stages.begin());
  message.entry = lanes_[message.lane].arrivals + stage->recv_before + static_cast<size_t>(at - ranks.begin());
  if (auto status = check_codec(from, header, message, payload); !status.ok()) return status;
  if (header.payload_bytes != message_bytes(lanes_[message.lane], *stage))
    return wrong("a slice of " + std::to_string(header.payload_bytes) + " bytes");
  if (arrivals_.arrived(message.entry)) return wrong("the same message twice");
  return {};
}

std::byte* Operation::place(Rank from, const FrameHeader& header) {
  Message message;
  if (done_ || header.payload_bytes == 0 || !locate(from, header, message).ok()) return nullptr;
  if (arrivals_.state(message.entry) != ArrivalMap::State::missing) return nullptr;
  const auto& lane = lanes_[message.lane];
  const auto& stage = plan_->stages[message.stage];
  Piece piece{.bytes = header.payload_bytes};
  const bool may_overwrite = plan_->relayed || (lane.stage == message.stage && lane.entered && lane.sends_pending == 0);
  std::byte* target = nullptr;
  if (!stage.reduces && may_overwrite && !is_encoded(stage)) {
    target = landing(lane, stage);
  } else {
    target = port_->stage(header.payload_bytes);
    piece.staged = true;
  }
  piece.data = target;
  if (target != nullptr) arrivals_.placing(message.entry, piece);
  return target;
}

// The piece to hold until its lane needs it: in its receive buffer, as given, or a copy.
Piece Operation::piece_to_hold(Rank from, const Message& message, const Piece& given) {
  if (arrivals_.state(message.entry) == ArrivalMap::State::placing) return arrivals_.piece(message.entry);
  if (given.handle == 0) return given;
  const auto& lane = lanes_[message.lane];
  const auto& stage = plan_->stages[message.stage];
  const bool used_now = lane.entered && lane.stage == message.stage && lane.sends_pending == 0 &&
                        lane.got + 1 == stage.recv_end - stage.recv_begin;
  const bool may_wait = !flows_[from].copies && (setup_.hold_lent || !stage.reduces);
  return used_now || may_wait ? given : copied(given);
}

Piece Operation::copied(const Piece& given) {
  const Piece staged{.data = port_->stage(given.bytes), .bytes = given.bytes, .staged = true};
  kernels::copy(const_cast<std::byte*>(staged.data), given.data, given.bytes);
  port_->release(given);
  return staged;
}

void Operation::received(Rank from, const FrameHeader& header, const Piece& given, Nanos now) {
  now_ = now;
  if (done_) return port_->release(given);
  Message message;
  try {
    auto status = locate(from, header, message, given.data);
    if (!status.ok()) {
      port_->release(given);
      return fail_here(std::move(status));
    }
    arrivals_.hold(message.entry, piece_to_hold(from, message, given));
  } catch (const std::bad_alloc&) {
    port_->release(given);
    return out_of_memory(now);
  }
  auto& flow = flows_[from];
  flow.recv_arrived += header.payload_bytes;
  if (flow.is_overdrawn()) grant_more(from);
  if (flow.first_arrival == never) {
    flow.first_arrival = now;
    last_first_arrival_ = now;
    last_rank_ = from;
  }
  counts_.received_bytes += header.payload_bytes + sizeof(FrameHeader);
  ++counts_.received_messages;
  ++flow.received_messages;
  last_receive_ = now;
  auto& lane = lanes_[message.lane];
  if (lane.entered && lane.stage == message.stage) {
    ++lane.got;
    make_ready(message.lane);
    run(now);
  }
}

bool Operation::combine(uint32_t index) {
  auto& lane = lanes_[index];
  const auto& stage = plan_->stages[lane.stage];
  if (stage.reduces) return reduce_lane(index);
  if (is_encoded(stage)) return decode_lane(index);
  const auto& piece = arrivals_.piece(lane.arrivals + stage.recv_before);
  lane.combined = true;
  if (plan_->relayed) {
    if (piece.data != landing(lane, stage) && piece.bytes > 0) kernels::copy(landing(lane, stage), piece.data, piece.bytes);
    if (lane.stage + 1 == plan_->chunks[lane.chunk].stage_end && !add_relayed(index)) return false;
  } else if (piece.data != output(lane) && piece.bytes > 0) {
    lane.computing = !port_->copy(output(lane), piece.data, piece.bytes, index);
    if (lane.computing) return false;
  }
  after_combine(index);
  return true;
}

// A slot for this stage's message to all ranks that read this rank's slots; empty if one of them has no send credit now.
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

// Writes the sum into a slot in the same pass if it is sent next.
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
  const auto& place = chunk_memory_[lane.chunk];
  const bool completes =
      chunk.ends_with_reduce && (place.wanted || place.owned) && stage.recv_before + ranks.size() == chunk.recv_count;
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
  const auto& place = chunk_memory_[lane.chunk];
  if (!lane.has_output && place.wanted && place.input != nullptr && place.output != place.input && lane_bytes(lane) > 0) {
    port_->copy_now(output(lane), value(lane), lane_bytes(lane));
  }
  drop_message(index);
  lane.finished = true;
  if (--lanes_left_ == 0) return finish({});
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
  if (done_ || lane >= lanes_.size() || lanes_[lane].sends_pending == 0) return;
  --lanes_[lane].sends_pending;
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
