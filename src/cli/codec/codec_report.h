// The output of `unisono codec`: a summary, a table, a picture, JSON. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cli/codec/codec_trial.h"
#include "cli/common/plot.h"

namespace unisono::cli {

// The result of decoding messages. There are no original elements to compare with.
struct DecodeOutcome {
  WireCodec codec;
  DType dtype = DType::f32;
  MessageTally tally;
  kernels::BlockCounts counts;
  uint64_t nonfinite = 0;  // elements
};

// "4.00 MB": powers of 1000.
std::string decimal_bytes(uint64_t bytes);

std::string summary_of(const CodecTrial& trial);
std::string summary_of(const DecodeOutcome& outcome);
// One line each. Infinite and meaningless values are null.
std::string json_of(const CodecTrial& trial);
std::string json_of(const DecodeOutcome& outcome);

// Several trials with the same elements.
struct CodecComparison {
  std::string name;  // of the input
  std::vector<CodecTrial> trials;
};
std::string table_of(const CodecComparison& comparison);
std::string json_of(const CodecComparison& comparison);
// Signal-to-noise ratio and bytes against the width, one line with spikes and one without.
std::vector<Panel> panels_of(const CodecComparison& comparison);

}  // namespace unisono::cli
