// The results of a training: the checks, a table, loss.csv, summary.json and loss.svg.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "research/drop_compute/drop_settings.h"
#include "research/model/trainer.h"
#include "unisono/status.h"

namespace language_model {

// The numbers of one rank. gather() sends them as 64-bit words, so every member must have 8 bytes.
struct RankResult {
  uint64_t parameter_hash = 0;
  uint64_t early_hash = 0;  // hash of the parameters after reference_steps steps
  uint64_t sent_bytes = 0;
  uint64_t received_bytes = 0;
  uint64_t operations = 0;
  double total_s = 0;
  double compute_s = 0;
  double cpu_s = 0;
  double waited_s = 0;
  double overlapped_s = 0;
  // With DropCompute: how many micro-batches were planned, and how many of them were computed.
  uint64_t planned = 0, computed = 0;
};

// Says how micro-batches were dropped. The reports are the same on all ranks.
struct DropResults {
  MicroBatchSettings settings;
  std::string options;                // the text of all DropCompute options
  unisono::DropReport window, total;  // the report of the last window, and that of all steps

  // Returns how many times more micro-batches per second were computed in the last window than in the recorded steps. Returns
  // nullopt if either rate is unknown.
  std::optional<double> speedup() const;
};

// The first steps of the training, computed by one process for comparison. The process computes the whole batch of every step.
struct ReferenceRun {
  std::vector<float> losses;
  uint64_t parameter_hash = 0;
  double seconds = 0;
};

struct Comparison {
  size_t steps = 0;
  double difference_max = 0;      // the largest difference between two losses of the same step, in nats
  bool losses_identical = false;  // true: the losses of every step have the same bits
  bool parameters_identical = false;
  // The largest difference_max that passes the check. nullopt: gradients are encoded, so the difference is printed but not
  // checked.
  std::optional<double> tolerance;
  bool ok() const { return !tolerance || difference_max <= *tolerance; }  // false if difference_max is NaN
};

struct Results {
  TrainingOptions options;
  std::string text;
  size_t parameter_count = 0;
  std::string kernels;
  std::string codec = "plain";  // the codec for gradients
  bool error_feedback = false;
  CompressionNotes compression = {};  // These notes are from rank 0.
  TrainingHistory history;            // This is the history of rank 0, but its losses are averaged over all ranks.
  // for each step: the bytes sent from the start of the training to the end of the step, as a mean over the ranks
  std::vector<double> sent_bytes = {};
  // for each step: the sequences that all ranks together computed from the start of the training to the end of the step
  std::vector<uint64_t> sequences = {};
  std::optional<DropResults> drop = {};
  std::optional<ShardedResults> sharded = {};
  std::vector<RankResult> ranks = {};
  std::optional<ReferenceRun> in_order = {}, whole = {};
  std::optional<Comparison> in_order_comparison = {}, whole_comparison = {};
  std::string sample = {};

  bool parameters_identical() const;
  // Returns the share of micro-batches that were dropped, over all ranks.
  double dropped() const;
  // Returns one sentence for each check that failed. The result is empty if all checks passed.
  std::vector<std::string> faults() const;
};

// Compares the losses and the hash of the data-parallel training with those of the reference. `hash` is the hash of the
// parameters after as many steps as the reference has.
Comparison compare(const std::vector<float>& losses, uint64_t hash, const ReferenceRun& reference,
                   std::optional<double> tolerance);
// Returns the mean loss in the last twentieth of the training's steps.
double final_training_loss(const TrainingHistory& history);
// Returns 2 (n - 1) / n times the bytes of the gradients. A rank must send at least this many bytes in the all-reduce of one
// step.
double ideal_bytes(const Results& results);

std::string table(const Results& results);
std::string summary_json(const Results& results);
unisono::Status make_directory(const std::string& directory);
unisono::Status write_file(const std::string& path, const std::string& content);
// Writes loss.csv, summary.json and loss.svg to the directory. Creates the directory if it does not exist.
unisono::Status write_files(const Results& results, const std::string& directory);

}  // namespace language_model
