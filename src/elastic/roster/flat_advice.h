// Advice, from the absences seen, whether one flat all-reduce of all peers would send fewer bytes than averaging steps over a
// grid. Source: F7 of docs/design/methods/moshpit.md, "Laws". It changes nothing. A pure value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>

namespace unisono {

// F7: the chance of a peer's absence per round below which one global all-reduce, restarted after each loss, sends fewer bytes
// than an averaging step over axes of these lengths. 0: the all-reduce never does. F7 assumes equal axes; for others the mean
// of 1 - 1/m replaces 1 - 1/M.
double flat_break_even(uint32_t peers, std::span<const uint32_t> dims);

// Over the last averaging steps of one peer.
class FlatAdvice {
 public:
  static constexpr size_t steps = 100;

  // Call after each averaging step. peers: how many took part. expected, absent: members of this peer's groups, and how many of
  // them were missing. Returns the advice once, when it applies; otherwise an empty text.
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
