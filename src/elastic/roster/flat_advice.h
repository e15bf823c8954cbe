// Whether one flat all-reduce of all peers would send fewer bytes than averaging steps over a grid, by the absences that were
// seen: F7 of docs/design/methods/moshpit.md, "Laws". Advice only: nothing is changed by it. A pure value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>

namespace unisono {

// F7: below this chance that a peer is absent in a round one global all-reduce, begun anew after each loss, sends fewer bytes
// than an averaging step over axes of these lengths. 0: at no absence. F7 has equal axes; of others, their mean 1 - 1/m takes
// the place of 1 - 1/M.
double flat_break_even(uint32_t peers, std::span<const uint32_t> dims);

// At one peer, over its last averaging steps.
class FlatAdvice {
 public:
  static constexpr size_t steps = 100;

  // An averaging step of so many peers, and of members of this peer's groups in it: how many should have been there, and how
  // many of them were not. What is to be said about it, once; else empty.
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
