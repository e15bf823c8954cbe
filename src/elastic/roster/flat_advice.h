// Advises whether one flat all-reduce of all peers would send fewer bytes than averaging steps over a grid. The answer depends
// on how often peers were absent. The formula is F7 in section "Laws" of docs/design/methods/moshpit.md. The advice itself
// changes nothing. A value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>

namespace unisono {

// Returns the break-even probability p of formula F7. The formula compares a flat all-reduce, which is restarted after each
// loss, with an averaging step over a grid whose axes have these lengths. If a peer misses a round with a probability below p,
// the flat all-reduce sends fewer bytes. If p is 0, it never does. F7 assumes axes of equal length M; here, the mean of 1 - 1/m
// over all axes replaces 1 - 1/M.
double flat_break_even(uint32_t peers, std::span<const uint32_t> dims);

// Counts how many members were absent in the last `steps` averaging steps of one peer.
class FlatAdvice {
 public:
  static constexpr size_t steps = 100;

  // Call after each averaging step. `peers` is the number of peers in the run, `expected` is the number of members of this
  // peer's groups, and `absent` is how many of these were missing. Returns the advice when it applies for the first time,
  // otherwise an empty text.
  std::string after(uint32_t peers, std::span<const uint32_t> dims, uint64_t expected, uint64_t absent);

 private:
  struct Seen {
    uint64_t expected = 0, absent = 0;
  };

  std::deque<Seen> seen_;  // newest last
  Seen sum_;
  bool said_ = false;
};

}  // namespace unisono
