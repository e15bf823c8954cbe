// Applies one round of each algorithm to the peers' numbers. An AveragingRule holds the state of an algorithm: its keys,
// weights, or positions in a grid.
//
// The sources are these sections of docs/design/methods/moshpit.md. Sums are computed in the order that is given there.
// - "The published rule" and "The averaging simulation" describe the code of Moshpit SGD's authors and of hivemind
//   (averaging/key_manager.py). Only the way in which `chunk_keys` cuts the peers with one key into groups is our own.
// - "The fitted grid" describes `fitted`.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lab/averaging/averaging.h"
#include "lab/averaging/averaging_random.h"

namespace unisono::sim {

using AveragingGroups = std::vector<std::vector<uint32_t>>;  // each group lists its peers

class AveragingRule {
 public:
  virtual ~AveragingRule() = default;
  // Applies one round. Rounds are counted from 1. alive: for each peer, 1 if it is present in this round. Returns how many
  // vectors all peers sent together. A group of g peers sends 2(g - 1), even if it could not average.
  virtual double average(uint32_t round, std::span<const uint8_t> alive, std::span<double> values, AveragingRandom& random) = 0;
};
// Fails with Code::invalid if run_averaging() would reject the settings.
Result<std::unique_ptr<AveragingRule>> make_averaging_rule(const AveragingSettings& settings);

// Puts the present peers in random order and cuts them into groups of max_group peers. If there are fewer peers, they form one
// group. If some peers remain, they join the first, second, … group.
AveragingGroups random_groups(std::span<const uint8_t> alive, uint32_t max_group, AveragingRandom& random);

// The rule by which Moshpit SGD's authors form new groups. Each peer has a key of d - 1 digits to the base M.
// - Peers with equal keys form groups of at most M peers.
// - Each peer of a group gets a different slot (a number below M). The oldest digit of its key is removed, and the slot is
//   appended as the newest digit.
// - A peer without a group keeps its key.
class ChunkKeys {
 public:
  // base: M. digits: d - 1. At first, the key of peer r has the digits of r mod M^(d-1), so that about as many peers have each
  // key.
  ChunkKeys(uint32_t peers, uint32_t base, uint32_t digits);
  AveragingGroups next_groups(std::span<const uint8_t> alive, AveragingRandom& random);
  std::span<const uint32_t> keys() const { return keys_; }

 private:
  void move_keys(std::span<const uint32_t> group, AveragingRandom& random);

  uint32_t base_;
  uint32_t key_count_;  // number of different keys, M^(d-1)
  std::vector<uint32_t> keys_;
};

}  // namespace unisono::sim
