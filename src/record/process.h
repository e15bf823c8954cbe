// Reads /proc to find out whether a process wrote a record, and whether it still runs.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>

namespace unisono::record {

struct ProcessState {
  char state = '?';      // the state letter that ps shows: R S D T t Z …
  uint64_t started = 0;  // start time in clock ticks since the system booted
  bool is_stopped() const { return state == 'T' || state == 't'; }
  bool has_ended() const { return state == 'Z' || state == 'X'; }
};

// Returns nothing if no such process exists, or if its entry in /proc cannot be read.
std::optional<ProcessState> process_state(pid_t pid);

}  // namespace unisono::record
