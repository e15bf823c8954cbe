// The order of lossy operations, datagrams that come before their operation, and what deadlines learn.
#include "node/lossy_group.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace unisono {

Result<std::unique_ptr<LossyGroup>> LossyGroup::make(DatagramService& service, LossyGroupSetup setup) {
  auto group = std::unique_ptr<LossyGroup>(new LossyGroup(service, std::move(setup)));
  group->newest_.assign(group->world(), 0);
  group->silent_.assign(group->world(), 0);
  group->lost_.resize(group->world());
  group->heard_calls_.resize(group->world());
  if (Status status = service.open_group(group->setup_.number, group->setup_.datagrams, group->setup_.peers, *group); !status.ok()) return status;
  return group;
}

LossyGroup::~LossyGroup() {
  for (auto& operation : operations_) operation.drop_streams();
  service_.close_group(setup_.number);
}

void LossyGroup::end(Call&& call, Status status) {
  auto completion = std::move(call.completion);
  completion->status = std::move(status);
  completion->done = true;
}

void LossyGroup::submit(OperationRequest&& request, std::shared_ptr<Completion> completion, Nanos now) {
  Call call{.request = std::move(request), .completion = std::move(completion), .submitted = now};
  call.completion->report.operation = name(call.request.collective);
  if (waiting_.size() >= waiting_max) {
    return end(std::move(call), {Code::unavailable, std::to_string(waiting_.size()) + " lossy operations wait already, the limit"});
  }
  waiting_.push_back(std::move(call));
  if (!running_) start_next(now);
}

Result<RangeGeometry> LossyGroup::geometry_for(const OperationRequest& request) const {
  const auto elements = request.collective == Collective::all_reduce ? request.count : request.count * world();
  return RangeGeometry::make({.elements = elements,
                              .world = world(),
                              .datagram_bytes = setup_.datagram_bytes,
                              .codec = wire_codec(request.codec->reduce, request.dtype, request.dtype, false)});
}

LossyGroup::Learnt& LossyGroup::learnt_for(const OperationRequest& request, size_t bytes) {
  const auto size_class = static_cast<uint64_t>(std::bit_width(std::max<size_t>(bytes, 1) - 1));
  const auto key = size_class << 8 | static_cast<uint64_t>(request.collective);
  const auto it = learnt_by_size_.find(key);
  if (it != learnt_by_size_.end()) return it->second;
  const Deadline deadline({.fixed = request.lossy.deadline.count() * microsecond, .hard_max = request.lossy.deadline_max.count() * microsecond, .loss_budget = request.lossy.loss_budget});
  Learnt learnt{.deadlines = {deadline, deadline}, .announced = {}};
  for (auto& ranks : learnt.announced) ranks.assign(world(), 0);
  return learnt_by_size_.emplace(key, std::move(learnt)).first->second;
}

LossyPhaseSetup LossyGroup::phase_setup(uint32_t phase, const OperationRequest& request) const {
  const auto& deadline = learnt_->deadlines[phase];
  const auto hard_max = request.lossy.deadline_max.count() * microsecond;
  const bool is_result = phase == 1 && request.collective == Collective::all_reduce;
  const bool completes = is_result || request.lossy.loss_budget <= 0 || deadline.learning();
  const auto hard = agreed_deadline(learnt_->announced[phase], deadline.hard());
  const auto soft = deadline.soft(hard);
  LossyPhaseSetup setup{.limits = {.soft = soft, .hard = hard, .grace = Deadline::grace(soft)}, .completes = completes};
  if (completes) setup.limits.soft = setup.limits.hard = hard_max;
  return setup;
}

void LossyGroup::start_next(Nanos now) {
  while (!running_ && !waiting_.empty()) {
    auto call = std::move(waiting_.front());
    waiting_.pop_front();
    const auto geometry = geometry_for(call.request);
    if (!geometry) {
      end(std::move(call), geometry.status());
      continue;
    }
    const auto staging = uint64_t{world() - 1} * geometry->shard_bytes(0);  // of the largest shard: so all ranks refuse alike
    if (staging > call.request.lossy.staging_bytes_max) {
      const auto limit = call.request.lossy.staging_bytes_max;
      end(std::move(call), {Code::invalid, "contributions of " + std::to_string(staging) + " bytes would wait here, more than staging=" + std::to_string(limit)});
      continue;
    }
    begin(std::move(call), *geometry, now);
  }
}

void LossyGroup::begin(Call&& call, const RangeGeometry& geometry, Nanos now) {
  // Others may be ahead, where this rank was away: it joins the newest operation that at least half of them have reached.
  if (const auto behind = operations_behind(); behind >= 2) op_ += behind;
  call_ = std::move(call);
  running_ = true;
  const auto& request = call_.request;
  learnt_ = &learnt_for(request, geometry.cut().codec.message_bytes(geometry.cut().elements));
  auto& operation = current();
  operation.drop_streams();  // of three operations ago
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
  setup.on_empty = request.lossy.on_empty == OnEmpty::automatic ? (request.collective == Collective::all_reduce ? OnEmpty::own : OnEmpty::hold) : request.lossy.on_empty;
  setup.own_exact = request.codec->own_exact;
  setup.loss_budget = request.lossy.loss_budget;
  for (uint32_t phase = 0; phase < lossy_phases; ++phase) setup.phases[phase] = phase_setup(phase, request);
  // A rank to which nothing is sent never learns, and has no say.
  setup.announced = request.collective != Collective::all_gather && geometry.ranges(setup_.datagrams.self) == 0 ? 0 : learnt_->deadlines[request.collective == Collective::all_gather ? 1 : 0].hard();
  setup.deadline = call_.submitted + request.timeout;
  tell_call();
  operation.start(*this, now);
  for (Rank rank = 0; rank < world(); ++rank) {
    if (!lost_[rank].ok()) operation.peer_lost(rank, lost_[rank], now);
  }
  for (Rank rank = 0; rank < world(); ++rank) compare_call(rank, now);
  replay(early_[op_ & 1], now);
}

// Datagrams say nothing about what they are of; so ranks say when they call something else than before.
void LossyGroup::tell_call() {
  const auto call = describe(call_.request, ScheduleKind::two_step, setup_.datagram_bytes);
  const bool is_new = !told_ || call.bits != own_call_.bits || call.amount != own_call_.amount;
  own_call_ = call;
  told_ = true;
  if (!is_new || !setup_.tell) return;
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
  // It may not know yet: what this rank calls is what it called before.
  if (setup_.tell && lost_[from].ok()) setup_.tell(from, op_, own_call_);
  current().fail({Code::invalid, "calls differ: rank " + std::to_string(from) + " (" + place(from) + ") " + difference(heard.call, own_call_)}, now);
}

void LossyGroup::replay(EarlyStore& store, Nanos now) {
  if (store.op == op_) {
    for (const auto& early : store.datagrams) {
      if (!running_ || current().done()) break;
      const std::span<const std::byte> payload(store.payloads.data() + early.at, early.header.payload_bytes);
      if (early.header.kind == DatagramKind::end) current().end_seen(early.from, early.header, now);
      else current().data(early.from, early.header, payload, now);
    }
  }
  store.datagrams.clear();
  store.payloads.clear();
  current().wake(now);
}

DatagramFault LossyGroup::keep_early(Rank from, const DatagramHeader& header, std::span<const std::byte> payload) {
  auto& store = early_[header.op & 1];
  if (store.op != header.op) {
    store.op = header.op;
    store.datagrams.clear();
    store.payloads.clear();
  }
  if (store.payloads.size() + payload.size() + store.datagrams.size() * sizeof(Early) > early_bytes_max) {
    ++early_dropped_;
    return DatagramFault::late;
  }
  store.datagrams.push_back({from, header, store.payloads.size()});
  store.payloads.insert(store.payloads.end(), payload.begin(), payload.end());
  return DatagramFault::none;
}

DatagramFault LossyGroup::datagram(uint32_t, Rank from, const DatagramHeader& header, std::span<const std::byte> payload, Nanos now) {
  note_newest(from, header.op);
  const auto distance = op_distance(header.op, op_);
  if (distance < 0) {
    // What has ended here is not wanted any more; the sender may not have heard that.
    if (header.kind == DatagramKind::end) ask(from, {header.op, header.phase}, 0, 0, {});
    return DatagramFault::op_old;
  }
  if (distance > 1) return DatagramFault::op_ahead;
  if (distance == 1 || !running_) return keep_early(from, header, payload);
  auto fault = DatagramFault::none;
  if (header.kind == DatagramKind::end) {
    current().end_seen(from, header, now);
  } else {
    fault = current().data(from, header, payload, now);
  }
  if (header.phase < lossy_phases && header.deadline_us > 0) learnt_->announced[header.phase][from] = header.deadline_us * microsecond;
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
  bool progress = false;
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

Nanos LossyGroup::next_deadline() const { return running_ ? current().due() : never; }

void LossyGroup::peer_lost(Rank rank, const Status& why, Nanos now) {
  lost_[rank] = why;
  if (running_) current().peer_lost(rank, why, now);
}

bool LossyGroup::owes() const {
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

void LossyGroup::fail_all(const Status& why, Nanos now) {
  if (running_) {
    current().fail(why, now);
    settle(now);
  }
  while (!waiting_.empty()) {
    auto call = std::move(waiting_.front());
    waiting_.pop_front();
    end(std::move(call), why);
  }
}

// The operation is over: what it says goes to whoever waits, and the next one begins.
void LossyGroup::settle(Nanos now) {
  auto& operation = current();
  auto status = operation.status();
  auto& report = call_.completion->report;
  report = {};
  report.operation = name(call_.request.collective);
  report.number = op_;
  report.schedule = "two_step";
  report.world_size = report.contributors = world();
  report.total_us = (operation.ended() - operation.started()) / microsecond;
  report.transfer_us = report.total_us;
  report.delivery = delivery_report();
  if (status.ok()) learn();
  Rank silent = world();
  for (Rank rank = 0; rank < world(); ++rank) {
    if (rank == setup_.datagrams.self) continue;
    // Who had nothing to send to this rank was not silent.
    bool heard = false, awaited = false;
    for (uint32_t number = 0; number < lossy_phases; ++number) {
      const auto& stream = operation.phase(number).streams[rank];
      if (!operation.phase(number).runs || stream.arrivals.ranges() == 0) continue;
      awaited = true;
      heard |= stream.clock.heard() || stream.arrivals.arrived_count() > 0;
    }
    if (!awaited) continue;
    silent_[rank] = heard ? 0 : silent_[rank] + 1;
    if (!heard) --report.contributors;
    if (silent_[rank] >= silent_operations_max && silent == world()) silent = rank;
  }
  if (silent < world()) {
    status = {Code::peer_lost, std::string(name(call_.request.collective)) + " " + std::to_string(op_) + ": rank " + std::to_string(silent) + " (" + place(silent) + ") was silent for " +
                                   std::to_string(silent_[silent]) + " operations in a row"};
  } else if (!status.ok()) {
    status = {status.code(), std::string(name(call_.request.collective)) + " " + std::to_string(op_) + ": " + status.message()};
  }
  running_ = false;
  ++op_;
  end(std::move(call_), std::move(status));
  call_ = {};
  start_next(now);
}

void LossyGroup::learn() {
  const auto& operation = current();
  for (uint32_t number = 0; number < lossy_phases; ++number) {
    const auto& phase = operation.phase(number);
    if (!phase.runs) continue;
    auto& deadline = learnt_->deadlines[number];
    const auto& limits = operation.setup().phases[number].limits;
    PhaseOutcome outcome{.duration = phase.close - phase.start, .hard = limits.hard};
    uint64_t expected = 0, missing = 0;
    for (Rank from = 0; from < world(); ++from) {
      if (from == setup_.datagrams.self) continue;
      const auto& stream = phase.streams[from];
      expected += stream.arrivals.ranges();
      missing += stream.missing + stream.repaired;
      const auto end = stream.clock.end();
      outcome.silent_peer |= end == StreamEnd::silent;
      outcome.cut_by_hard |= end == StreamEnd::hard;
      if (!stream.clock.heard() || stream.arrivals.ranges() == 0) continue;
      if (end == StreamEnd::hard) outcome.cut_missing = std::max(outcome.cut_missing, stream.arrivals.missing_fraction());
      if (const auto cut = stream.clock.cut_by(); cut > 0) deadline.stream_cut(cut);
      else deadline.stream_ended(stream.clock.last() - stream.clock.first());
    }
    outcome.missing_fraction = expected == 0 ? 0 : static_cast<double>(missing) / static_cast<double>(expected);
    deadline.phase_ended(outcome);
  }
}

// What deadlines cut short, for people.
Status LossyGroup::outcome() const {
  std::string text;
  for (uint32_t number = 0; number < lossy_phases; ++number) {
    const auto& phase = current().phase(number);
    if (!phase.runs) continue;
    for (Rank from = 0; from < world(); ++from) {
      if (from == setup_.datagrams.self) continue;
      const auto& stream = phase.streams[from];
      const bool whole = stream.arrivals.ranges() > 0 && stream.missing == stream.arrivals.ranges();
      if (stream.missing == 0 || (stream.clock.end() != StreamEnd::hard && stream.clock.end() != StreamEnd::silent && !whole)) continue;
      if (!text.empty()) text += "; ";
      text += std::string(number == 0 ? "contributions" : "results") + " of rank " + std::to_string(from) + " (" + place(from) + "): " + std::to_string(stream.missing) + " of " +
              std::to_string(stream.arrivals.ranges()) + " ranges missing after " + std::to_string((phase.close - phase.start) / microsecond) + " us (" + name(stream.clock.end()) + ")";
    }
  }
  if (text.empty()) return {};
  return {Code::late, text};
}

std::shared_ptr<const DeliveryReport> LossyGroup::delivery_report() const {
  const auto& operation = current();
  auto report = std::make_shared<DeliveryReport>();
  for (uint32_t number = 0; number < lossy_phases; ++number) {
    const auto& phase = operation.phase(number);
    auto& out = number == 0 ? report->contribute : report->result;
    out.ran = phase.runs;
    if (!phase.runs) continue;
    const auto& setup = operation.setup().phases[number];
    out.learning = learnt_->deadlines[number].learning();
    out.duration_us = (std::max(phase.close, phase.start) - phase.start) / microsecond;
    out.soft_us = setup.limits.soft / microsecond;
    out.hard_us = setup.limits.hard / microsecond;
    out.streams.resize(world());
    for (Rank from = 0; from < world(); ++from) {
      if (from == setup_.datagrams.self) continue;
      const auto& stream = phase.streams[from];
      out.streams[from] = {.expected = stream.arrivals.ranges(),
                           .missing = stream.missing,
                           .repaired = stream.repaired,
                           .duplicate = stream.duplicate,
                           .late = stream.late,
                           .end = stream.lost ? DeliveryReport::End::lost : static_cast<DeliveryReport::End>(stream.clock.end())};
      if (number == 1) report->stale_ranges += stream.missing;
    }
  }
  const auto& counts = operation.range_counts();
  report->full_ranges = counts.full;
  report->short_ranges = counts.reduced;
  report->empty_ranges = counts.empty;
  report->effective_contributors = operation.effective_contributors();
  report->behind = operation.behind();
  report->outcome = outcome();
  return report;
}

}  // namespace unisono
