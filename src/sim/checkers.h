// Checks that are made after a run: values are correct and equal on all ranks, all memory is returned, all operations end in
// time, and every error names a rank that is to blame.
#pragma once

#include <string>
#include <vector>

#include "sim/faults.h"
#include "sim/run.h"

namespace unisono::sim {

// A failing operation may end at most this long after its deadline.
inline constexpr Nanos lateness_max = 200 * millisecond;

// Checks the values of every rank that reports ok. If the order of additions is defined or does not matter, every bit must be
// as expected. Otherwise the values must be within the rounding bound. In an all-reduce or an all-gather, all ranks must also
// hold the same bits.
void check_values(const Program& program, size_t call, const std::vector<Part>& parts, std::vector<std::string>& problems);

struct ErrorRules {
  const FaultPlan& plan;
  bool all_must_succeed = false;
  bool wrong_program = false;
  bool any_rank_may_fail = false;
};
// Checks that errors have the expected codes, come in time, and name a rank that is to blame.
void check_errors(const Run& run, const Cluster& cluster, const ErrorRules& rules, std::vector<std::string>& problems);

// Checks that no rank reports ok for a call that another rank made differently. Skips calls in which a rank may finish before
// it can notice.
void check_mistakes(const Run& run, std::vector<std::string>& problems);

// Returns the ranks that an error message blames: the numbers that follow the word "rank". A rank that only passed the error on
// is left out.
std::vector<Rank> ranks_named(std::string message);

// Checks that no process holds memory, and that no process broke the rules of Transport. Call this after all operations have
// ended and all groups are destroyed.
void check_nothing_held(Cluster& cluster, std::vector<std::string>& problems);

}  // namespace unisono::sim
