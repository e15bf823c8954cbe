// A training with a sharded optimizer. In each step, it records how many values were missing, how old the parameters were, and
// how far the replicas (the ranks' copies of the parameters) differed.
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

// These numbers are sums over all steps of one rank so far. Every member has 8 bytes, because gather() sends them as 64-bit
// words. A range is the content of one datagram.
struct ShardedSums {
  struct Half {
    uint64_t expected = 0;  // ranges that were sent to this rank
    // missing: ranges that never arrived. repaired: ranges that arrived only after they had been requested again.
    uint64_t missing = 0, repaired = 0;
    uint64_t late = 0;  // datagrams that arrived after the end of the phase to which they belong
    uint64_t cut = 0;   // streams that ended because of a deadline or because the sender was silent or lost
  };
  // learning: the steps in which no deadlines were known yet, so that all losses were repaired
  uint64_t steps = 0, learning = 0;
  Half gradients, values;
  // Numbers of ranges of this rank's shard for which the gradients of all, of some, or of none of the other ranks arrived.
  uint64_t full_ranges = 0, short_ranges = 0, empty_ranges = 0;
  // These numbers are sums over the steps:
  // - ranges: the ranges of the other ranks' shards
  // - stale: the ranges that were older than the step when it ended
  // - fetched: the ranges that were requested again because they were too old
  // - held: the ranges of this rank's shard that were not updated, because no contribution to them arrived
  //
  // age_max is the largest age of any range, in steps.
  uint64_t ranges = 0, stale = 0, fetched = 0, held = 0, age_max = 0;
  uint64_t behind = 0;           // steps in which this rank did not take part
  uint64_t scalars_missing = 0;  // gradient norms of other ranks that did not arrive, so that their previous norms were used
  uint64_t skipped = 0;          // steps without an update, because the gradients were not finite
  uint64_t reduce_us = 0, update_us = 0, gather_us = 0;
};
// Returns the share of ranges that did not arrive when they were sent first: (missing + repaired) / expected.
double lost_share(const ShardedSums::Half& half);
// Returns the sums over all ranks. age_max is not a sum, but the largest value of all ranks.
ShardedSums sum_of(std::span<const ShardedSums> ranks);

struct DriftPoint {
  uint32_t step = 0;
  unisono::ShardedDrift drift;
};

// Two losses on the held-out text.
struct ReplicaPoint {
  size_t step = 0;
  float owners = 0;  // computed with the parameter values that the owners have
  // Each rank computes the loss of its own replica on a part of the held-out text. This is the mean over the ranks.
  float replica = 0;
};

struct ShardedNotes {
  ShardedSums sums;               // the sums of this rank
  std::vector<DriftPoint> drift;  // measurements of the differences between replicas; equal on all ranks
  std::vector<ReplicaPoint> validation;
  std::vector<std::string> warnings;  // all warnings; equal ones are listed once
};

// The report at the end of a training.
struct ShardedResults {
  std::string options;   // text of ShardedOptions::to_string
  std::string ablation;  // the rule that was broken; empty: none
  ShardedNotes notes;    // These notes are from rank 0.
  std::vector<ShardedSums> ranks;
};

class ShardedTraining {
 public:
  // All ranks must call it. All of them use the parameters of rank 0; the parameters of the other ranks are ignored. Returns
  // the errors of make_sharded_exchange.
  static unisono::Result<std::unique_ptr<ShardedTraining>> make(const ShardedPlan& plan, const ParameterLayout& layout,
                                                                const OptimizerOptions& options,
                                                                std::span<const float> parameters, GradientExchange& exchange);

  // Returns the number of steps that are done.
  size_t step() const { return exchange_->step(); }
  std::span<const float> parameters() const { return exchange_->parameters(); }
  // Runs a step. If this rank was away, step() grows by more than one.
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
