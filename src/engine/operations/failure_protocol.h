// The messages with which members tell each other about operations that end early: failed operations, aborted groups, and
// inquiries. At the deadline of an operation, a rank sends an inquiry to each member, to find out for which rank it waits.
//
// For each group, this object records which members have aborted it, and which operation failed last on another member. It ends
// an operation when a message says so. If an operation needs an absent rank, the engine itself ends it, because the engine also
// knows the lossy operations. The engine owns this object.
#pragma once

#include <optional>
#include <string>

#include "base/bytes.h"
#include "engine/control_messages.h"
#include "engine/engine_limits.h"
#include "engine/operations/active_operation.h"
#include "unisono/status.h"

namespace unisono {

inline constexpr size_t failure_text_max = 4096;  // the reason in a failed frame has at most this many bytes
// Behind the text of a failed frame with the code invalid, this byte says that the text is the sender's call.
inline constexpr uint8_t text_is_a_call = 1;
Bytes failure_payload(const Status& status);  // makes the payload of a failed frame

class FailureProtocol {
 public:
  FailureProtocol(PeerTable& peers, ControlMessages& control, EngineCounters& counters)
      : peers_(peers), control_(control), counters_(counters) {}

  // Notifies the members that the operation has failed on this rank.
  void notify_failed(const ActiveOperation& active);
  // Call it when the operation is past its deadline on this rank. Asks the members for which ranks they wait.
  void inquire(const ActiveOperation& active);
  // Call it when a member makes another call than this rank, and when a member has sent the text of its call. Sends the text of
  // this rank's call to the members.
  void describe(const ActiveOperation& active);
  // Handles a frame of kind `failed`. Such a frame is an inquiry, the answer to an inquiry, the text of a member's call, or the
  // report of a failure on a member. A failure also ends the operation on this rank.
  void on_failed(ActiveOperation& active, Rank from, ByteView payload, Nanos now);

  // Notifies all other members that rank `aborted` has aborted the group.
  void notify_abort(const GroupCore& group, Rank aborted, const Status& why);
  // Handles a message about a rank that has aborted the group. If that rank itself sent the message, nothing more comes from
  // it, and its rank is returned. The message is forwarded once, so that all members know the reason when the links of that
  // rank close. A forwarded message ends no operation, because earlier frames of that rank may still be on their way.
  std::optional<Rank> on_abort(GroupCore& group, PeerIndex from, const FrameHeader& header, ByteView payload);

  // Handles a frame for an operation that has ended here. Such a frame may show that ranks make different calls, or that the
  // operation has failed on another member.
  void on_ended(GroupCore& group, PeerIndex from, const FrameHeader& header, ByteView payload, Nanos now);

  // Returns why no more messages come from this rank: it has aborted the group, or its link is down. Returns ok if neither is
  // the case.
  const Status& absence(const GroupCore& group, Rank rank) const;

 private:
  void on_inquiry(ActiveOperation& active, Rank from, ByteReader& reader, Nanos now);
  void on_call_text(ActiveOperation& active, Rank from, const std::string& text, ByteReader& reader, Nanos now);
  // Keeps what a member reported last. If its link ends soon after, errors about the loss say so: the member may have left
  // because of a third rank.
  void note_report(const GroupCore& group, Rank from, const std::string& text, Nanos now);
  void notify_members(const ActiveOperation& active, Bytes payload);
  void notify(const GroupCore& group, Rank rank, FrameHeader header, const std::shared_ptr<Bytes>& payload);

  PeerTable& peers_;
  ControlMessages& control_;
  EngineCounters& counters_;
};

}  // namespace unisono
