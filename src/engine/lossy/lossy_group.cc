// Numbers lossy operations and runs them in order. Keeps the datagrams that arrive before their operation begins. The functions
// that make reports are in lossy_group_report.cc.
#include "engine/lossy/lossy_group.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/concat.h"

namespace unisono {

// A rank requests each slice of a stream for itself. So many of its requests get one answer. The intervals are far below
// lossy_silence_min, after which a rank without an answer counts this rank as gone. While this rank sends the stream, its data
// shows that it lives. It answers less often then, in case the path loses long datagrams.
static constexpr Nanos answer_interval = millisecond, sending_answer_interval = 5 * millisecond;

Result<std::unique_ptr<LossyGroup>> LossyGroup::make(DatagramService& service, LossyGroupSetup setup) {
  auto group = std::unique_ptr<LossyGroup>(new LossyGroup(service, std::move(setup)));
  group->newest_.assign(group->world(), 0);
  group->silent_.assign(group->world(), 0);
  group->last_datagram_at_.assign(group->world(), -1);
  group->answered_at_.assign(group->world(), -sending_answer_interval);
  group->sent_count_.assign(group->world(), {});
  group->lost_.resize(group->world());
  group->received_calls_.resize(group->world());
  group->repaired_before_.assign(group->world(), 0);
  group->sent_positions_.assign(group->world(), {});
  if (Status status = service.open_group(group->setup_.number, group->setup_.datagrams, group->setup_.peers, *group);
      !status.ok())
    return status;
  return group;
}

LossyGroup::~LossyGroup() {
  fail_all({Code::unavailable, "the group has ended"}, 0, true);
  for (auto& operation : operations_) operation.drop_streams();
  service_.close_group(setup_.number);
}

void LossyGroup::end(Call&& call, Status status) {
  if (call.completion == nullptr) return;
  auto completion = std::move(call.completion);
  completion->status = std::move(status);
  completion->done = true;
}

void LossyGroup::submit(OperationRequest&& request, std::shared_ptr<Completion> completion, Nanos now) {
  // Copy the codec, because the caller's object may be gone when the call begins.
  Call call{.request = std::move(request), .completion = std::move(completion)};
  call.codec = *call.request.codec;
  if (call.request.needed_ranges != nullptr) call.needed = *call.request.needed_ranges;
  call.deadline = now + call.request.timeout;
  call.completion->report.operation = name(call.request.collective);
  if (call.needed.size() > world())
    return end(std::move(call),
               {Code::invalid, concat("needed_ranges is for ", call.needed.size(), " ranks; the group has ", world())});
  if (waiting_.size() >= waiting_max) {
    return end(std::move(call),
               {Code::unavailable, concat(waiting_.size(), " lossy operations are waiting, the limit; wait for one of them")});
  }
  // A call without elements gets no number, and ends at once.
  if (call.request.count == 0) return end(std::move(call), {});
  const auto geometry = geometry_for(call.request);
  if (!geometry) return end(std::move(call), geometry.status());
  call.geometry = *geometry;
  if (setup_.reliable.begun) call.reliable_before = setup_.reliable.begun();
  waiting_.push_back(std::move(call));
  waiting_.back().request.codec = &waiting_.back().codec;  // the pointer is valid until begin() moves the call
  if (!running_) start_next(now);
  check_kept_positions(now);
}

// Error invalid: a range does not fit into a datagram, or the contributions do not fit into the staging memory.
Result<RangeGeometry> LossyGroup::geometry_for(const OperationRequest& request) const {
  auto geometry = RangeGeometry::make(
      {.elements = request.count,
       .world = world(),
       .datagram_bytes = setup_.datagram_bytes,
       .codec = wire_codec(request.collective == Collective::all_gather ? request.codec->gather : request.codec->reduce,
                           request.dtype, request.dtype, request.codec->poison),
       .shard_unit = request.shard_unit});
  if (!geometry) return geometry;
  if (request.collective == Collective::all_gather) return geometry;
  // Use the size of the largest shard, so that either all ranks refuse the call, or none does.
  const auto staging = uint64_t{world() - 1} * geometry->shard_bytes(0);
  const auto limit = request.lossy.staging_bytes_max;
  if (staging > limit)
    return Status(Code::invalid, concat("contributions of ", staging, " bytes exceed the staging memory, staging=", limit));
  return geometry;
}

Status LossyGroup::fits(const OperationRequest& request) const {
  return request.count == 0 ? Status() : geometry_for(request).status();
}

LossyGroup::LearnedDeadlines& LossyGroup::learned_deadlines_for(const OperationRequest& request, size_t bytes) {
  const auto key = size_class_of(bytes) << 8 | static_cast<uint64_t>(request.collective);
  const DeadlineSettings settings{.fixed = request.lossy.deadline.count() * microsecond,
                                  .hard_max = request.lossy.deadline_max.count() * microsecond,
                                  .loss_budget = request.lossy.loss_budget};
  const auto it = learned_by_size_.find(key);
  if (it != learned_by_size_.end()) {
    // Calls of the same size may have different options.
    for (auto& deadline : it->second.deadlines) deadline.set(settings);
    return it->second;
  }
  const Deadline deadline(settings);
  LearnedDeadlines learned{.deadlines = {deadline, deadline}, .announced = {}};
  for (auto& ranks : learned.announced) ranks.assign(world(), 0);
  return learned_by_size_.emplace(key, std::move(learned)).first->second;
}

// The hard deadline is computed from the deadlines that all ranks have announced. Therefore all ranks get the same hard
// deadline.
LossyPhaseSetup LossyGroup::phase_setup(uint32_t phase, const OperationRequest& request, Nanos now) const {
  if (used_ == Delivery::reliable) {
    // Reliable delivery waits until the deadline of the call, even for a silent sender.
    const auto left = std::max<Nanos>(call_.deadline - now, 0);
    return {.limits = {.soft = left, .hard = left, .grace = Deadline::grace(left)}, .completes = true};
  }
  const auto& deadline = learned_->deadlines[phase];
  const auto hard_max = request.lossy.deadline_max.count() * microsecond, fixed = request.lossy.deadline.count() * microsecond;
  auto announced = learned_->announced[phase];
  announced[setup_.datagrams.self] = deadline.hard();
  const auto hard = std::min(agreed_deadline(announced, deadline.hard()), hard_max);
  const auto soft = deadline.soft(hard);
  // In an all-reduce, lost results are requested again as long as their owner is alive. Otherwise some ranks would keep old
  // values while others have new ones.
  const bool completes =
      (phase == 1 && request.collective == Collective::all_reduce) || request.lossy.loss_budget <= 0 || deadline.learning();
  LossyPhaseSetup setup{.limits = {.soft = soft, .hard = hard, .grace = Deadline::grace(soft)}, .completes = completes};
  if (phase == 1) setup.silent = hard;
  if (completes) setup.limits.soft = setup.limits.hard = fixed > 0 ? fixed : hard_max;
  return setup;
}

void LossyGroup::start_next(Nanos now) {
  while (!running_ && !waiting_.empty()) {
    auto call = std::move(waiting_.front());
    waiting_.pop_front();
    if (call.completion == nullptr) {
      ++op_;  // the call ended early here, but other ranks count its number, too
      continue;
    }
    begin(std::move(call), now);
  }
}

void LossyGroup::begin(Call&& call, Nanos now) {
  call_ = std::move(call);
  const auto& geometry = *call_.geometry;
  call_.request.codec = &call_.codec;
  running_ = true;
  const auto& request = call_.request;
  learned_ = &learned_deadlines_for(request, geometry.cut().codec.message_bytes(geometry.cut().elements));
  auto& operation = current();
  // Drop the streams of operation op_ - 3, because this operation uses its table entry again. Also drop the streams of
  // operation op_ - 2: receivers had the time of a whole operation to request them.
  operation.drop_streams();
  operations_[(op_ + 1) % operations_.size()].drop_streams();
  auto& setup = operation.new_setup();
  setup.collective = request.collective;
  setup.mean = request.op == ReduceOp::avg;
  setup.dtype = request.dtype;
  setup.input = request.input;
  setup.output = request.output;
  setup.geometry = geometry;
  setup.self = setup_.datagrams.self;
  setup.op = op_;
  setup.estimator = request.lossy.estimator;
  setup.on_empty = request.lossy.on_empty == OnEmpty::automatic
                       ? (request.collective == Collective::all_reduce ? OnEmpty::own : OnEmpty::hold)
                       : request.lossy.on_empty;
  setup.own_exact = request.codec->own_exact;
  setup.loss_budget = request.lossy.loss_budget;
  used_ = choice_.begin(op_, request.delivery);
  setup.reliable = used_ == Delivery::reliable;
  for (uint32_t phase = 0; phase < lossy_phases; ++phase) setup.phases[phase] = phase_setup(phase, request, now);
  // A rank whose contribution is late may still send results. Phase 1 therefore waits for it at least as long as phase 0 does.
  if (request.collective == Collective::all_reduce)
    setup.phases[1].silent = std::max(setup.phases[0].limits.hard, setup.phases[1].silent);
  setup.needed = std::move(call_.needed);
  setup.needed_hard = request.lossy.deadline.count() > 0 ? request.lossy.deadline.count() * microsecond
                                                         : request.lossy.deadline_max.count() * microsecond;
  // If this rank receives nothing in a phase, it learns no deadline for the phase, and announces 0. Other ranks ignore the 0.
  setup.announced = {geometry.ranges(setup_.datagrams.self) == 0 ? 0 : learned_->deadlines[0].hard(),
                     learned_->deadlines[1].hard()};
  setup.deadline = call_.deadline;
  announce_call();
  operation.start(*this, now);
  // If the other ranks are already in later operations, the early frames here are incomplete, and must not be used.
  if (const auto behind = operations_behind(); behind >= 2) {
    operation.fall_behind(behind, now);
    return operation.drop_streams();
  }
  for (Rank rank = 0; rank < world(); ++rank) {
    if (!lost_[rank].ok()) operation.peer_lost(rank, lost_[rank], now);
  }
  if (!violation_.ok()) current().fail(std::exchange(violation_, {}), now);
  for (Rank rank = 0; rank < world(); ++rank) compare_call(rank, now);
  replay(early_[op_ & 1], now);
}

void LossyGroup::replay(EarlyStore& store, Nanos now) {
  if (store.op == op_) {
    for (const auto& early : store.datagrams) {
      if (current().done()) break;
      const std::span<const std::byte> payload(store.payloads.data() + early.at, early.header.payload_bytes);
      deliver(early.from, early.header, payload, early.came);
    }
  }
  store.datagrams.clear();
  store.payloads.clear();
  store.ended.assign(world(), 0);
  current().wake(now);
}

DatagramFault LossyGroup::keep_early(Rank from, const DatagramHeader& header, std::span<const std::byte> payload, Nanos now) {
  auto& store = early_[header.op & 1];
  if (store.op != header.op || store.ended.empty()) {
    store.op = header.op;
    store.datagrams.clear();
    store.payloads.clear();
    store.ended.assign(world(), 0);
  }
  if (header.phase >= lossy_phases) return DatagramFault::place;
  if (header.kind == DatagramKind::end) {
    // The sender repeats the end message of a stream until this rank answers. It is enough to keep one copy.
    const auto bit = static_cast<uint8_t>(1u << header.phase);
    if ((store.ended[from] & bit) != 0) return DatagramFault::none;
    store.ended[from] |= bit;
  }
  if (store.payloads.size() + payload.size() + store.datagrams.size() * sizeof(Early) > early_bytes_max) {
    ++early_dropped_;
    return DatagramFault::late;
  }
  store.datagrams.push_back({from, header, store.payloads.size(), now});
  store.payloads.insert(store.payloads.end(), payload.begin(), payload.end());
  if (header.op == next_number()) {
    if (const auto position = waiting_position()) send_position(from, *position);
  }
  return DatagramFault::none;
}

DatagramFault LossyGroup::datagram(uint32_t, Rank from, const DatagramHeader& header, std::span<const std::byte> payload,
                                   Nanos now) {
  note_newest(from, header.op);
  last_datagram_at_[from] = std::max(last_datagram_at_[from], now);
  const auto distance = op_distance(header.op, op_);
  if (distance < 0) {
    // The operation has ended here, but the sender may not know that. An empty request tells it again.
    if (header.kind == DatagramKind::end) request_repair(from, {header.op, header.phase}, 0, 0, {});
    return DatagramFault::op_old;
  }
  if (distance > 1) return DatagramFault::op_ahead;
  if (distance == 1 || !running_) return keep_early(from, header, payload, now);
  return deliver(from, header, payload, now);
}

// Hands a datagram to the running operation.
DatagramFault LossyGroup::deliver(Rank from, const DatagramHeader& header, std::span<const std::byte> payload, Nanos now) {
  auto fault = DatagramFault::none;
  if (is_of_other_call(header)) {
    fault = DatagramFault::place;
    current().other_call_seen(from, now);
  } else if (header.kind == DatagramKind::end) current().end_seen(from, header, now);
  else fault = current().data(from, header, payload, now);
  const bool is_other_call = header.phase < lossy_phases && !current().phase(header.phase).runs;
  // The ranks make different calls, but may have announced both of them before.
  if (is_other_call || fault == DatagramFault::place || fault == DatagramFault::size) announce_call_again();
  if (header.phase < lossy_phases && header.deadline_us > 0)
    learned_->announced[header.phase][from] = header.deadline_us * microsecond;
  return fault;
}

void LossyGroup::stream_requested(uint32_t, Rank from, const StreamRequest& request, Nanos now) {
  last_datagram_at_[from] = std::max(last_datagram_at_[from], now);
  // A rank that lacks results of an earlier operation will come to this one. A late confirmation says nothing of the sort.
  const bool lives = request.kind == StreamRequest::Kind::ranges || op_distance(request.stream.op, op_) >= 0;
  if (running_ && lives) current().request_seen(from, request, now);
  if (request.kind != StreamRequest::Kind::ranges) return;
  const auto pending = pending_for(from, request.stream);
  if (!pending) return;
  const auto interval = *pending == setup_.datagrams.self ? sending_answer_interval : answer_interval;
  if (now < answered_at_[from] + interval) return;
  answered_at_[from] = now;
  request_repair(from, request.stream, 0, *pending, pending_bitmap);
}

// Returns the rank for which this rank waits before it can send the stream; its own rank, while it sends the stream. Returns
// null if an answer would be wrong or useless. It would be wrong if this rank may never send the stream: it has not begun the
// call, or has ended it without results. It is useless when all was sent, because the service then repeats ranges and `end`
// datagrams.
std::optional<Rank> LossyGroup::pending_for(Rank to, StreamName stream) const {
  const bool sent = stream.phase < lossy_phases && op_distance(stream.op, sent_count_[to][stream.phase]) < 0;
  if (!sent && service_.stream_unconfirmed(setup_.number, to, stream)) return setup_.datagrams.self;
  const auto distance = op_distance(stream.op, op_);
  if (!running_ || current().done() || (distance != 1 && (distance != 0 || !current().will_send(stream.phase)))) return {};
  return current().waits_for();
}

void LossyGroup::stream_sent(uint32_t, Rank to, StreamName stream) {
  if (to < world() && stream.phase < lossy_phases) sent_count_[to][stream.phase] = stream.op + 1;
}

void LossyGroup::note_newest(Rank from, uint32_t op) {
  if (op_distance(op, newest_[from]) > 0) newest_[from] = op;
}

// If at least half of the other ranks are two or more operations ahead, returns by how many operations the first of them is
// ahead. Otherwise returns 0.
uint32_t LossyGroup::operations_behind() const {
  uint32_t ahead = 0;
  int32_t furthest = 0;
  for (Rank rank = 0; rank < world(); ++rank) {
    if (rank == setup_.datagrams.self) continue;
    const auto distance = op_distance(newest_[rank], op_);
    if (distance < 2) continue;
    ++ahead;
    furthest = std::max(furthest, distance);
  }
  return 2 * ahead >= world() - 1 && ahead > 0 ? static_cast<uint32_t>(furthest) : 0;
}

bool LossyGroup::step(Nanos now) {
  bool progress = end_late_waiting(now);
  while (running_) {
    auto& operation = current();
    if (const auto behind = operations_behind(); !operation.done() && behind >= 2) operation.fall_behind(behind, now);
    if (!operation.done() && now >= operation.due()) operation.wake(now);
    if (!operation.done()) break;
    settle(now);
    progress = true;
  }
  return progress;
}

// Ends the waiting calls whose deadline has passed. After that, nothing uses their buffers.
bool LossyGroup::end_late_waiting(Nanos now) {
  bool any = false;
  for (auto& call : waiting_) {
    if (call.completion == nullptr || now < call.deadline) continue;
    end(std::move(call), {Code::late, concat(name(call.request.collective),
                                             ": deadline passed while waiting for lossy operation ", op_, " to end")});
    call.completion = nullptr;
    any = true;
  }
  return any;
}

Nanos LossyGroup::next_deadline() const {
  auto next = !running_ ? never : current().done() ? 0 : current().due();
  for (const auto& call : waiting_) {
    if (call.completion != nullptr) next = std::min(next, call.deadline);
  }
  return next;
}

void LossyGroup::peer_lost(Rank rank, const Status& why, Nanos now) {
  lost_[rank] = why;
  if (running_) current().peer_lost(rank, why, now);
}

bool LossyGroup::has_pending() const {
  for (Rank rank = 0; rank < world(); ++rank) {
    if (rank == setup_.datagrams.self || !lost_[rank].ok()) continue;
    for (uint32_t back = 1; back <= 2; ++back) {
      for (uint8_t phase = 0; phase < lossy_phases; ++phase) {
        if (service_.stream_unconfirmed(setup_.number, rank, {op_ - back, phase})) return true;
      }
    }
  }
  return false;
}

void LossyGroup::fail_all(const Status& why, Nanos now, bool without_reports) {
  // End the waiting calls first, so that none of them begins.
  for (auto& call : waiting_) end(std::move(call), why);
  waiting_.clear();
  if (!running_) return;
  current().fail(why, now);
  settle(now, without_reports);
}

// Moves the outcome of the ended operation to its completion, and begins the next call.
void LossyGroup::settle(Nanos now, bool without_reports) {
  auto& operation = current();
  auto status = operation.status();
  auto& report = call_.completion->report;
  report = {};
  report.operation = name(call_.request.collective);
  report.number = op_;
  report.schedule = "two_step";
  report.world_size = report.contributors = world();
  report.codec = call_.codec;
  report.passes = operation.passes();
  report.saturated = operation.block_counts().saturated;
  report.nonfinite_groups = operation.block_counts().nonfinite_groups;
  report.total_us = (operation.ended() - operation.started()) / microsecond;
  report.transfer_us = report.total_us;
  if (!without_reports) {
    count_bytes(report);
    report.delivery = delivery_report();
    if (status.ok()) learn_deadlines();
    if (status.ok() || status.code() == Code::late) update_delivery();
  }
  for (Rank rank = 0; rank < world(); ++rank) {
    const auto& stream = operation.phase(0).streams[rank];
    if (rank != setup_.datagrams.self && stream.arrivals.ranges() > 0 && stream.arrivals.arrived_count() == 0)
      --report.contributors;
  }
  count_silence(status);
  const auto silent = static_cast<Rank>(std::max_element(silent_.begin(), silent_.end()) - silent_.begin());
  if (!status.ok()) {
    const bool gone = status.code() == Code::late && silent_[silent] >= silent_operations_max;
    const auto text = gone ? concat("rank ", silent, " (", location(silent), ") was silent for ", silent_[silent],
                                    " successive operations; call reform()")
                           : status.message();
    if (!without_reports)
      status = {gone ? Code::peer_lost : status.code(), concat(name(call_.request.collective), " ", op_, ": ", text)};
  }
  if (status.ok()) {
    auto& past = past_calls_[op_ % past_calls_.size()];
    past.call = own_call_;  // does not allocate if the texts have about one length
    past.known = true;
  }
  running_ = false;
  // If this rank fell behind, it continues with the newest operation of the other ranks.
  op_ += std::max(1u, operation.behind());
  end(std::move(call_), std::move(status));
  call_ = {};
  if (!without_reports) start_next(now);
}

}  // namespace unisono
