// What makes new values of an owned shard from its reduced gradient, range by range. Every rank updates its own shard only. For
// ShardedStep (unisono/sharded_step.h); an optimizer of one's own derives from ShardOptimizer.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "unisono/export.h"

namespace unisono {

struct ShardUpdate {
  uint64_t begin = 0;                 // first element, counted in the shard
  std::span<float> values{};          // of elements [begin, begin + values.size())
  std::span<const float> gradient{};  // as many
  float scale = 1;                    // gradients count so much: clipping
  uint64_t step = 1;                  // 1 for the first; bias is corrected by it
};

class ShardOptimizer {
 public:
  virtual ~ShardOptimizer() = default;
  // Ranges that are held are not given at all: neither values nor state nor weight decay change. Allocates nothing.
  virtual void update(const ShardUpdate& task) = 0;
  // The learning rate, which may change between steps.
  virtual double rate() const = 0;
  virtual void set_rate(double rate) = 0;
  // Numbers of state per element, for checkpoints and backups: e.g. 2 for Adam's moments. state(i) has as many elements as the
  // shard.
  virtual uint32_t state_count() const = 0;
  virtual std::span<float> state(uint32_t index) = 0;
  // A shard of another size, with state of zeros.
  virtual void resize(uint64_t elements) = 0;
};

// Numbers are given in double, as PyTorch has them: of 0.999f, what is left to 1 would be wrong in its fifth digit.
struct SgdOptions {
  double rate = 0.1, momentum = 0, weight_decay = 0;
  bool nesterov = false;
};
struct AdamWOptions {
  double rate = 1e-3, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0.01;
};
// As PyTorch's SGD and AdamW compute them (no dampening, no amsgrad), in fp32, in one pass. Without momentum SGD has no state.
UNISONO_EXPORT std::unique_ptr<ShardOptimizer> make_sgd(const SgdOptions& options);
UNISONO_EXPORT std::unique_ptr<ShardOptimizer> make_adamw(const AdamWOptions& options);

}  // namespace unisono
