// The text that is learned: one file, whose last part is held out, and the sequences of it that make the batch of a step.
//
// Every sequence of every batch is a function of (seed, step, index of the sequence in the whole batch) alone, so that four
// processes which take a quarter of the batch each see exactly what one process with the whole batch sees.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "research/model/model.h"
#include "unisono/status.h"

namespace language_model {

// A well mixed function of its arguments (the finaliser of SplitMix64, applied to each in turn).
uint64_t mixed(uint64_t a, uint64_t b, uint64_t c);

class Text {
 public:
  // Fails if the file cannot be read, or if a part of it is too short for one sequence.
  static unisono::Result<Text> load(const std::string& path, double validation_fraction, size_t context);
  static unisono::Result<Text> from_bytes(std::vector<uint8_t> bytes, double validation_fraction, size_t context);

  std::span<const uint8_t> training() const { return std::span(bytes_).first(training_count_); }
  std::span<const uint8_t> validation() const { return std::span(bytes_).subspan(training_count_); }
  size_t context() const { return context_; }

 private:
  Text() = default;
  std::vector<uint8_t> bytes_;
  size_t training_count_ = 0;
  size_t context_ = 0;
};

// Some consecutive sequences of a batch.
struct SequenceRange {
  size_t first = 0;
  size_t count = 0;
};

// Sequences of the batch of one step, drawn from anywhere in the training part.
Batch training_batch(const Text& text, uint64_t seed, uint64_t step, SequenceRange range);
// Sequences out of `total` that are spread evenly over the validation part.
Batch validation_batch(const Text& text, size_t total, SequenceRange range);

}  // namespace language_model
