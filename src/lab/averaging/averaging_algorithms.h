// Applies one round of each algorithm to the peers' numbers. The rule holds the state: keys, weights, positions in a grid.
//
// Sources: all but `fitted` and the cutting of groups in `chunk_keys` follow the code of Moshpit SGD's authors and of hivemind
// (averaging/key_manager.py), as written down in docs/design/methods/moshpit.md, "The published rule"
// and "The averaging simulation"; `fitted` is "The fitted grid" there. Sums run in the order given there.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lab/averaging/averaging.h"
#include "lab/averaging/averaging_random.h"

namespace unisono::sim {

using AveragingGroups = std::vector<std::vector<uint32_t>>;  // of peers

class AveragingRule {
 public:
  virtual ~AveragingRule() = default;
  // Rounds are 1, 2, …; alive has a flag for each peer. Gives what all peers sent together, in sizes of one vector: 2(g - 1)
  // for a group of g, whether or not its average came to anything.
  virtual double average(uint32_t round, std::span<const uint8_t> alive, std::span<double> values, AveragingRandom& random) = 0;
};
// invalid as run_averaging says.
Result<std::unique_ptr<AveragingRule>> make_averaging_rule(const AveragingSettings& settings);

// Groups the present peers in random order, M by M, into at least one group. The remaining peers join the first, the second, …
// group.
AveragingGroups random_groups(std::span<const uint8_t> alive, uint32_t max_group, AveragingRandom& random);

// The published rule of regrouping. A key is d - 1 digits to the base M; peers with one key meet, at most M in one group, and
// each takes as its newest digit the slot that it got there, losing the oldest. Keys move when a group is put together; a
// peer that finds no group keeps its key.
class ChunkKeys {
 public:
  // Keys are balanced: peer r begins with the digits of r mod M^(d-1). digits = d - 1.
  ChunkKeys(uint32_t peers, uint32_t base, uint32_t digits);
  AveragingGroups next_groups(std::span<const uint8_t> alive, AveragingRandom& random);
  std::span<const uint32_t> keys() const { return keys_; }

 private:
  void move_keys(std::span<const uint32_t> group, AveragingRandom& random);

  uint32_t base_;
  uint32_t key_count_;  // M^(d-1)
  std::vector<uint32_t> keys_;
};

}  // namespace unisono::sim
