// A running operation of the engine. It consists of the executor's Operation, the group and the number, and the caller's
// Completion.
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
  // Returns true if a frame from this peer with the operation number `wanted` belongs to this operation. For messages, the peer
  // matters, too: messages of a rank to several others, and from several others to a rank, may have equal numbers.
  bool concerns(uint64_t wanted, PeerIndex from) const {
    return number == wanted && (!is_message() || group->members[operation.setup().request.root] == from);
  }
  bool is_message() const { return (number & message_id_bit) != 0; }
  bool in_order() const { return is_in_order(number); }
  // Returns the event id of a send or a computation of this operation.
  uint64_t event(uint32_t lane) const { return event_id(slot, generation, lane); }
  // Of an event id: the bits that are equal in all events of one operation.
  static constexpr uint64_t all_lanes = 0xFFFFFFFF00000000ull;
  // Makes the transport drop the pending sends and the receive buffers of this operation.
  void cancel_in(Transport& transport) const {
    Cancellation all{.match = event(0), .mask = all_lanes, .group = group->number, .operation = number};
    if (is_message()) all.from = group->members[operation.setup().request.root];
    transport.cancel(all);
  }
  Report report(Nanos now) const;

  uint32_t slot = 0;
  uint32_t generation = 0;  // how often the slot has been used; events with an older generation are ignored
  GroupCore* group = nullptr;
  uint64_t number = 0;
  uint64_t memory_bytes = 0;
  Nanos compute = 0, encoding = 0, summing = 0, decoding = 0;  // `compute` includes the other three
  OperationPort port;
  Operation operation;
  std::shared_ptr<Completion> completion;          // null: the slot is free
  std::string link_note;                           // see Report::link_note
  std::shared_ptr<const DeliveryReport> delivery;  // set if the call asked for lossy or automatic delivery
};

}  // namespace unisono
