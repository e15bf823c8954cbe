// The faults that `unisono bench` injects on request. A fault kills, stops or resumes a rank at a given time. All functions are
// pure.
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
  uint32_t rank = 0;  // the rank that the victim had when the group first formed, not its rank in a re-formed group
  Nanos at = 0;       // measured from the time at which the group formed
  friend bool operator==(const Fault&, const Fault&) = default;
};

// Parses a text such as "1@2s", which means rank 1 after two seconds.
Result<Fault> parse_fault(FaultKind kind, std::string_view text);

// Sorts the faults by time. Returns Code::invalid in these cases: a rank does not exist; no rank would remain; a fault hits a
// rank that is dead, stops a rank that is stopped, or resumes a rank that is running.
Result<std::vector<Fault>> arrange_faults(std::vector<Fault> faults, uint32_t world_size);

// Returns the ranks that are killed or stopped, and so may end before the other ranks. The list is sorted and has no
// duplicates.
std::vector<uint32_t> victims_of(std::span<const Fault> faults);

// Returns text such as "rank 1 was killed".
std::string describe(const Fault& fault);
// Returns SIGKILL, SIGSTOP or SIGCONT.
int signal_of(FaultKind kind);

}  // namespace unisono::cli
