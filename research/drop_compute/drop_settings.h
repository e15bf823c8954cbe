// The settings of --micro-batches, --drop-compute and the options beside them, and the files that they name.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "research/drop_compute/drop_training.h"
#include "research/model/data_parallel.h"
#include "research/model/micro_batches.h"
#include "unisono/status.h"

namespace language_model {

struct MicroBatchSettings {
  uint32_t count = 0;                 // 0: none
  std::string drop = {}, delay = {};  // as DropOptions::parse and DelayModel::parse read them; empty: none
  bool delay_base = false;
  double random_drop = 0;                // share of micro-batches that are left out by lot
  std::string record = {}, replay = {};  // beginnings of the names of files, one for each rank
  std::string trace = {};                // a file
};

// Checks the settings. invalid: names the wrong option, or options that exclude each other.
unisono::Result<MicroBatchOptions> parse_micro_batches(const MicroBatchSettings& settings);

struct RankOfRun {
  uint32_t rank = 0;
  uint64_t steps = 0;
  uint64_t seed = 1;
};
// Adds what this rank computes in each step, by --random-drop or --replay. Without them the options stay as they are. invalid:
// names the wrong line of the file.
unisono::Result<MicroBatchOptions> with_counts(MicroBatchOptions options, const MicroBatchSettings& settings,
                                               const RankOfRun& run);
// Leaves out exactly this share of each rank's micro-batches, rounded to whole ones.
std::vector<uint32_t> counts_by_lot(double share, uint32_t micro_batches, const RankOfRun& run);

std::string record_path(const std::string& beginning, uint32_t rank);
// step,k,M,compute_ns,wall_ns,dropped
std::string record_text(std::span<const DropRecord> steps);
// Reads k of each of those lines. invalid: a line is wrong, or for another number of micro-batches; or there are fewer than
// `steps` lines.
unisono::Result<std::vector<uint32_t>> read_record(const std::string& text, uint32_t micro_batches, uint64_t steps);
// The times that all ranks have recorded for the threshold, in the format of `unisono-lab drop-compute search`. All ranks call
// it.
unisono::Result<std::string> trace_of(GradientExchange& exchange, const DropTraining& drop, uint32_t micro_batches);

}  // namespace language_model
