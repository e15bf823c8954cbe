// Writes what operations do into their groups' records (record/layout.h), where a group keeps one.
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

  // Once for each group, so that nothing below needs memory.
  void reserve(const GroupCore& group);
  // is_counted: the fast path has counted the operation already.
  void begun(const ActiveOperation& active, bool is_counted, Nanos started);
  void ended(const ActiveOperation& active);
  // How far each operation is. Due every 10 ms.
  void observe(const OperationTable& operations, Nanos now);
  bool is_due(Nanos now) const { return now >= observe_at_; }
  // Before a thread sleeps, which may be for long: at most once a millisecond, because some links make it sleep much more
  // often.
  bool is_due_before_sleep(Nanos now) const { return now - observe_at_ >= millisecond - observe_every; }

 private:
  static constexpr Nanos observe_every = 10 * millisecond;

  const PeerTable& peers_;
  Nanos observe_at_ = 0;
  std::vector<Rank> pending_;  // of observe() and ended(), which use their memory again
  std::vector<record::Moved> moved_;
};

}  // namespace unisono
