// Formats the output of `unisono codec`: a summary, a table, a plot, or JSON. All functions are pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cli/codec/codec_trial.h"
#include "cli/common/plot.h"

namespace unisono::cli {

// The result of decoding messages. It says nothing about errors, because the original elements are not known.
struct DecodeOutcome {
  WireCodec codec;
  DType dtype = DType::f32;
  MessageTally tally;
  kernels::BlockCounts counts;
  uint64_t nonfinite = 0;  // number of elements that are NaN or infinite
};

// Formats a number of bytes with powers of 1000: "4.00 MB".
std::string decimal_bytes(uint64_t bytes);

std::string summary_of(const CodecTrial& trial);
std::string summary_of(const DecodeOutcome& outcome);
// Each of these returns one line of JSON. Infinite and undefined values are written as null.
std::string json_of(const CodecTrial& trial);
std::string json_of(const DecodeOutcome& outcome);

// Several trials that encode the same elements.
struct CodecComparison {
  std::string name;  // name of the input file
  std::vector<CodecTrial> trials;
};
std::string table_of(const CodecComparison& comparison);
std::string json_of(const CodecComparison& comparison);
// Returns two panels. One shows the signal-to-noise ratio and the other shows the size, both against the width of a code. Each
// panel has one line for codecs with spikes and one for codecs without spikes.
std::vector<Panel> panels_of(const CodecComparison& comparison);

}  // namespace unisono::cli
