// What must be true after a run: right and equal values, errors that name who is to blame, everything in time and given back.
#pragma once

#include <string>
#include <vector>

#include "sim/faults.h"
#include "sim/run.h"

namespace unisono::sim {

// An operation that has to fail may end this much after its deadline.
inline constexpr Nanos lateness_max = 200 * millisecond;

// Every rank that reports ok holds the right values: to the bit where the order of additions is defined or does not matter,
// within the bound of rounding elsewhere, and then the same bits as all others.
void check_values(const Program& program, size_t call, const std::vector<Part>& parts, std::vector<std::string>& problems);

struct ErrorRules {
  const FaultPlan& plan;
  bool all_must_succeed = false;
  bool wrong_program = false;
  bool anybody_may_fail = false;
};
// Errors are of the expected kinds, in time, and name a rank that is to blame.
void check_errors(const Run& run, const Cluster& cluster, const ErrorRules& rules, std::vector<std::string>& problems);

// Where one rank called something else: nobody whose result depends on it reports ok.
void check_slips(const Run& run, std::vector<std::string>& problems);

// The ranks that a message blames: those behind "rank", without those that only pass the news on.
std::vector<Rank> ranks_named(std::string message);

// After everything has ended and all groups are gone: nothing is held any more, and nobody broke the rules of Transport.
void check_given_back(Cluster& cluster, std::vector<std::string>& problems);

}  // namespace unisono::sim
