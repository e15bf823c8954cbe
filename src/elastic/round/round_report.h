// The outcome of one round of averaging at one member. A value.
//
// Every chunk falls into exactly one of five counts. committed: applied with this member's values in it (at a reducer, which
// has none: every decided chunk). kept_local: decided without this member's values. voided: no member takes a step. lost:
// decided, but the result could not be fetched. undecided: no verdict in time. Only committed chunks changed this member's
// values and weights.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"

namespace unisono {

struct AbsentMember {
  uint32_t rank = 0;
  std::string reason;  // "dead", "said nothing for 2.0 s", "contributed to 3 of 8 chunks", …
  friend bool operator==(const AbsentMember&, const AbsentMember&) = default;
};

struct RoundReport {
  std::string problem;  // why the round was aborted; empty: it was not
  uint64_t committed = 0, kept_local = 0, voided = 0, lost = 0, undecided = 0;
  uint32_t contributors_min = 0, contributors_max = 0;  // over the chunks whose results are known here
  double contributors_mean = 0;
  std::vector<AbsentMember> absent;  // by rank: members in fewer chunks than expected, or gone; reducers only if gone
  Nanos contribute = 0;              // until this member had sent its contributions and, as an owner, its results
  Nanos result = 0;                  // from then until it had all results, or repair ended
  Nanos verdict = 0;                 // from then until the end of the round
  uint64_t sent_bytes = 0, received_bytes = 0;
  uint64_t ignored = 0;     // messages that were damaged, or that no correct member sends
  double variance = 0;      // within the group before averaging, mean over the elements of known results
  double total_weight = 0;  // W, mean over the known results that were not void
};

}  // namespace unisono
