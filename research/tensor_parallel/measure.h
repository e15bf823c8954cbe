// Runs prefill and decode with every setting in turn, several times, and records the times.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "research/tensor_parallel/exchange.h"

namespace tensor_parallel {

struct MeasureOptions {
  std::vector<Setting> settings;  // the results of the others are compared with those of the first
  WeightOptions weights;
  size_t prompt = 512;
  size_t tokens = 16;
  size_t repetitions = 3;
};

// One prefill, or one token of the decode.
struct Step {
  double total_s = 0;  // of the rank that took longest
  // The part of total_s in all-reduces: from the first message of the last rank until the fastest rank has the sum. The rest is
  // computing, and waiting for ranks that compute or occupy the core.
  double communication_s = 0;
};

struct Phase {
  std::vector<Step> steps;      // of all repetitions
  std::vector<double> alone_s;  // one all-reduce of this size while nobody computes: the mean over the ranks, for each call
  uint64_t sent_payload = 0;    // in one step, mean over the ranks: elements and their scales
  uint64_t sent_bytes = 0;      // likewise, headers included
  double bits_per_element = 0;  // on the wire, each time that one was sent
  std::string schedule, codec, codec_note;
  uint32_t passes = 0;
  double snr_db = 0;  // of the hidden state at the end against that of the first setting; infinite if it is the same
};

struct SettingResult {
  Setting setting;
  Phase prefill, decode;
};

struct Measured {
  std::vector<SettingResult> results;  // in the order of the settings
  // One sentence for each case in which ranks ended with different hidden states; equal on all ranks.
  std::vector<std::string> faults;
};

// Called on every rank after each setting of each repetition.
using OnRun = std::function<void(size_t runs, const std::string& setting)>;

// All ranks call it with the same options. The model's cache must hold prompt + tokens.
unisono::Result<Measured> measure(unisono::Group& group, Transformer& model, const MeasureOptions& options,
                                  const OnRun& on_run);

// 10 log10(sum of squares / sum of squared errors).
double snr_db(std::span<const float> exact, std::span<const float> other);

}  // namespace tensor_parallel
