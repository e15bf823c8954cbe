// Reads /proc to find out whether a process is the one that wrote a record, and whether it runs.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>

namespace unisono::record {

struct ProcessState {
  char state = '?';      // as ps shows it: R S D T t Z …
  uint64_t started = 0;  // ticks since the system started
  bool is_stopped() const { return state == 'T' || state == 't'; }
  bool has_ended() const { return state == 'Z' || state == 'X'; }
};

// Nothing if there is no such process, or /proc does not say.
std::optional<ProcessState> process_state(pid_t pid);

}  // namespace unisono::record
