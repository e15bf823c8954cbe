// The outcome of one round of averaging at one member. A value.
//
// Every chunk is in exactly one of five counts:
// - committed: the chunk is applied, and this member's values are in the mean. A reducer has no values, so for a reducer every
//   applied chunk is in this count.
// - kept_local: the members agreed to apply the chunk, but this member's values are not in the mean, so this member keeps them.
// - voided: no member changes the chunk.
// - lost: the members agreed to apply the chunk, but this member could not fetch the result.
// - undecided: there was no verdict in time.
//
// Only committed chunks have changed this member's values and weights.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"

namespace unisono {

struct AbsentMember {
  uint32_t rank = 0;
  // "dead", "sent nothing for 2.0 s", "contributed to 3 of 8 chunks", "values that are not finite in 1 of 8 chunks", …
  std::string reason;
  friend bool operator==(const AbsentMember&, const AbsentMember&) = default;
};

struct RoundReport {
  std::string problem;  // why the round was aborted, or how many results were lost; or empty
  uint64_t committed = 0, kept_local = 0, voided = 0, lost = 0, undecided = 0;
  // Among the chunks whose results are known here: the smallest and the largest number of contributors to a chunk.
  uint32_t contributors_min = 0, contributors_max = 0;
  double contributors_mean = 0;
  // How many contributions the chunks' owners refused because they are not finite. They are counted over the known results.
  uint64_t refused = 0;
  // The members that are gone, did not contribute to all chunks, or sent no results of their own chunks, ordered by rank. A
  // reducer has nothing to contribute, so it is listed only for the other reasons. This member itself is listed only if its
  // values are not finite.
  std::vector<AbsentMember> absent;
  Nanos contribute = 0;  // how long it took until this member had sent its contributions and closed its own chunks
  // How long it took after that until this member had all results, or its repair (the fetching of missing results) ended.
  Nanos result = 0;
  // How long it took after that until the round ended.
  Nanos verdict = 0;
  uint64_t sent_bytes = 0, received_bytes = 0;
  uint64_t ignored = 0;  // damaged messages, and messages that no correct member sends
  // The variance of one element over the members, before averaging. This is the mean of it over all elements of the known
  // results that are not void.
  double variance = 0;
  // W, the sum of the contributors' weights. This is the mean of it over the known chunks that are not void.
  double total_weight = 0;
};

}  // namespace unisono
