// Trains the language model in one process: a step of AdamW on a batch, the loss on held-out text, and the state that another
// process needs to continue. The sequences of a step depend only on (seed, stream, number of the step). Different streams draw
// independently.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "research/model/micro_batches.h"
#include "research/model/model.h"
#include "research/model/optimizer.h"
#include "research/model/text.h"
#include "unisono/status.h"

namespace language_model {

struct LocalTrainerOptions {
  ModelShape shape;
  OptimizerOptions optimizer;
  size_t batch = 16;    // sequences per step
  uint64_t seed = 1;    // of the first parameters, and of what is drawn
  uint64_t stream = 0;  // no two processes should have the same
};

class LocalTrainer {
 public:
  // options.shape must have passed validate(). text must outlive it.
  LocalTrainer(const LocalTrainerOptions& options, const Text& text);

  // Computes the batch of that number and returns its loss in nats per byte. Its gradients are in gradients(), and behind them
  // the loss elements (micro_batches.h).
  float compute(uint64_t number);
  // Updates the parameters by gradients(), with the learning rate of that step of the schedule.
  void apply(size_t schedule_step);

  std::span<float> parameters() { return parameters_; }
  std::span<float> gradients() { return gradients_; }
  size_t tokens_per_step() const { return options_.batch * options_.shape.context; }
  // The loss on this many sequences, spread evenly over the held-out text.
  float held_out_loss(size_t sequences);

  std::vector<std::byte> save_optimizer() const { return optimizer_.save(); }
  unisono::Status load_optimizer(std::span<const std::byte> bytes) { return optimizer_.load(bytes); }

 private:
  const LocalTrainerOptions options_;
  const Text& text_;
  Model<float> model_;
  AdamW optimizer_;
  Buffer<float> parameters_, gradients_;
};

}  // namespace language_model
