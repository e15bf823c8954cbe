// AdamW (Loshchilov and Hutter, 2019) with gradient clipping by the global norm, linear warm-up and linear decay to zero.
//
// Every rank applies the same averaged gradients to its own copy of the parameters, so this must give the same bits on every
// machine, not only on machines of one kind: no fused multiply-add, no libm, sums in fixed lanes. Build it with
// -ffp-contract=off and without -march.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "research/model/kernels.h"
#include "research/model/model.h"
#include "unisono/shard_optimizer.h"
#include "unisono/status.h"

namespace language_model {

struct OptimizerOptions {
  size_t steps = 1200;       // of the whole training: the learning rate reaches zero after the last
  size_t warm_up_steps = 0;  // it rises linearly over these
  float learning_rate = 2e-3f;
  float weight_decay = 0.1f;  // of matrices; gains are not decayed
  float beta_1 = 0.9f;
  float beta_2 = 0.95f;
  float epsilon = 1e-8f;
  float norm_max = 1.0f;  // gradients of a larger norm are scaled down to it
};

// The learning rate of step 0, 1, …
float learning_rate(const OptimizerOptions& options, size_t step);

class AdamW {
 public:
  AdamW(const ParameterLayout& layout, const OptimizerOptions& options);
  // Changes parameters by one step; returns the norm that the gradients had.
  double step(std::span<const float> gradients, std::span<float> parameters);
  // Sets the position of the next step on the learning rate's schedule. Without a call it is one after the last step.
  void set_schedule(size_t step) { step_ = step; }
  // The moments and their age: a training that loads them continues with the same bits.
  std::vector<std::byte> save() const;
  // invalid: the data are for another number of parameters, or truncated. Nothing has changed then.
  unisono::Status load(std::span<const std::byte> bytes);

 private:
  OptimizerOptions options_;
  std::vector<Region> regions_;
  Buffer<float> mean_, square_;  // running averages of the gradient and of its square
  size_t step_ = 0;
  double beta_1_power_ = 1, beta_2_power_ = 1;
};

// The same arithmetic, with the same bits, for the shard of one rank of `world` (unisono/sharded_step.h). The caller gives the
// clipping and the learning rate. Every rank must have a shard.
std::unique_ptr<unisono::ShardOptimizer> make_shard_adamw(const ParameterLayout& layout, const OptimizerOptions& options,
                                                          uint32_t rank, uint32_t world);

}  // namespace language_model
