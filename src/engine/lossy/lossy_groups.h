// Decides which groups of an engine can have lossy operations. It connects each LossyGroup to the links, the control messages
// and the table of operations of its group. The engine owns this object.
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

using GroupTable = std::unordered_map<uint32_t, std::unique_ptr<GroupCore>>;  // the key is the number of the group

class LossyGroups {
 public:
  // Ends a reliable operation and notifies its members, because the call differs from that of another rank.
  using Fail = std::function<void(ActiveOperation& active, const Status& why)>;
  struct Parts {
    const GroupTable& groups;
    PeerTable& peers;
    ControlMessages& control;
    const OperationTable& operations;
    EngineCounters& counters;
  };
  LossyGroups(const Parts& parts, Fail fail) : parts_(parts), fail_(std::move(fail)) {}

  // Sets the key for the groups that are opened later. If all links of such a group carry datagrams, it can have lossy
  // operations.
  void set_secret(const std::optional<DatagramSecret>& secret) { secret_ = secret; }
  void open(GroupCore& group) const;
  void on_frame(PeerIndex from, const FrameHeader& header, ByteView payload, Nanos now) const;
  // Advances all groups. Returns true if an operation has ended.
  bool step(Nanos now) const;
  Nanos next_deadline() const;
  // Returns true if members of a running group may still request data from this rank.
  bool has_pending() const;
  size_t active() const;

 private:
  DatagramService* service_of(GroupCore& group) const;

  const Parts parts_;
  const Fail fail_;
  std::optional<DatagramSecret> secret_;
};

}  // namespace unisono
