// The settings of --micro-batches, --drop-compute and related options. This file also has the functions for the files that
// these options read and write.
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
  uint32_t count = 0;  // number of micro-batches in each part of a batch; 0: do not use micro-batches
  // These texts are for DropOptions::parse and DelayModel::parse. An empty text means that nothing is dropped or delayed.
  std::string drop = {}, delay = {};
  bool delay_base = false;
  double random_drop = 0;  // share of the micro-batches that are dropped at random
  // The paths of these files begin with these texts. Each rank has its own file, see record_path().
  std::string record = {}, replay = {};
  std::string trace = {};  // path of the trace file to write
};

// Returns invalid, with the name of the option, if an option is wrong or if two options exclude each other.
unisono::Result<MicroBatchOptions> parse_micro_batches(const MicroBatchSettings& settings);

struct RankOfRun {
  uint32_t rank = 0;
  uint64_t steps = 0;
  uint64_t seed = 1;
};
// Returns `options` with the number of micro-batches that this rank computes in each step. The numbers come from --random-drop
// or --replay. Without these two, `options` is returned unchanged. If a line of the replayed file is wrong, the result is
// invalid, with the line's number.
unisono::Result<MicroBatchOptions> with_counts(MicroBatchOptions options, const MicroBatchSettings& settings,
                                               const RankOfRun& run);
// Returns how many micro-batches the rank computes in each step. Over the whole run, it drops the fraction `share` of its
// micro-batches, rounded to a whole number.
std::vector<uint32_t> random_drop_counts(double share, uint32_t micro_batches, const RankOfRun& run);

std::string record_path(const std::string& beginning, uint32_t rank);
// Returns a head line, and then one line for each step: step,k,M,compute_ns,wall_ns,dropped. The line says that k of M
// micro-batches were computed.
std::string record_text(std::span<const DropRecord> steps);
// Reads the number k of each step from a text that record_text() wrote. Returns invalid if a line is wrong, if its number M is
// not `micro_batches`, or if there are fewer than `steps` lines.
unisono::Result<std::vector<uint32_t>> read_record(const std::string& text, uint32_t micro_batches, uint64_t steps);
// DropCompute records the times of its first steps to choose its threshold. This function returns the recorded times of all
// ranks, in the format that `unisono-lab drop-compute search` reads. All ranks must call it.
unisono::Result<std::string> trace_of(GradientExchange& exchange, const DropTraining& drop, uint32_t micro_batches);

}  // namespace language_model
