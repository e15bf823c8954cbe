// Progress of an operation, and its timestamps.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/clock.h"

namespace unisono {

inline constexpr size_t pending_told_max = 64;  // limit of the ranks that progress() lists

// The messages that an operation waits for now: missing ones of its earliest round and, in that round, of its first slice.
struct Progress {
  enum class Phase : uint8_t {
    contributions,  // waits for messages to add
    results,        // waits for messages to copy
    sending,        // waits for receivers
    working         // waits for nothing
  };
  Phase phase = Phase::working;
  uint32_t round = 0;
  Nanos since = 0;  // the last event of any slice
  uint64_t sent_bytes = 0, sent_total = 0, received_bytes = 0, received_total = 0;
};

// Timestamps; 0: it has not happened.
struct OperationTimes {
  Nanos started = 0, first_send = 0, last_first_arrival = 0, last_receive = 0, ended = 0;
};

}  // namespace unisono
