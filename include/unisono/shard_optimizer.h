// Computes new values of a rank's own shard from its reduced gradient, range by range. Every rank updates only its own shard.
// Used by ShardedStep (unisono/sharded_step.h); a custom optimizer derives from ShardOptimizer.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "unisono/export.h"

namespace unisono {

struct ShardUpdate {
  uint64_t begin = 0;                 // first element, relative to the shard
  std::span<float> values{};          // of elements [begin, begin + values.size())
  std::span<const float> gradient{};  // as many elements as values
  float scale = 1;                    // factor of the gradient: clipping
  uint64_t step = 1;                  // 1 for the first step; for bias correction
};

class ShardOptimizer {
 public:
  virtual ~ShardOptimizer() = default;
  // Updates one range. Held ranges are skipped: their values, state and weight decay do not change. Allocates nothing.
  virtual void update(const ShardUpdate& task) = 0;
  // The learning rate, which may change between steps.
  virtual double rate() const = 0;
  virtual void set_rate(double rate) = 0;
  // Floats of state per element, for checkpoints and backups: 2 for Adam's moments. state(i) has as many elements as the shard.
  virtual uint32_t state_count() const = 0;
  virtual std::span<float> state(uint32_t index) = 0;
  // Changes the shard's size and sets the state to zero.
  virtual void resize(uint64_t elements) = 0;
};

// Double precision, as in PyTorch: 1 - 0.999f would be wrong in its fifth digit.
struct SgdOptions {
  double rate = 0.1, momentum = 0, weight_decay = 0;
  bool nesterov = false;
};
struct AdamWOptions {
  double rate = 1e-3, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0.01;
};
// Same formulae as PyTorch's SGD and AdamW (no dampening, no amsgrad), in fp32, in one pass. SGD without momentum has no state.
UNISONO_EXPORT std::unique_ptr<ShardOptimizer> make_sgd(const SgdOptions& options);
UNISONO_EXPORT std::unique_ptr<ShardOptimizer> make_adamw(const AdamWOptions& options);

}  // namespace unisono
