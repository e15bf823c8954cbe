// AdamW (Loshchilov and Hutter, 2019). Gradients are clipped by their global norm. The learning rate first rises linearly, and
// then falls linearly to zero.
//
// Every rank applies the same averaged gradients to its own copy of the parameters. The result must therefore have the same
// bits on all machines, even if they are of different kinds. For this reason, the code uses no fused multiply-add and no libm,
// and computes sums in a fixed number of lanes (partial sums). Build it with -ffp-contract=off and without -march.
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
  size_t steps = 1200;       // number of steps in the whole training; the learning rate reaches zero after the last step
  size_t warm_up_steps = 0;  // The learning rate rises linearly during this many steps.
  float learning_rate = 2e-3f;
  float weight_decay = 0.1f;  // It is used for matrices only, not for gains.
  float beta_1 = 0.9f;
  float beta_2 = 0.95f;
  float epsilon = 1e-8f;
  float norm_max = 1.0f;  // Gradients with a larger norm are scaled down to this norm.
};

// Returns the learning rate of a step. The first step has number 0.
float learning_rate(const OptimizerOptions& options, size_t step);

class AdamW {
 public:
  AdamW(const ParameterLayout& layout, const OptimizerOptions& options);
  // Makes one step and changes the parameters. Returns the norm of the gradients before clipping.
  double step(std::span<const float> gradients, std::span<float> parameters);
  // Sets the position of the next step in the learning rate schedule. Without this call, the position grows by one with each
  // step.
  void set_schedule(size_t step) { step_ = step; }
  // Returns the moments, the powers of the betas, and the position in the schedule. A training that loads them continues with
  // the same bits.
  std::vector<std::byte> save() const;
  // Returns invalid and changes nothing if the bytes are truncated or belong to another number of parameters.
  unisono::Status load(std::span<const std::byte> bytes);

 private:
  OptimizerOptions options_;
  std::vector<Region> regions_;
  Buffer<float> mean_, square_;  // running averages of the gradient, and of the squared gradient
  size_t step_ = 0;
  double beta_1_power_ = 1, beta_2_power_ = 1;
};

// Returns an optimizer for the shard of rank `rank` in a group of `world` ranks (unisono/sharded_step.h). It computes exactly
// what AdamW computes, so it gets the same bits. The caller clips the gradients and sets the learning rate. Every rank must
// have a shard.
std::unique_ptr<unisono::ShardOptimizer> make_shard_adamw(const ParameterLayout& layout, const OptimizerOptions& options,
                                                          uint32_t rank, uint32_t world);

}  // namespace language_model
