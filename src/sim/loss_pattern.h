// Decides which datagrams are lost under a LossModel. The decision depends only on the seed, the link, and the position of the
// datagram on the link. It does not depend on timing or on the order of queries.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/loss_model.h"

namespace unisono::sim {

// The position of a datagram on its link. A later step has a later position. Within a step, contributions come before results.
struct DatagramPosition {
  // The sender is equal to the receiver only in studies in which an owner (the rank that averages a shard) can lose its own
  // contribution.
  Rank sender = 0, receiver = 0;
  uint64_t step = 0;
  uint32_t phase = 0;  // 0: contributions; 1: results
  uint32_t range = 0;
};

class LossPattern {
 public:
  struct Shape {
    uint32_t world = 2;
    uint32_t ranges = 1;  // number of ranges in each stream
  };
  // All ranks in the model must be below shape.world.
  LossPattern(const LossModel& model, uint64_t seed, const Shape& shape);

  bool lost(const DatagramPosition& at);

 private:
  // The state of a Markov chain with two states. A query for an earlier position restarts the chain, so queries in ascending
  // order are cheapest.
  struct Walk {
    uint64_t next = 0;  // the first position that the chain has not reached
    bool bad = false;
  };
  struct Chain {
    double stationary = 0, fall = 0, recovery = 1;
  };
  static bool walk(Walk& walk, uint64_t key, uint64_t index, const Chain& chain);
  bool cut_off(const DatagramPosition& at) const;
  bool in_bad_state(const DatagramPosition& at, uint64_t key, uint64_t sequence);

  const LossModel model_;
  const Shape shape_;
  Chain chain_;
  // The keys are random numbers: one for each link, followed by one for each sender. The key of a sender is used for draws that
  // apply to all of its receivers.
  std::vector<uint64_t> keys_;
  std::vector<double> losses_;  // loss of each link; only for Kind::links
  std::vector<Walk> walks_;     // one chain for each link; for Kind::chain, one for each link, phase and range
};

}  // namespace unisono::sim
