// A training with a sharded optimizer, and its records of each step: how much was missing, how old parameters were, and how far
// replicas drifted apart.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "research/model/data_parallel.h"
#include "research/model/model.h"
#include "research/model/optimizer.h"
#include "research/packet_loss/sharded_exchange.h"

namespace language_model {

// Sums over all steps of one rank so far. They are gathered as words, so every member has 8 bytes. A range is the content of
// one datagram.
struct ShardedSums {
  struct Half {
    uint64_t expected = 0;               // ranges that were sent to this rank
    uint64_t missing = 0, repaired = 0;  // ranges that never came, and those that came only when they were requested again
    uint64_t late = 0;                   // datagrams that came after their phase had closed
    uint64_t cut = 0;                    // streams that a deadline ended, or that were silent
  };
  uint64_t steps = 0, learning = 0;  // learning: steps in which deadlines were still learned and everything was repaired
  Half gradients, values;
  uint64_t full_ranges = 0, short_ranges = 0,
           empty_ranges = 0;  // of the own shard: with all, some, and none of the others' gradients
  uint64_t ranges = 0, stale = 0, fetched = 0, held = 0,
           age_max = 0;          // of the others' values at the end of steps, and of the own shard
  uint64_t behind = 0;           // steps that this rank was not there for
  uint64_t scalars_missing = 0;  // norms of other ranks that were old
  uint64_t skipped = 0;          // steps that changed nothing, because gradients were not finite
  uint64_t reduce_us = 0, update_us = 0, gather_us = 0;
};
// The share of ranges that did not come the first time: (missing + repaired) / expected.
double lost_share(const ShardedSums::Half& half);
// Sums over all ranks; age_max is the largest.
ShardedSums sum_of(std::span<const ShardedSums> ranks);

struct DriftPoint {
  uint32_t step = 0;
  unisono::ShardedDrift drift;
};

// Losses on the held-out text.
struct ReplicaPoint {
  size_t step = 0;
  float owners = 0;   // with the owners' values
  float replica = 0;  // the mean over the ranks of their losses on a part of the held-out text, each with its own replica
};

struct ShardedNotes {
  ShardedSums sums;               // this rank's
  std::vector<DriftPoint> drift;  // equal on all ranks
  std::vector<ReplicaPoint> validation;
  std::vector<std::string> warnings;  // each once
};

// The report at the end of a training.
struct ShardedResults {
  std::string options;   // as ShardedOptions::to_string says them
  std::string ablation;  // empty: no rule was broken
  ShardedNotes notes;    // rank 0's
  std::vector<ShardedSums> ranks;
};

class ShardedTraining {
 public:
  // All ranks call it; all begin with rank 0's parameters, whatever the others give. Errors: those of make_sharded_exchange.
  static unisono::Result<std::unique_ptr<ShardedTraining>> make(const ShardedPlan& plan, const ParameterLayout& layout,
                                                                const OptimizerOptions& options,
                                                                std::span<const float> parameters, GradientExchange& exchange);

  // The number of steps done.
  size_t step() const { return exchange_->step(); }
  std::span<const float> parameters() const { return exchange_->parameters(); }
  // A rank that was away skips steps: step() then grows by more than one.
  unisono::Status run(std::span<const float> gradients);
  unisono::Status owners_values(std::span<float> values) { return exchange_->owners_values(values); }
  void note_validation(const ReplicaPoint& point) { notes_.validation.push_back(point); }

  const ShardedNotes& notes() const { return notes_; }
  const ExchangeStatistics& statistics() const { return statistics_; }

 private:
  ShardedTraining(const OptimizerOptions& options, std::unique_ptr<ShardedExchange> exchange)
      : options_(options), exchange_(std::move(exchange)) {}
  void note(const unisono::ShardedReport& report);

  const OptimizerOptions options_;
  const std::unique_ptr<ShardedExchange> exchange_;
  ShardedNotes notes_;
  ExchangeStatistics statistics_;
};

}  // namespace language_model
