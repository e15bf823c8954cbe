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

// One rank's numbers. They are gathered as words, so every member has 8 bytes.
struct RankResult {
  uint64_t parameter_hash = 0;
  uint64_t early_hash = 0;  // after the steps that the reference computes
  uint64_t sent_bytes = 0;
  uint64_t received_bytes = 0;
  uint64_t operations = 0;
  double total_s = 0;
  double compute_s = 0;
  double cpu_s = 0;
  double waited_s = 0;
  double overlapped_s = 0;
  uint64_t planned = 0, computed = 0;  // micro-batches, with DropCompute
};

// How micro-batches were left out. The reports are the same on all ranks.
struct DropResults {
  MicroBatchSettings settings;
  std::string options;                // all of DropCompute's
  unisono::DropReport window, total;  // of the last window, and of all

  // Micro-batches per second in the last window, as a multiple of those in the recorded steps; none if either is unknown.
  std::optional<double> speedup() const;
};

// A run of the first steps by one process that sees the whole batch.
struct ReferenceRun {
  std::vector<float> losses;
  uint64_t parameter_hash = 0;
  double seconds = 0;
};

struct Comparison {
  size_t steps = 0;
  double difference_max = 0;      // of the losses, in nats
  bool losses_identical = false;  // to the bit
  bool parameters_identical = false;
  std::optional<double>
      tolerance;  // for difference_max; without a value it is printed and not checked, because gradients are encoded
  bool ok() const { return !tolerance || difference_max <= *tolerance; }  // false for NaN
};

struct Results {
  TrainingOptions options;
  std::string text;
  size_t parameter_count = 0;
  std::string kernels;
  std::string codec = "plain";  // of the gradients
  bool error_feedback = false;
  CompressionNotes compression = {};     // rank 0's
  TrainingHistory history;               // rank 0's; the losses are the means over all ranks
  std::vector<double> sent_bytes = {};   // up to and with each step, mean over ranks
  std::vector<uint64_t> sequences = {};  // that all ranks computed, up to and with each step
  std::optional<DropResults> drop = {};
  std::optional<ShardedResults> sharded = {};
  std::vector<RankResult> ranks = {};
  std::optional<ReferenceRun> in_order = {}, whole = {};
  std::optional<Comparison> in_order_comparison = {}, whole_comparison = {};
  std::string sample = {};

  bool parameters_identical() const;
  // The share of all ranks' micro-batches that was left out.
  double dropped() const;
  // One sentence for each check that failed; empty if all passed.
  std::vector<std::string> faults() const;
};

// final_hash: the data-parallel parameters after as many steps as the reference has.
Comparison compare(const std::vector<float>& losses, uint64_t hash, const ReferenceRun& reference,
                   std::optional<double> tolerance);
// The mean of the last twentieth of the training.
double final_training_loss(const TrainingHistory& history);
// The least that an all-reduce of the gradients must send and receive per rank and step: 2 (n - 1) / n times their bytes.
double ideal_bytes(const Results& results);

std::string table(const Results& results);
std::string summary_json(const Results& results);
unisono::Status make_directory(const std::string& directory);
unisono::Status write_file(const std::string& path, const std::string& content);
// Writes loss.csv, summary.json and loss.svg to the directory, and creates it if needed.
unisono::Status write_files(const Results& results, const std::string& directory);

}  // namespace language_model
