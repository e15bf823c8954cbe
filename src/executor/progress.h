// How far an operation is, and when what happened in it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/clock.h"

namespace unisono {

inline constexpr size_t pending_told_max = 64;  // ranks that progress() names

// What an operation does just now: what is missing of the earliest round and, there, of the first slice.
struct Progress {
  enum class Phase : uint8_t {
    contributions,
    results,
    sending,
    working
  };  // waits for messages, to add or to copy; for takers; or does not wait
  Phase phase = Phase::working;
  uint32_t round = 0;
  Nanos since = 0;  // the last event of any slice
  uint64_t sent_bytes = 0, sent_total = 0, received_bytes = 0, received_total = 0;
};

// When what happened; 0: never.
struct OperationTimes {
  Nanos started = 0, first_send = 0, last_first_arrival = 0, last_receive = 0, ended = 0;
};

}  // namespace unisono
