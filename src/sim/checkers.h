// Checks after a run: values are right and equal, errors name a rank that is to blame, everything ends in time, and all memory
// is returned.
#pragma once

#include <string>
#include <vector>

#include "sim/faults.h"
#include "sim/run.h"

namespace unisono::sim {

// An operation that must fail may end this long after its deadline.
inline constexpr Nanos lateness_max = 200 * millisecond;

// Every rank that reports ok holds the right values: exact to the bit if the order of additions is defined or irrelevant.
// Otherwise they are within the rounding bound, and the bits are equal on all ranks.
void check_values(const Program& program, size_t call, const std::vector<Part>& parts, std::vector<std::string>& problems);

struct ErrorRules {
  const FaultPlan& plan;
  bool all_must_succeed = false;
  bool wrong_program = false;
  bool any_rank_may_fail = false;
};
// Errors have the expected codes, come in time, and name a rank that is to blame.
void check_errors(const Run& run, const Cluster& cluster, const ErrorRules& rules, std::vector<std::string>& problems);

// If one rank made a different call, no rank whose result depends on it reports ok.
void check_slips(const Run& run, std::vector<std::string>& problems);

// The ranks that a message blames: the ranks after the word "rank", without those that only passed the error on.
std::vector<Rank> ranks_named(std::string message);

// After all operations ended and all groups are gone: no memory is held, and no rank broke the rules of Transport.
void check_given_back(Cluster& cluster, std::vector<std::string>& problems);

}  // namespace unisono::sim
