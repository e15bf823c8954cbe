// The progress of an operation, and the times of its events.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/clock.h"

namespace unisono {

inline constexpr size_t pending_listed_max = 64;  // progress() lists at most this many ranks

// Says for what an operation waits now. If messages are missing, `phase` and `round` describe the missing messages of the
// earliest round. Within that round, they describe those of the first slice.
struct Progress {
  enum class Phase : uint8_t {
    contributions,  // waits for messages whose values are added
    results,        // waits for messages whose values are copied
    sending,        // waits for receivers to take messages
    working         // waits for no message
  };
  Phase phase = Phase::working;
  uint32_t round = 0;
  Nanos since = 0;  // time of the last event in any slice
  uint64_t sent_bytes = 0, sent_total = 0, received_bytes = 0, received_total = 0;
};

// The times of an operation's events. 0: the event has not happened.
struct OperationTimes {
  Nanos started = 0, first_send = 0, last_first_arrival = 0, last_receive = 0, ended = 0;
};

}  // namespace unisono
