// The fate of each datagram under a LossModel: a function of seed, link and place on the link, so neither timing nor the order
// of asking changes it.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/loss_model.h"

namespace unisono::sim {

// Sequence numbers of a link count its datagrams: step by step, in each the contributions, then the results.
struct DatagramPlace {
  Rank sender = 0, receiver = 0;  // may be the same: the owner's own contribution, where an estimator lets it be lost
  uint64_t step = 0;
  uint32_t phase = 0;  // 0 contributions, 1 results
  uint32_t range = 0;
};

class LossPattern {
 public:
  struct Shape {
    uint32_t world = 2;
    uint32_t ranges = 1;  // of every stream
  };
  // The model's ranks are below shape.world.
  LossPattern(const LossModel& model, uint64_t seed, const Shape& shape);

  bool lost(const DatagramPlace& at);

 private:
  // Where a chain of two states is; asked for an earlier place it begins again, so it costs least in order.
  struct Walk {
    uint64_t next = 0;  // the first place that it has not been to
    bool bad = false;
  };
  struct Chain {
    double stationary = 0, fall = 0, recovery = 1;
  };
  static bool walk(Walk& walk, uint64_t key, uint64_t place, const Chain& chain);
  bool cut_off(const DatagramPlace& at) const;
  bool in_bad_state(const DatagramPlace& at, uint64_t key, uint64_t sequence);

  const LossModel model_;
  const Shape shape_;
  Chain chain_;
  std::vector<uint64_t> keys_;  // by link; in the end one per sender, for what all its receivers share
  std::vector<double> losses_;  // by link, of Kind::links
  std::vector<Walk> walks_;     // by link; of Kind::chain by link, phase and range
};

}  // namespace unisono::sim
