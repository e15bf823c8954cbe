// Trains the language model in one process. It makes AdamW steps on batches, and computes the loss on held-out text. It also
// saves its state, so that another process can continue from there. The sequences of a step depend only on the seed, the stream
// and the step number. Two trainers with different streams draw their sequences independently.
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
  uint64_t seed = 1;    // seed for the initial parameters and for the batches
  uint64_t stream = 0;  // Each process should have a different stream.
};

class LocalTrainer {
 public:
  // options.shape must have passed validate(). text must outlive the trainer.
  LocalTrainer(const LocalTrainerOptions& options, const Text& text);

  // Computes the gradients of the batch with number `number`, and returns the batch's loss in nats per byte. gradients() then
  // returns the gradients, followed by the loss elements (research/model/micro_batches.h).
  float compute(uint64_t number);
  // Updates the parameters with gradients(). The learning rate is that of step number `schedule_step`.
  void apply(size_t schedule_step);

  std::span<float> parameters() { return parameters_; }
  std::span<float> gradients() { return gradients_; }
  size_t tokens_per_step() const { return options_.batch * options_.shape.context; }
  // Returns the mean loss of this many sequences. They are spread evenly over the held-out text.
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
