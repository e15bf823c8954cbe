// What --micro-batches, --drop-compute and the options that go with them say, and the files that they name.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "research/model/data_parallel.h"
#include "research/drop_compute/drop_training.h"
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

// invalid: names the option that is wrong, or those that do not go together.
unisono::Result<MicroBatchOptions> parse_micro_batches(const MicroBatchSettings& settings);

struct RankOfRun {
  uint32_t rank = 0;
  uint64_t steps = 0;
  uint64_t seed = 1;
};
// What this rank computes in each step, if --random-drop or --replay say so; else what it was given. invalid: the line of the
// file that is wrong.
unisono::Result<MicroBatchOptions> with_counts(MicroBatchOptions options, const MicroBatchSettings& settings,
                                               const RankOfRun& run);
// Of each rank's micro-batches exactly that share, rounded to whole ones, is left out.
std::vector<uint32_t> counts_by_lot(double share, uint32_t micro_batches, const RankOfRun& run);

std::string record_path(const std::string& beginning, uint32_t rank);
// step,k,M,compute_ns,wall_ns,dropped
std::string record_text(std::span<const DropRecord> steps);
// k of each of those lines. invalid: a line that is wrong, or of another number of micro-batches; fewer than `steps` of them.
unisono::Result<std::vector<uint32_t>> read_record(const std::string& text, uint32_t micro_batches, uint64_t steps);
// What all ranks have recorded for the threshold, as `unisono drop-compute search` reads it. All ranks call it.
unisono::Result<std::string> trace_of(GradientExchange& exchange, const DropTraining& drop, uint32_t micro_batches);

}  // namespace language_model
