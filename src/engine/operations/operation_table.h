// The table of operations: those that run, in the order in which they began, and the slots that they run in.
//
// A slot is used again when its operation has ended, so that an operation that is like an earlier one needs no memory. Its
// generation goes up then: an event that comes late for the earlier operation finds nothing. The engine owns the table; the
// table owns the operations, and keeps completions that nobody else has for the next ones.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/operations/active_operation.h"

namespace unisono {

class OperationTable {
 public:
  explicit OperationTable(const OperationResources& resources) : resources_(resources) {}

  // A slot whose operation does not run yet. Call begin() before the next take().
  ActiveOperation& take();
  // From now on the operation runs. memory_bytes is set.
  void begin(ActiveOperation& active);
  // The operation has ended: its slot may be taken again.
  void end(ActiveOperation& active);
  // Forgets all that run, and their slots for good: events may still come for them.
  void abandon_all();

  const std::vector<ActiveOperation*>& running() const { return running_; }  // the oldest first
  bool empty() const { return running_.empty(); }
  size_t size() const { return running_.size(); }
  uint64_t in_flight_bytes() const { return in_flight_bytes_; }  // inputs and outputs of all that run

  ActiveOperation* find(uint32_t group, uint64_t operation, PeerIndex from) const;
  // The operation that an event of the transports or of the compute is for; null: it has ended.
  ActiveOperation* of_event(uint64_t id) const;
  // The first of the group's operations that all ranks begin in the same order; null: none runs.
  ActiveOperation* next_in_order(const GroupCore& group) const;
  // null: it does not run.
  const ActiveOperation* of(const Completion& completion) const;

  std::shared_ptr<Completion> take_completion();
  // Keeps the completion of a finished operation if nobody else has it.
  void reuse(std::shared_ptr<Completion> completion);

 private:
  static constexpr size_t completions_kept = 16;

  const OperationResources resources_;
  std::vector<std::unique_ptr<ActiveOperation>> slots_;
  std::vector<uint32_t> free_slots_;
  std::vector<ActiveOperation*> running_;
  std::vector<std::shared_ptr<Completion>> completions_;
  uint64_t in_flight_bytes_ = 0;
};

}  // namespace unisono
