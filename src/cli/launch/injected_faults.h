// The faults that `unisono bench` makes on request: which rank is killed, stopped or resumed, and when. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "unisono/status.h"

namespace unisono::cli {

enum class FaultKind : uint8_t { kill = 0, stop = 1, resume = 2 };

struct Fault {
  FaultKind kind = FaultKind::kill;
  uint32_t rank = 0;  // as the group formed; numbers of a re-formed group do not count
  Nanos at = 0;       // since the group formed
  friend bool operator==(const Fault&, const Fault&) = default;
};

// "1@2s".
Result<Fault> parse_fault(FaultKind kind, std::string_view text);

// In the order of their times. invalid: a rank that is not there, that is dead already, that is stopped twice or resumed
// without having been stopped, or no rank would be left to go on.
Result<std::vector<Fault>> arrange_faults(std::vector<Fault> faults, uint32_t world_size);

// Ranks that a fault ends or may end: those killed, and those stopped. Sorted, each once.
std::vector<uint32_t> victims_of(std::span<const Fault> faults);

// "rank 1 was killed".
std::string describe(const Fault& fault);
// SIGKILL, SIGSTOP, SIGCONT.
int signal_of(FaultKind kind);

}  // namespace unisono::cli
