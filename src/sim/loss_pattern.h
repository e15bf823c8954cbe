// The fate of each datagram under a LossModel: a function of seed, link and position on the link, so timing and query order do
// not change it.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/loss_model.h"

namespace unisono::sim {

// A link's datagrams are numbered step by step; in each step the contributions, then the results.
struct DatagramPosition {
  Rank sender = 0, receiver = 0;  // may be equal: the owner's own contribution, if an estimator lets it be lost
  uint64_t step = 0;
  uint32_t phase = 0;  // 0 contributions, 1 results
  uint32_t range = 0;
};

class LossPattern {
 public:
  struct Shape {
    uint32_t world = 2;
    uint32_t ranges = 1;  // per stream
  };
  // The model must not name ranks at or above shape.world.
  LossPattern(const LossModel& model, uint64_t seed, const Shape& shape);

  bool lost(const DatagramPosition& at);

 private:
  // Position of a two-state chain. A query for an earlier position restarts the chain, so ascending queries are cheapest.
  struct Walk {
    uint64_t next = 0;  // the first position not yet reached
    bool bad = false;
  };
  struct Chain {
    double stationary = 0, fall = 0, recovery = 1;
  };
  static bool walk(Walk& walk, uint64_t key, uint64_t place, const Chain& chain);
  bool cut_off(const DatagramPosition& at) const;
  bool in_bad_state(const DatagramPosition& at, uint64_t key, uint64_t sequence);

  const LossModel model_;
  const Shape shape_;
  Chain chain_;
  std::vector<uint64_t> keys_;  // by link; then one per sender, for draws that its receivers share
  std::vector<double> losses_;  // by link, for Kind::links
  std::vector<Walk> walks_;     // by link; for Kind::chain by link, phase and range
};

}  // namespace unisono::sim
