// The training loop, one for all three ways of computing a step:
//   data-parallel      each process computes one part of the batch, the exchange averages over the processes;
//   parts in order     one process computes the parts one after another and averages them as the exchange does: same bits;
//   the whole at once  one process, one part that is the whole batch: equal up to rounding.
// Data-parallel processes average gradients and update all parameters each, or own a shard of them each
// (TrainingOptions::sharded). A part may be computed in micro-batches, of which data-parallel processes may leave out some
// (micro_batches.h, drop_training.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "research/drop_compute/drop_training.h"
#include "research/model/data_parallel.h"
#include "research/model/micro_batches.h"
#include "research/model/model.h"
#include "research/model/optimizer.h"
#include "research/model/text.h"
#include "research/packet_loss/sharded_training.h"
#include "unisono/status.h"

namespace language_model {

struct TrainingOptions {
  ModelShape shape;
  OptimizerOptions optimizer;  // optimizer.steps is the length of the whole training
  size_t batch = 16;           // sequences per step, over all parts
  uint64_t seed = 1;
  size_t validation_every = 50;      // steps; 0 = never, not even at the end
  size_t validation_sequences = 64;  // over all parts, while training
  size_t final_validation_sequences = 256;
  MicroBatchOptions micro_batches = {};     // of each part
  std::optional<ShardedPlan> sharded = {};  // each process owns a shard of the parameters
};

// The batch is cut into `total` equal parts; this process computes `count` of them, from `first` on.
struct Parts {
  size_t first = 0;
  size_t count = 1;
  size_t total = 1;
};

struct ValidationPoint {
  size_t step = 0;  // after so many steps
  float loss = 0;
};

struct TrainingTimes {
  double total_s = 0;    // wall time of the steps, without validation
  double compute_s = 0;  // of it, not waiting for communication
  double cpu_s = 0;      // processor time of this process in the steps, all threads
  double validation_s = 0;
};

struct TrainingHistory {
  // The loss of each step in nats per byte, before the step's update: the mean over the part of the batch that was computed.
  // With a sharded optimizer it is this rank's, until the training ends.
  std::vector<float> losses;
  std::vector<ValidationPoint> validation;
  std::vector<uint64_t> sent_bytes;  // by this process, up to and with each step
  std::vector<double> seconds;       // of the steps so far, without validation
  std::vector<DropRecord> drops;     // per step, of this process; empty without DropCompute
  TrainingTimes times;
};

// A 64-bit hash of the bits of the values.
uint64_t hash_of(std::span<const float> values);

// The parameters, in the order of the gradients. Inputs are multiplied with matrices from the left, so the weights of one
// output are a column. In the embedding the values of one token are a row.
std::vector<ExchangedParameter> exchanged_parameters(const ParameterLayout& layout);

class Trainer {
 public:
  // The argument of the function that is called after each step; it has the validation loss where one was taken.
  struct Progress {
    size_t step = 0;  // steps done
    float loss = 0;
    const ValidationPoint* validation = nullptr;
    const DropTraining* drop = nullptr;  // none without DropCompute
  };
  using OnProgress = std::function<void(const Progress&)>;

  // Fails if the shape is wrong or the batch cannot be cut into equal parts and micro-batches. text and exchange must outlive
  // the trainer.
  static unisono::Result<std::unique_ptr<Trainer>> make(const TrainingOptions& options, Parts parts, const Text& text,
                                                        GradientExchange& exchange);
  // Broadcasts rank 0's first parameters, then makes the first `steps` steps of the training.
  unisono::Status run(size_t steps, const OnProgress& on_progress);

  // With a sharded optimizer these are this rank's replica, and after the last step the owners' values, equal on all ranks.
  std::span<const float> parameters() const { return parameters_; }
  const TrainingHistory& history() const { return history_; }
  // The steps with DropCompute; null without it.
  const DropTraining* drop() const { return drop_.get(); }
  // The steps with the sharded optimizer; null without it.
  const ShardedTraining* sharded() const { return sharded_.get(); }
  const ExchangeStatistics& statistics() const { return sharded_ ? sharded_->statistics() : exchange_.statistics(); }
  // The hash of the parameters after as many steps as remember_hash_after() was given; 0 without that call.
  void remember_hash_after(size_t steps) { hash_after_ = steps; }
  uint64_t remembered_hash() const { return remembered_hash_; }
  // `count` bytes that the model writes after the prompt, drawn at temperature 0.8.
  std::string write_text(const std::string& prompt, size_t count, uint64_t seed);

 private:
  Trainer(const TrainingOptions& options, Parts parts, const Text& text, GradientExchange& exchange);
  unisono::Status step(size_t index);
  unisono::Status step_of_parts(size_t index);
  unisono::Status step_sharded(size_t index);
  unisono::Result<float> validate(size_t step, size_t sequences);
  unisono::Result<float> held_out_loss(std::span<const float> parameters, size_t sequences);
  unisono::Status finish_sharded(size_t steps);
  void compute_part(size_t index, size_t part, std::span<float> out, const Model<float>::Ready& ready);
  void use(std::span<const float> averages);

  TrainingOptions options_;
  Parts parts_;
  const Text& text_;
  GradientExchange& exchange_;
  Model<float> model_;
  AdamW optimizer_;
  Buffer<float> parameters_;
  // The gradients and, behind them, the sum and number of losses. The same operation averages both; they are in the bucket that
  // is sent first.
  Buffer<float> gradients_;
  Buffer<float> part_gradients_;  // used if this process computes several parts
  TrainingHistory history_;
  size_t hash_after_ = 0;
  uint64_t remembered_hash_ = 0;
  std::unique_ptr<MicroBatches> micro_batches_;
  std::unique_ptr<ShardedTraining> sharded_;
  Buffer<float> owners_;                // their values, where they are looked at
  std::unique_ptr<DropTraining> drop_;  // its thread may use all of the above
};

}  // namespace language_model
