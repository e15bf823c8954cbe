// Runs the prefill and the decode with each setting in turn, several times, and records how long they take.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "research/tensor_parallel/exchange.h"

namespace tensor_parallel {

struct MeasureOptions {
  std::vector<Setting> settings;  // The first setting is the reference. The others are compared with it.
  WeightOptions weights;
  size_t prompt = 512;
  size_t tokens = 16;
  size_t repetitions = 3;
};

// The times of one prefill, or of the decode of one token.
struct Step {
  double total_s = 0;  // time of the slowest rank
  // The part of total_s that all-reduces take. An all-reduce begins when the first message of the last rank arrives, and ends
  // when the fastest rank has the sum. In the rest of total_s, ranks compute, or wait for ranks that compute or have no free
  // core.
  double communication_s = 0;
};

struct Phase {
  std::vector<Step> steps;  // the steps of all repetitions
  // The durations of single all-reduces of the same size that ran alone, without computing. Each is the mean over the ranks.
  std::vector<double> alone_s;
  uint64_t sent_payload = 0;    // bytes of the encoded elements and their scales in one step, as a mean over the ranks
  uint64_t sent_bytes = 0;      // all bytes in one step, headers included, as a mean over the ranks
  double bits_per_element = 0;  // bits that were sent for each element
  std::string schedule, codec, codec_note;
  uint32_t passes = 0;
  // The signal-to-noise ratio of the final hidden state. The signal is the state with the first setting. The ratio is infinite
  // if both states are equal.
  double snr_db = 0;
};

struct SettingResult {
  Setting setting;
  Phase prefill, decode;
};

struct Measured {
  std::vector<SettingResult> results;  // There is one result for each setting, in the order of the settings.
  // Each sentence names a rank whose hidden state was different from that of rank 0. The sentences are the same on all ranks.
  std::vector<std::string> faults;
};

// In each repetition, every rank calls this function after each setting. `runs` is the number of calls so far, including this
// one.
using OnRun = std::function<void(size_t runs, const std::string& setting)>;

// All ranks must call it with the same options. The cache of the model must have space for prompt + tokens.
unisono::Result<Measured> measure(unisono::Group& group, Transformer& model, const MeasureOptions& options,
                                  const OnRun& on_run);

// Returns the signal-to-noise ratio 10 log10(sum of squares / sum of squared errors).
double snr_db(std::span<const float> exact, std::span<const float> other);

}  // namespace tensor_parallel
