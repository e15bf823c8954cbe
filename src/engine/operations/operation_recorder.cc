#include "engine/operations/operation_recorder.h"

#include <algorithm>

#include "executor/request.h"

namespace unisono {
namespace {

record::Phase phase_of(Progress::Phase phase) {
  switch (phase) {
    case Progress::Phase::contributions: return record::Phase::contributions;
    case Progress::Phase::results: return record::Phase::results;
    case Progress::Phase::sending: return record::Phase::sending;
    case Progress::Phase::working: break;
  }
  return record::Phase::working;
}

record::Kind kind_of(const OperationSetup& setup) {
  const auto& request = setup.request;
  return {.collective = static_cast<uint8_t>(request.collective),
          .dtype = static_cast<uint8_t>(request.dtype),
          .reduce_op = static_cast<uint8_t>(request.op),
          .schedule = static_cast<uint8_t>(setup.plan->kind),
          .root = request.root};
}

uint8_t numbering_of(uint64_t number) {
  const auto numbering = (number & message_id_bit) != 0 ? record::Numbering::message
                         : (number & user_id_bit) != 0  ? record::Numbering::by_caller
                                                        : record::Numbering::by_order;
  return static_cast<uint8_t>(numbering);
}

record::RunningEntry running_entry_of(const OperationSetup& setup, uint64_t number, Nanos started) {
  record::RunningEntry shown{};
  shown.number = setup.number;
  shown.bytes = tensor_bytes(setup.request, setup.world, setup.self);
  shown.started = shown.progress = started;
  shown.kind = kind_of(setup);
  shown.numbering = numbering_of(number);
  return shown;
}

}  // namespace

void OperationRecorder::reserve(const GroupCore& group) {
  pending_.reserve(pending_listed_max);
  moved_.reserve(group.world());
}

void OperationRecorder::begun(const ActiveOperation& active, bool is_counted, Nanos started) {
  if (active.group->record == nullptr) return;
  auto& record = *active.group->record;
  if (!is_counted) record.begun();
  record.show(running_entry_of(active.operation.setup(), active.number, started));
}

void OperationRecorder::observe(const OperationTable& operations, Nanos now) {
  observe_at_ = now + observe_every;
  for (const auto* active : operations.running()) {
    if (active->group->record == nullptr || active->operation.done()) continue;
    const auto& operation = active->operation;
    const auto progress = operation.progress(pending_);
    auto shown = running_entry_of(operation.setup(), active->number, operation.times().started);
    shown.progress = std::max(progress.since, shown.started);
    shown.sent_bytes = progress.sent_bytes;
    shown.sent_total = progress.sent_total;
    shown.received_bytes = progress.received_bytes;
    shown.received_total = progress.received_total;
    shown.phase = static_cast<uint8_t>(phase_of(progress.phase));
    shown.round = static_cast<uint16_t>(progress.round);
    shown.pending_count = static_cast<uint32_t>(pending_.size());
    std::copy_n(pending_.begin(), std::min<size_t>(pending_.size(), record::pending_max), shown.pending);
    active->group->record->show(shown);
  }
}

void OperationRecorder::ended(const ActiveOperation& active) {
  if (active.group->record == nullptr) return;
  const auto& operation = active.operation;
  const auto times = operation.times();
  const bool ok = operation.status().ok();
  auto pending = operation.last_rank() == UINT32_MAX ? -1 : static_cast<int32_t>(operation.last_rank());
  if (!ok && operation.is_prepared()) {
    operation.progress(pending_);
    const auto lost = std::find_if(pending_.begin(), pending_.end(),
                                   [&](Rank rank) { return !peers_[active.group->members[rank]].lost.ok(); });
    if (!pending_.empty()) pending = static_cast<int32_t>(lost == pending_.end() ? pending_.front() : *lost);
  }
  moved_.clear();
  for (const auto rank : operation.setup().plan->partners) {
    if (!operation.is_prepared()) break;
    const auto& flow = operation.flow(rank);
    moved_.push_back({.rank = rank,
                      .sent_bytes = flow.send_used + flow.sent_messages * sizeof(FrameHeader),
                      .sent_messages = flow.sent_messages,
                      .received_bytes = flow.recv_arrived + flow.received_messages * sizeof(FrameHeader),
                      .received_messages = flow.received_messages});
  }
  const record::Entry entry{.number = operation.setup().number,
                            .bytes = tensor_bytes(operation.setup().request, operation.setup().world, operation.setup().self),
                            .started = times.started,
                            .first_send = times.first_send,
                            .last_receive = times.last_receive,
                            .ended = times.ended,
                            .kind = kind_of(operation.setup()),
                            .code = static_cast<uint8_t>(operation.status().code()),
                            .numbering = numbering_of(active.number),
                            .reserved = 0,
                            .pending = pending};
  active.group->record->ended(entry, (ok ? times.last_first_arrival : times.ended) - times.started, moved_);
}

}  // namespace unisono
