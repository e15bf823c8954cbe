// The order of lossy operations, their numbers, and datagrams that come before their operation. lossy_group_report.cc has what
// is made of those that have ended.
#include "engine/lossy/lossy_group.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace unisono {

Result<std::unique_ptr<LossyGroup>> LossyGroup::make(DatagramService& service, LossyGroupSetup setup) {
  auto group = std::unique_ptr<LossyGroup>(new LossyGroup(service, std::move(setup)));
  group->newest_.assign(group->world(), 0);
  group->silent_.assign(group->world(), 0);
  group->heard_at_.assign(group->world(), -1);
  group->lost_.resize(group->world());
  group->heard_calls_.resize(group->world());
  group->repaired_before_.assign(group->world(), 0);
  group->told_positions_.assign(group->world(), {});
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
  // The caller's codec is gone when the call begins.
  Call call{.request = std::move(request), .completion = std::move(completion)};
  call.codec = *call.request.codec;
  if (call.request.needed_ranges != nullptr) call.needed = *call.request.needed_ranges;
  call.deadline = now + call.request.timeout;
  call.completion->report.operation = name(call.request.collective);
  if (call.needed.size() > world())
    return end(std::move(call), {Code::invalid, "needed_ranges of " + std::to_string(call.needed.size()) +
                                                    " ranks; there are " + std::to_string(world())});
  if (waiting_.size() >= waiting_max) {
    return end(std::move(call),
               {Code::unavailable, std::to_string(waiting_.size()) + " lossy operations wait already, the limit"});
  }
  // A call without elements takes no number and ends now. The numbers of the others are known then.
  if (call.request.count == 0) return end(std::move(call), {});
  const auto geometry = geometry_for(call.request);
  if (!geometry) return end(std::move(call), geometry.status());
  call.geometry = *geometry;
  if (setup_.reliable.begun) call.reliable_before = setup_.reliable.begun();
  waiting_.push_back(std::move(call));
  waiting_.back().request.codec = &waiting_.back().codec;  // until it begins
  if (!running_) start_next(now);
  judge_kept_positions(now);
}

// invalid: the ranges do not fit into datagrams, or the contributions do not fit into staging memory.
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
  const auto staging = uint64_t{world() - 1} * geometry->shard_bytes(0);  // of the largest shard: so all ranks refuse alike
  const auto limit = request.lossy.staging_bytes_max;
  if (staging > limit)
    return Status(Code::invalid, "contributions of " + std::to_string(staging) +
                                     " bytes would wait here, more than staging=" + std::to_string(limit));
  return geometry;
}

Status LossyGroup::fits(const OperationRequest& request) const {
  return request.count == 0 ? Status() : geometry_for(request).status();
}

LossyGroup::Learnt& LossyGroup::learnt_for(const OperationRequest& request, size_t bytes) {
  const auto key = size_class_of(bytes) << 8 | static_cast<uint64_t>(request.collective);
  const DeadlineSettings settings{.fixed = request.lossy.deadline.count() * microsecond,
                                  .hard_max = request.lossy.deadline_max.count() * microsecond,
                                  .loss_budget = request.lossy.loss_budget};
  const auto it = learnt_by_size_.find(key);
  if (it != learnt_by_size_.end()) {
    // Calls of one size may have different options.
    for (auto& deadline : it->second.deadlines) deadline.set(settings);
    return it->second;
  }
  const Deadline deadline(settings);
  Learnt learnt{.deadlines = {deadline, deadline}, .announced = {}};
  for (auto& ranks : learnt.announced) ranks.assign(world(), 0);
  return learnt_by_size_.emplace(key, std::move(learnt)).first->second;
}

// hard: as agreed by all ranks, which have said what theirs would be.
LossyPhaseSetup LossyGroup::phase_setup(uint32_t phase, const OperationRequest& request, Nanos now) const {
  if (used_ == Delivery::reliable) {
    // Until the call's own deadline, whatever the sender is seen to do.
    const auto left = std::max<Nanos>(call_.deadline - now, 0);
    return {.limits = {.soft = left, .hard = left, .grace = Deadline::grace(left)}, .completes = true};
  }
  const auto& deadline = learnt_->deadlines[phase];
  const auto hard_max = request.lossy.deadline_max.count() * microsecond, fixed = request.lossy.deadline.count() * microsecond;
  auto announced = learnt_->announced[phase];
  announced[setup_.datagrams.self] = deadline.hard();
  const auto hard = std::min(agreed_deadline(announced, deadline.hard()), hard_max);
  const auto soft = deadline.soft(hard);
  // Sums are repaired as long as their owner shows that it lives: values that stay old may be some ranks' only.
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
      ++op_;  // the others have it
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
  learnt_ = &learnt_for(request, geometry.cut().codec.message_bytes(geometry.cut().elements));
  auto& operation = current();
  operation.drop_streams();                                    // of three operations ago
  operations_[(op_ + 1) % operations_.size()].drop_streams();  // of the one before the last: whoever needs it has had its time
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
  // A rank that is late with its contribution may still send results: it is given as long again.
  if (request.collective == Collective::all_reduce)
    setup.phases[1].silent = std::max(setup.phases[0].limits.hard, setup.phases[1].silent);
  setup.needed = std::move(call_.needed);
  setup.needed_hard = request.lossy.deadline.count() > 0 ? request.lossy.deadline.count() * microsecond
                                                         : request.lossy.deadline_max.count() * microsecond;
  // A rank to which nothing is sent in a phase never learns, and has no say.
  setup.announced = {geometry.ranges(setup_.datagrams.self) == 0 ? 0 : learnt_->deadlines[0].hard(),
                     learnt_->deadlines[1].hard()};
  setup.deadline = call_.deadline;
  tell_call();
  operation.start(*this, now);
  // Frames that came early are of an operation that the others have left: they are no basis for this one.
  if (const auto behind = operations_behind(); behind >= 2) {
    operation.fall_behind(behind, now);
    return operation.drop_streams();
  }
  for (Rank rank = 0; rank < world(); ++rank) {
    if (!lost_[rank].ok()) operation.peer_lost(rank, lost_[rank], now);
  }
  for (Rank rank = 0; rank < world(); ++rank) compare_call(rank, now);
  replay(early_[op_ & 1], now);
}

// Datagrams say nothing about what they are of; so ranks say when they call what they have not called lately.
void LossyGroup::tell_call() {
  const auto call = describe(call_.request, ScheduleKind::two_step,
                             setup_.datagram_bytes | uint64_t{call_.request.shard_unit} << 32, world());
  own_call_ = call;
  const auto told = std::span(told_).first(std::min<size_t>(told_count_, told_.size()));
  if (!setup_.tell || std::ranges::any_of(told, [&](const auto& t) { return t.bits == call.bits && t.amount == call.amount; }))
    return;
  told_[told_count_++ % told_.size()] = call;
  for (Rank rank = 0; rank < world(); ++rank) {
    if (rank != setup_.datagrams.self && lost_[rank].ok()) setup_.tell(rank, op_, call);
  }
}

void LossyGroup::heard_call(Rank from, uint32_t op, const CallDescriptor& call, Nanos now) {
  const auto distance = op_distance(op, op_);
  if (from >= world() || distance < 0 || distance > 1) return;
  heard_calls_[from][op & 1] = {.op = op, .call = call, .known = true};
  compare_call(from, now);
}

void LossyGroup::compare_call(Rank from, Nanos now) {
  const auto& heard = heard_calls_[from][op_ & 1];
  if (!running_ || current().done() || !heard.known || heard.op != op_) return;
  if (heard.call.bits == own_call_.bits && heard.call.amount == own_call_.amount) return;
  tell_call_again();
  current().fail({Code::invalid,
                  "calls differ: rank " + std::to_string(from) + " (" + place(from) + ") " + difference(heard.call, own_call_)},
                 now);
}

// Somebody calls something else, and may not know yet what this rank calls, which it has called before.
void LossyGroup::tell_call_again() {
  if (!setup_.tell || told_again_ == op_ + 1) return;
  told_again_ = op_ + 1;
  for (Rank rank = 0; rank < world(); ++rank) {
    if (rank != setup_.datagrams.self && lost_[rank].ok()) setup_.tell(rank, op_, own_call_);
  }
}

void LossyGroup::replay(EarlyStore& store, Nanos now) {
  if (store.op == op_) {
    for (const auto& early : store.datagrams) {
      if (current().done()) break;
      if (early.header.phase < lossy_phases && early.header.deadline_us > 0)
        learnt_->announced[early.header.phase][early.from] = early.header.deadline_us * microsecond;
      const std::span<const std::byte> payload(store.payloads.data() + early.at, early.header.payload_bytes);
      if (early.header.kind == DatagramKind::end) current().end_seen(early.from, early.header, early.came);
      else current().data(early.from, early.header, payload, early.came);
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
    // It is said again and again while this rank does not take part.
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
    if (const auto position = waiting_position()) tell_position(from, *position);
  }
  return DatagramFault::none;
}

DatagramFault LossyGroup::datagram(uint32_t, Rank from, const DatagramHeader& header, std::span<const std::byte> payload,
                                   Nanos now) {
  note_newest(from, header.op);
  heard_at_[from] = std::max(heard_at_[from], now);
  const auto distance = op_distance(header.op, op_);
  if (distance < 0) {
    // The operation has ended here. The sender may not have received the message that says so.
    if (header.kind == DatagramKind::end) ask(from, {header.op, header.phase}, 0, 0, {});
    return DatagramFault::op_old;
  }
  if (distance > 1) return DatagramFault::op_ahead;
  if (distance == 1 || !running_) return keep_early(from, header, payload, now);
  auto fault = DatagramFault::none;
  if (header.phase < lossy_phases && !current().phase(header.phase).runs) tell_call_again();
  if (header.kind == DatagramKind::end) {
    current().end_seen(from, header, now);
  } else {
    fault = current().data(from, header, payload, now);
  }
  if (header.phase < lossy_phases && header.deadline_us > 0)
    learnt_->announced[header.phase][from] = header.deadline_us * microsecond;
  return fault;
}

void LossyGroup::stream_sent(uint32_t, Rank, StreamName) {}

void LossyGroup::note_newest(Rank from, uint32_t op) {
  if (op_distance(op, newest_[from]) > 0) newest_[from] = op;
}

// By how many operations at least half of the others are ahead, if that is at least two.
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

// Calls behind the one that runs: nobody looks at their memory once their time is over.
bool LossyGroup::end_late_waiting(Nanos now) {
  bool any = false;
  for (auto& call : waiting_) {
    if (call.completion == nullptr || now < call.deadline) continue;
    end(std::move(call), {Code::late, std::string(name(call.request.collective)) + " waited for lossy operation " +
                                          std::to_string(op_) + " to end until its own deadline"});
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
        if (service_.stream_wanted(setup_.number, rank, {op_ - back, phase})) return true;
      }
    }
  }
  return false;
}

void LossyGroup::fail_all(const Status& why, Nanos now, bool without_reports) {
  // Waiting calls end first, so that none of them begins.
  for (auto& call : waiting_) end(std::move(call), why);
  waiting_.clear();
  if (!running_) return;
  current().fail(why, now);
  settle(now, without_reports);
}

// The operation is over: moves its outcome to the completion, and begins the next one.
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
  report.total_us = (operation.ended() - operation.started()) / microsecond;
  report.transfer_us = report.total_us;
  if (!without_reports) {
    count_bytes(report);
    report.delivery = delivery_report();
    if (status.ok()) learn();
    if (status.ok() || status.code() == Code::late) judge();
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
    const auto text = gone ? "rank " + std::to_string(silent) + " (" + place(silent) + ") was silent for " +
                                 std::to_string(silent_[silent]) + " operations in a row"
                           : status.message();
    if (!without_reports)
      status = {gone ? Code::peer_lost : status.code(),
                std::string(name(call_.request.collective)) + " " + std::to_string(op_) + ": " + text};
  }
  running_ = false;
  // A rank that was away joins the newest operation of the others.
  op_ += std::max(1u, operation.behind());
  end(std::move(call_), std::move(status));
  call_ = {};
  if (!without_reports) start_next(now);
}

}  // namespace unisono
