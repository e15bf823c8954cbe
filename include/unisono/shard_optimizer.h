// The optimizer of a ShardedStep (unisono/sharded_step.h). Every rank updates only its own shard of the parameters with the
// averaged gradient, one range after the other. A custom optimizer derives from ShardOptimizer.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "unisono/export.h"

namespace unisono {

struct ShardUpdate {
  uint64_t begin = 0;                 // index of the first element in the shard
  std::span<float> values{};          // the values of elements [begin, begin + values.size())
  std::span<const float> gradient{};  // the gradient of the same elements
  float scale = 1;                    // the gradient must be multiplied by this (gradient clipping)
  uint64_t step = 1;                  // number of the step, from 1; needed for bias correction
};

class ShardOptimizer {
 public:
  virtual ~ShardOptimizer() = default;
  // Updates one range. It must not allocate. If a range has no contributions, update() is not called for it. Its values and its
  // state then stay the same, and no weight decay is applied.
  virtual void update(const ShardUpdate& task) = 0;
  // The learning rate; it may change between steps.
  virtual double rate() const = 0;
  virtual void set_rate(double rate) = 0;
  // Returns the number of state values (floats) per element. It is 2 for Adam, which keeps two moments. state(i) has as many
  // elements as the shard. These calls serve checkpoints and backups.
  virtual uint32_t state_count() const = 0;
  virtual std::span<float> state(uint32_t index) = 0;
  // Changes the size of the shard, and sets the state to zero.
  virtual void resize(uint64_t elements) = 0;
};

// Options are doubles, as in PyTorch. As a float, 1 - 0.999f would be wrong in its fifth digit.
struct SgdOptions {
  double rate = 0.1, momentum = 0, weight_decay = 0;
  bool nesterov = false;
};
struct AdamWOptions {
  double rate = 1e-3, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0.01;
};
// These optimizers use the formulae of PyTorch's SGD and AdamW (without dampening and amsgrad). They compute in fp32, in one
// pass over the data. SGD without momentum has no state.
UNISONO_EXPORT std::unique_ptr<ShardOptimizer> make_sgd(const SgdOptions& options);
UNISONO_EXPORT std::unique_ptr<ShardOptimizer> make_adamw(const AdamWOptions& options);

}  // namespace unisono
