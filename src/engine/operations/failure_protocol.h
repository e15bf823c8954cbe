// Messages between members about operations that end early: failed operations, aborted groups, and, at a deadline, the question
// which rank each member waits for.
//
// The object keeps in each group which members have aborted and the latest failure elsewhere, and ends operations when a
// message says so. It does not end what needs an absent rank: the engine does, as it knows the lossy operations too. Owned by
// the engine.
#pragma once

#include <optional>

#include "base/bytes.h"
#include "engine/control_messages.h"
#include "engine/engine_limits.h"
#include "engine/operations/active_operation.h"
#include "unisono/status.h"

namespace unisono {

inline constexpr size_t failure_text_max = 4096;  // of the reason in a failed frame
Bytes failure_payload(const Status& status);      // of a failed frame

class FailureProtocol {
 public:
  FailureProtocol(PeerTable& peers, ControlMessages& control, EngineCounters& counters)
      : peers_(peers), control_(control), counters_(counters) {}

  // The operation has failed here, for a reason that the members do not know.
  void notify_failed(const ActiveOperation& active);
  // The operation is late here: asks its members for which ranks each of them waits.
  void inquire(const ActiveOperation& active);
  // A member says that the operation failed there, which ends it here too, or makes or answers an inquiry.
  void on_failed(ActiveOperation& active, Rank from, ByteView payload, Nanos now);

  // Rank `aborted` has aborted the group: notifies all others.
  void notify_abort(const GroupCore& group, Rank aborted, const Status& why);
  // A member says that a rank has aborted. Names the rank if it said so itself: nothing more comes from it. It is passed on
  // once, so that all know the reason when the links of that rank end; nothing ends by such hearsay, because frames that the
  // rank sent before may still be on their way.
  std::optional<Rank> on_abort(GroupCore& group, PeerIndex from, const FrameHeader& header, ByteView payload);

  // A frame for an operation that has ended here: it may show that calls differ, or that the operation failed elsewhere.
  static void on_ended(GroupCore& group, PeerIndex from, const FrameHeader& header, ByteView payload);

  // Why nothing comes from this rank any more; ok: it has not aborted the group, and the link to it stands.
  const Status& absence(const GroupCore& group, Rank rank) const;

 private:
  void notify_members(const ActiveOperation& active, Bytes payload);
  void notify(const GroupCore& group, Rank rank, FrameHeader header, const std::shared_ptr<Bytes>& payload);

  PeerTable& peers_;
  ControlMessages& control_;
  EngineCounters& counters_;
};

}  // namespace unisono
