// One running operation as the engine sees it: the executor's Operation, its group and number, and the caller's Completion.
#pragma once

#include <memory>

#include "engine/control_messages.h"
#include "engine/group_core.h"
#include "engine/operations/operation_port.h"
#include "executor/completion.h"
#include "executor/operation.h"

namespace unisono {

struct ActiveOperation {
  ActiveOperation(const OperationResources& resources, uint32_t index) : slot(index), port(resources, *this) {}
  // Whether a frame from this peer, with this operation number, belongs here. Messages to different ranks may have one number:
  // it is the sender's count for each of them.
  bool concerns(uint64_t wanted, PeerIndex from) const {
    return number == wanted && (!is_message() || group->members[operation.setup().request.root] == from);
  }
  bool is_message() const { return (number & message_id_bit) != 0; }
  bool in_order() const { return is_in_order(number); }
  // The id of the events of its sends and computations.
  uint64_t event(uint32_t lane) const { return event_id(slot, generation, lane); }
  // Takes back all that the transports still have of it.
  void cancel_in(Transport& transport) const { transport.cancel(event(0), 0xFFFFFFFF00000000ull, group->number, number); }
  Report report(Nanos now) const;

  uint32_t slot = 0;
  uint32_t generation = 0;  // of the slot: events of an earlier operation in it are for nobody
  GroupCore* group = nullptr;
  uint64_t number = 0;
  uint64_t memory_bytes = 0;
  Nanos compute = 0, encoding = 0, summing = 0, decoding = 0;  // the last three are in the first
  OperationPort port;
  Operation operation;
  std::shared_ptr<Completion> completion;          // null: the slot is free
  std::shared_ptr<const DeliveryReport> delivery;  // of a call that might have been lossy
};

}  // namespace unisono
