// Measures how short a codec makes a sequence of chunks, and how large its error is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/codec/codec_file.h"
#include "codecs/codec.h"

namespace unisono::cli {

// Compares the elements before encoding with the elements after decoding. Only elements that are finite both before and after
// count for the errors. A NaN makes all elements of its group NaN, so the whole group is left out.
struct ErrorStatistics {
  uint64_t elements = 0;
  uint64_t nonfinite = 0;  // number of elements that were NaN or infinite before encoding
  uint64_t compared = 0;   // number of elements that are finite both before and after
  double signal = 0;       // sum of x², where x is an element before encoding
  double noise = 0;        // sum of (x − x')², where x' is the element after decoding
  double max_abs_error = 0;

  void add(std::span<const float> before, std::span<const float> after);
  // Returns 10·log10(signal / noise). Returns nullopt if signal or noise is zero.
  std::optional<double> snr_db() const;
  // Returns nullopt if no element was compared.
  std::optional<double> rms_error() const;
  bool is_exact() const { return compared > 0 && noise == 0; }
};

uint64_t count_nonfinite(std::span<const float> values);
// Converts elements of type f32, f16 or bf16 to fp32.
void widen(DType type, std::span<const std::byte> elements, std::span<float> values);

// Scratch memory for chunks of at most file_message_elements. Several trials may use the same memory one after another.
struct TrialMemory {
  std::vector<std::byte> message, decoded;
  std::vector<float> before, after;
};

// Returns the codec that the engine would use for elements of type `dtype`. The codecs f16 and bf16 apply to f32 elements only;
// elements of other types stay plain.
WireCodec codec_for(const StepCodec& step, bool poison, DType dtype);

class CodecTrial {
 public:
  CodecTrial(const WireCodec& codec, DType dtype) : codec_(codec), dtype_(dtype) {}

  // Encodes and decodes the chunk. Afterwards `memory` holds the message and the decoded elements.
  void add(std::span<const std::byte> elements, TrialMemory& memory);

  const WireCodec& codec() const { return codec_; }
  DType dtype() const { return dtype_; }
  const MessageTally& tally() const { return tally_; }
  const ErrorStatistics& errors() const { return errors_; }
  const kernels::BlockCounts& counts() const { return counts_; }
  uint64_t plain_bytes() const { return tally_.elements * element_bytes(dtype_); }

 private:
  WireCodec codec_;
  DType dtype_;
  MessageTally tally_;
  ErrorStatistics errors_;
  kernels::BlockCounts counts_;
};

// Returns a text that Codec::parse can read, such as "int4:metadata=bf16,spikes=off". The text also gives the values of those
// options that were chosen automatically.
std::string canonical_text(const WireCodec& codec);

}  // namespace unisono::cli
