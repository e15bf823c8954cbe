// The training loop. It can compute a step in three ways:
//   data-parallel      Each process computes one part of the batch, and the exchange averages over the processes.
//   parts in order     One process computes the parts one after another, and averages them in the same order as the exchange.
//                      The result has the same bits.
//   the whole at once  One process computes the whole batch as one part. The result is equal up to rounding.
// Data-parallel processes either average their gradients and update all parameters, or each of them owns a shard of the
// parameters (TrainingOptions::sharded). A part may be computed in micro-batches, and data-parallel processes may drop some of
// these (micro_batches.h, drop_training.h).
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
  OptimizerOptions optimizer;  // optimizer.steps is the number of steps in the whole training.
  size_t batch = 16;           // number of sequences in a step, over all parts together
  uint64_t seed = 1;
  size_t validation_every = 50;      // number of steps between validations; 0: never validate, not even at the end
  size_t validation_sequences = 64;  // number of sequences in a validation before the end, over all parts together
  size_t final_validation_sequences = 256;
  MicroBatchOptions micro_batches = {};     // how each part is divided into micro-batches
  std::optional<ShardedPlan> sharded = {};  // If it is set, each process owns a shard of the parameters.
};

// The batch is cut into `total` equal parts. This process computes `count` of them. Its first part is number `first`.
struct Parts {
  size_t first = 0;
  size_t count = 1;
  size_t total = 1;
};

struct ValidationPoint {
  size_t step = 0;  // number of steps before the validation
  float loss = 0;
};

struct TrainingTimes {
  double total_s = 0;    // wall time of all steps, without validation
  double compute_s = 0;  // total_s minus the time in which this process waited for communication
  double cpu_s = 0;      // CPU time that all threads of this process used during steps
  double validation_s = 0;
};

struct TrainingHistory {
  // The loss of each step before the step's update, in nats per byte. It is the mean over the part of the batch that was
  // computed. With a sharded optimizer, it is the loss of this rank while the training runs, and the mean over the ranks
  // afterwards.
  std::vector<float> losses;
  std::vector<ValidationPoint> validation;
  // for each step: the bytes that this process sent from the start of the training to the end of the step
  std::vector<uint64_t> sent_bytes;
  // for each step: the seconds from the start of the training to the end of the step, without validation
  std::vector<double> seconds;
  std::vector<DropRecord> drops;  // one record for each step of this process; empty without DropCompute
  TrainingTimes times;
};

// Returns a 64-bit hash of the bits of all values.
uint64_t hash_of(std::span<const float> values);

// Returns the parameters in the order of the gradients. Output = input * matrix, so a column has the weights of one output. In
// the embedding, however, a row has the values of one token.
std::vector<ExchangedParameter> exchanged_parameters(const ParameterLayout& layout);

class Trainer {
 public:
  // The argument of the function that is called after each step.
  struct Progress {
    size_t step = 0;  // number of steps that are done
    float loss = 0;
    const ValidationPoint* validation = nullptr;
    const DropTraining* drop = nullptr;  // null without DropCompute
  };
  using OnProgress = std::function<void(const Progress&)>;

  // Fails if the shape is invalid, or if the batch cannot be cut into equal parts and micro-batches. `text` and `exchange` must
  // outlive the trainer.
  static unisono::Result<std::unique_ptr<Trainer>> make(const TrainingOptions& options, Parts parts, const Text& text,
                                                        GradientExchange& exchange);
  // Broadcasts the initial parameters of rank 0, and then runs the first `steps` steps of the training.
  unisono::Status run(size_t steps, const OnProgress& on_progress);

  // With a sharded optimizer, this is the replica (copy) of this rank while the training runs. After the last step, each value
  // is the one that its owner has, so the parameters are equal on all ranks.
  std::span<const float> parameters() const { return parameters_; }
  const TrainingHistory& history() const { return history_; }
  // Returns the part of the training that uses DropCompute. Returns null without DropCompute.
  const DropTraining* drop() const { return drop_.get(); }
  // Returns the part of the training that uses the sharded optimizer. Returns null without such an optimizer.
  const ShardedTraining* sharded() const { return sharded_.get(); }
  const ExchangeStatistics& statistics() const { return sharded_ ? sharded_->statistics() : exchange_.statistics(); }
  // remembered_hash() will return the hash of the parameters after `steps` steps. Without this call, it returns 0.
  void remember_hash_after(size_t steps) { hash_after_ = steps; }
  uint64_t remembered_hash() const { return remembered_hash_; }
  // Returns `count` bytes that the model generates after the prompt. The temperature is 0.8.
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
  // The gradients, followed by the sum of the losses and their number. One operation averages all of them. The loss values are
  // in the bucket that is sent first.
  Buffer<float> gradients_;
  Buffer<float> part_gradients_;  // It is used if this process computes several parts.
  TrainingHistory history_;
  size_t hash_after_ = 0;
  uint64_t remembered_hash_ = 0;
  std::unique_ptr<MicroBatches> micro_batches_;
  std::unique_ptr<ShardedTraining> sharded_;
  Buffer<float> owners_;                // the parameter values that their owners have; used in validations
  std::unique_ptr<DropTraining> drop_;  // It is declared last, because its thread may use all other members.
};

}  // namespace language_model
