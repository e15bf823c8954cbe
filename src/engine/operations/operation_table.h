// The table of operations. It has the running operations, in the order in which they began, and the slots that hold them.
//
// Slots are used again, so that a further operation of the same kind allocates nothing. Each use of a slot has its own
// generation, so that late events of an earlier operation are ignored. The engine owns the table. The table owns the
// operations, and recycles completions that the caller has released.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/operations/active_operation.h"

namespace unisono {

class OperationTable {
 public:
  explicit OperationTable(const OperationResources& resources) : resources_(resources) {}

  // Returns a free slot. Call begin() before the next take().
  ActiveOperation& take();
  // Adds the operation to running(). memory_bytes must be set.
  void begin(ActiveOperation& active);
  // Removes an ended operation from running() and frees its slot.
  void end(ActiveOperation& active);
  // Adds what happened to the link to a peer to the reports of the running operations of its groups.
  void note_link(PeerIndex peer, const std::string& what);
  // Removes all running operations. Their slots are never used again, because events for them may still arrive.
  void abandon_all();

  const std::vector<ActiveOperation*>& running() const { return running_; }  // in the order of their start; the oldest is first
  bool empty() const { return running_.empty(); }
  size_t size() const { return running_.size(); }
  uint64_t in_flight_bytes() const { return in_flight_bytes_; }  // size of the inputs and outputs of all running operations

  ActiveOperation* find(uint32_t group, uint64_t operation, PeerIndex from) const;
  // Returns the operation to which an event of a transport or a computation belongs. Returns null if the operation has ended.
  ActiveOperation* of_event(uint64_t id) const;
  // Returns the oldest running operation of the group that is numbered by the order of calls. Returns null if there is none.
  ActiveOperation* next_in_order(const GroupCore& group) const;
  // Returns the running operation of this completion. Returns null if the operation has ended.
  const ActiveOperation* of(const Completion& completion) const;

  std::shared_ptr<Completion> take_completion();
  // Recycles the completion of a finished operation, unless another reference to it exists.
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
