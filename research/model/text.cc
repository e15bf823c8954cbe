#include "research/model/text.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

#include "base/concat.h"

namespace language_model {

using unisono::Code;
using unisono::Result;
using unisono::Status;

namespace {

uint64_t finalise(uint64_t z) {
  z += 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

void append_sequence(std::span<const uint8_t> text, size_t at, size_t context, Batch& batch) {
  const auto inputs = text.subspan(at, context);
  const auto targets = text.subspan(at + 1, context);
  batch.inputs.insert(batch.inputs.end(), inputs.begin(), inputs.end());
  batch.targets.insert(batch.targets.end(), targets.begin(), targets.end());
  ++batch.sequences;
}

}  // namespace

uint64_t mixed(uint64_t a, uint64_t b, uint64_t c) { return finalise(finalise(finalise(a) ^ b) ^ c); }

Result<Text> Text::load(const std::string& path, double validation_fraction, size_t context) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return Status(Code::invalid, "cannot open the text " + path + ": " + std::strerror(errno));
  std::vector<uint8_t> bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (file.bad()) return Status(Code::unavailable, "cannot read the text " + path);
  auto text = from_bytes(std::move(bytes), validation_fraction, context);
  if (!text.ok()) return Status(text.status().code(), path + ": " + text.status().message());
  return text;
}

Result<Text> Text::from_bytes(std::vector<uint8_t> bytes, double validation_fraction, size_t context) {
  if (!(validation_fraction > 0 && validation_fraction < 1)) {
    return Status(Code::invalid, "the part held out for validation must be more than 0 and less than 1");
  }
  Text text;
  text.bytes_ = std::move(bytes);
  text.context_ = context;
  const auto held_out = static_cast<size_t>(static_cast<double>(text.bytes_.size()) * validation_fraction);
  text.training_count_ = text.bytes_.size() - held_out;
  const size_t shorter = std::min(held_out, text.training_count_);
  if (shorter < context + 1) {
    return Status(Code::invalid,
                  unisono::concat("the text has ", text.bytes_.size(), " bytes, ", held_out,
                                  " of them for validation; both parts need at least context + 1 = ", context + 1));
  }
  return text;
}

Batch training_batch(const Text& text, uint64_t seed, uint64_t step, SequenceRange range) {
  Batch batch;
  const auto training = text.training();
  const uint64_t position_count = training.size() - text.context();
  for (size_t i = range.first; i < range.first + range.count; ++i) {
    append_sequence(training, mixed(seed, step, i) % position_count, text.context(), batch);
  }
  return batch;
}

Batch validation_batch(const Text& text, size_t total, SequenceRange range) {
  Batch batch;
  const auto validation = text.validation();
  const size_t position_count = validation.size() - text.context();
  for (size_t i = range.first; i < range.first + range.count; ++i) {
    append_sequence(validation, (position_count - 1) * i / total, text.context(), batch);
  }
  return batch;
}

}  // namespace language_model
