#include "engine/operations/operation_table.h"

#include <algorithm>
#include <utility>

#include "base/concat.h"

namespace unisono {

Report ActiveOperation::report(Nanos now) const {
  auto report = operation.report(now);
  report.compute_us = compute / microsecond;
  report.encode_us = encoding / microsecond;
  report.sum_us = summing / microsecond;
  report.decode_us = decoding / microsecond;
  report.delivery = delivery;
  report.link_note = link_note;
  // Computation during one event takes no time on the event clock, so compute_us can exceed total_us.
  report.total_us = std::max<int64_t>(report.total_us, report.compute_us);
  report.transfer_us = std::max<int64_t>(0, report.total_us - report.wait_us - report.compute_us);
  return report;
}

ActiveOperation& OperationTable::take() {
  if (free_slots_.empty()) {
    slots_.push_back(std::make_unique<ActiveOperation>(resources_, static_cast<uint32_t>(slots_.size())));
    return *slots_.back();
  }
  const auto slot = free_slots_.back();
  free_slots_.pop_back();
  return *slots_[slot];
}

void OperationTable::begin(ActiveOperation& active) {
  running_.push_back(&active);
  active.link_note.clear();
  resources_.compute.in_flight(in_flight_bytes_ += active.memory_bytes);
}

void OperationTable::note_link(PeerIndex peer, const std::string& what) {
  constexpr size_t note_bytes_max = 400;
  for (auto* active : running_) {
    const auto rank = active->group->rank_of(peer);
    auto& note = active->link_note;
    if (rank < 0 || note.size() > note_bytes_max) continue;
    note += concat(note.empty() ? "" : "; ", "rank ", rank, " (", resources_.peers[peer].label, "): ", what);
  }
}

void OperationTable::end(ActiveOperation& active) {
  std::erase(running_, &active);
  resources_.compute.in_flight(in_flight_bytes_ -= active.memory_bytes);
  ++active.generation;
  free_slots_.push_back(active.slot);
}

void OperationTable::abandon_all() {
  running_.clear();
  in_flight_bytes_ = 0;
}

ActiveOperation* OperationTable::find(uint32_t group, uint64_t operation, PeerIndex from) const {
  for (auto* active : running_) {
    if (active->group->number == group && active->concerns(operation, from)) return active;
  }
  return nullptr;
}

ActiveOperation* OperationTable::of_event(uint64_t id) const {
  const auto slot = static_cast<uint32_t>(id >> 48);
  if (slot >= slots_.size()) return nullptr;
  auto& active = *slots_[slot];
  return (active.generation & 0xFFFF) != (id >> 32 & 0xFFFF) || active.completion == nullptr ? nullptr : &active;
}

ActiveOperation* OperationTable::next_in_order(const GroupCore& group) const {
  const auto next =
      std::ranges::find_if(running_, [&](const auto* active) { return active->group == &group && active->in_order(); });
  return next == running_.end() ? nullptr : *next;
}

const ActiveOperation* OperationTable::of(const Completion& completion) const {
  const auto found =
      std::ranges::find_if(running_, [&](const auto* active) { return active->completion.get() == &completion; });
  return found == running_.end() ? nullptr : *found;
}

std::shared_ptr<Completion> OperationTable::take_completion() {
  if (completions_.empty()) return std::make_shared<Completion>();
  auto completion = std::move(completions_.back());
  completions_.pop_back();
  *completion = {};
  return completion;
}

void OperationTable::reuse(std::shared_ptr<Completion> completion) {
  if (completion.use_count() == 1 && completions_.size() < completions_kept) completions_.push_back(std::move(completion));
}

}  // namespace unisono
