// Which of the engine's groups can have lossy operations, and how these run beside the reliable ones. Connects each
// LossyGroup to the group's links, to the control messages, and to the table of operations. The engine owns it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>

#include "base/bytes.h"
#include "engine/control_messages.h"
#include "engine/engine_limits.h"
#include "engine/group_core.h"
#include "engine/operations/operation_table.h"
#include "engine/peer_table.h"

namespace unisono {

using GroupTable = std::unordered_map<uint32_t, std::unique_ptr<GroupCore>>;  // by number

class LossyGroups {
 public:
  // Ends a reliable operation, and its members are notified: calls were seen to differ.
  using Fail = std::function<void(ActiveOperation& active, const Status& why)>;
  struct Parts {
    const GroupTable& groups;
    PeerTable& peers;
    ControlMessages& control;
    const OperationTable& operations;
    EngineCounters& counters;
  };
  LossyGroups(const Parts& parts, Fail fail) : parts_(parts), fail_(std::move(fail)) {}

  // Groups that are opened from now on have lossy operations if all their links carry datagrams.
  void set_secret(const std::optional<DatagramSecret>& secret) { secret_ = secret; }
  void open(GroupCore& group) const;
  void on_frame(PeerIndex from, const FrameHeader& header, ByteView payload, Nanos now) const;
  // True if something ended.
  bool step(Nanos now) const;
  Nanos next_deadline() const;
  // Members of a group that still runs may yet ask for what this rank sent.
  bool has_pending() const;
  size_t active() const;

 private:
  DatagramService* service_of(GroupCore& group) const;

  const Parts parts_;
  const Fail fail_;
  std::optional<DatagramSecret> secret_;
};

}  // namespace unisono
