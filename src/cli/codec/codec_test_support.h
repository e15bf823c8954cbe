// Helpers for the tests of `unisono codec`: elements that are equal on all machines, and files in memory.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/concat.h"
#include "cli/codec/codec_file.h"
#include "cli/codec/codec_trial.h"

namespace unisono::cli {

// A file in memory that can be opened by a path.
class MemoryFile {
 public:
  explicit MemoryFile(std::span<const std::byte> bytes = {}) : file_(::memfd_create("unisono-test", MFD_CLOEXEC)) {
    EXPECT_TRUE(file_);
    EXPECT_EQ(::write(file_.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  }
  std::string path() const { return concat("/proc/self/fd/", file_.get()); }

 private:
  Descriptor file_;
};

// Returns smooth values with some outliers.
inline std::vector<float> some_values(size_t count, uint32_t seed = 1) {
  std::vector<float> values(count);
  uint32_t state = seed;
  for (size_t i = 0; i < count; ++i) {
    state = 1664525 * state + 1013904223;
    values[i] = (static_cast<float>(state >> 8) - 8388608.0f) / 8388608.0f * (i % 37 == 5 ? 16.0f : 1.0f);
  }
  return values;
}

inline std::vector<std::byte> bytes_of(std::span<const float> values) {
  const auto bytes = std::as_bytes(values);
  return {bytes.begin(), bytes.end()};
}

// Returns the file that `unisono codec encode` writes for these values.
inline std::vector<std::byte> file_of(const WireCodec& codec, std::span<const float> values) {
  CodecTrial trial(codec, DType::f32);
  TrialMemory memory;
  std::vector<std::byte> file;
  for (size_t first = 0; first < values.size(); first += file_message_elements) {
    trial.add(std::as_bytes(values.subspan(first, std::min(file_message_elements, values.size() - first))), memory);
    file.insert(file.end(), memory.message.begin(), memory.message.end());
  }
  const auto mark = end_mark(codec, values.size());
  file.insert(file.end(), mark.begin(), mark.end());
  return file;
}

}  // namespace unisono::cli
