// The parts of which an Operation consists (executor/operation.h): its lanes, the messages that wait to be sent, and the places
// of received messages in its plan.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "executor/port.h"

namespace unisono {

// One slice of one chunk.
struct OperationLane {
  uint32_t chunk = 0;  // index into Plan::chunks
  uint32_t slice = 0;
  uint32_t stage = 0;     // index into Plan::stages
  uint32_t arrivals = 0;  // the first entry of the lane in the ArrivalMap
  uint32_t elements = 0;
  uint32_t sends_pending = 0;
  uint32_t in_transit = 0;        // number of pending sends that a transport has, whose memory it still needs
  uint32_t arrived_messages = 0;  // number of messages of the current stage that have arrived
  bool entered = false, computing = false, combined = false, has_output = false, committed = false, ready = false,
       waits_for_memory = false, awaits_answer = false, finished = false, has_error = false;
};

// Counts the lanes with messages in transit, whose memory transports still need.
struct LanesInTransit {
  size_t waiting = 0;           // lanes that only wait until their memory is needed no longer
  size_t blocked = 0;           // those of them that have further stages
  size_t awaiting_answers = 0;  // lanes that wait for a message, which will confirm theirs
  bool asked_for_all = false;   // the memory of all lanes was asked for

  void await_answer(OperationLane& lane, bool awaits) {
    if (lane.awaits_answer == awaits) return;
    lane.awaits_answer = awaits;
    if (awaits) ++awaiting_answers;
    else --awaiting_answers;
  }
  // Returns true if the operation cannot go on without memory. A lane whose last messages are in transit may wait while others
  // still get theirs. A blocked lane may not: what the others wait for may depend on it.
  bool need_memory(size_t lanes_left) const {
    return waiting + awaiting_answers >= lanes_left && (blocked > 0 || awaiting_answers == 0);
  }
};

// A transport slot into which a lane's sum is written.
struct OutgoingSlot {
  uint32_t lane = 0;
  PortSlot slot;
  bool filled = false;
};

// A message that waits to be sent. The messages of one queue form a list.
struct QueuedSend {
  uint32_t lane = 0;
  uint32_t stage = 0;
  int32_t next = -1;
};

// Counts the messages that are missing between this rank and another one.
struct MissingMessages {
  uint64_t bytes = 0, messages = 0, unsent_bytes = 0;
  std::pair<uint32_t, uint32_t> first{UINT32_MAX, UINT32_MAX};  // earliest (round, slice) of a missing message
};

// What a late operation has asked of the other ranks, and what they have answered.
struct OperationInquiry {
  Nanos ends = 0;
  std::vector<uint32_t> waits_for;  // ranks whose messages are missing, or that have not taken this rank's messages
  std::vector<Rank> waiter_of;      // waiter_of[r]: the first rank that said that it waits for r; UINT32_MAX: none
  std::vector<bool> answered_by;    // answered_by[r]: rank r has said for which ranks it waits
  std::vector<Nanos> lags;          // lags[r]: how much later rank r started than this rank, as rank r says
};

// The place of a received frame in the plan.
struct LocatedMessage {
  uint32_t lane = 0, stage = 0;
  size_t entry = 0;  // in the ArrivalMap
};

}  // namespace unisono
