// Writes the progress of operations into the records of their groups (record/layout.h). Groups without a record are skipped.
#pragma once

#include <vector>

#include "base/clock.h"
#include "engine/operations/operation_table.h"
#include "engine/peer_table.h"
#include "record/recorder.h"

namespace unisono {

class OperationRecorder {
 public:
  explicit OperationRecorder(const PeerTable& peers) : peers_(peers) {}

  // Call it once for each group. After that, the functions below allocate nothing.
  void reserve(const GroupCore& group);
  // is_counted: true if the fast path has already counted the operation.
  void begun(const ActiveOperation& active, bool is_counted, Nanos started);
  void ended(const ActiveOperation& active);
  // Records the progress of each operation. Call it every 10 ms.
  void observe(const OperationTable& operations, Nanos now);
  bool is_due(Nanos now) const { return now >= observe_at_; }
  // Returns true if observe() should be called before a thread sleeps. This is at most once per millisecond, because with some
  // links a thread sleeps much more often.
  bool is_due_before_sleep(Nanos now) const { return now - observe_at_ >= millisecond - observe_every; }

 private:
  static constexpr Nanos observe_every = 10 * millisecond;

  const PeerTable& peers_;
  Nanos observe_at_ = 0;
  std::vector<Rank> pending_;  // used by observe() and ended() only; it is a member so that its memory is used again
  std::vector<record::Moved> moved_;
};

}  // namespace unisono
