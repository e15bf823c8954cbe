// The training text, and the sequences of the batch of each step. The text is one file. Its last part is not used for training,
// but for validation (it is held out).
//
// A sequence depends only on the seed, on the step, and on its index in the whole batch. Therefore four processes that compute
// a quarter of the batch each see the same sequences as one process that computes the whole batch.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "research/model/model.h"
#include "unisono/status.h"

namespace language_model {

// Returns a hash of the arguments in which all bits are well mixed. It applies the finalizer of SplitMix64 to each argument in
// turn.
uint64_t mixed(uint64_t a, uint64_t b, uint64_t c);

class Text {
 public:
  // These functions fail if the file cannot be read, or if the training part or the validation part is too short for one
  // sequence.
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

// A range of the sequences of a batch.
struct SequenceRange {
  size_t first = 0;
  size_t count = 0;
};

// Returns some sequences of the batch of one step. They are drawn at random from the training part.
Batch training_batch(const Text& text, uint64_t seed, uint64_t step, SequenceRange range);
// Spreads `total` sequences evenly over the validation part, and returns those whose numbers are in `range`.
Batch validation_batch(const Text& text, size_t total, SequenceRange range);

}  // namespace language_model
