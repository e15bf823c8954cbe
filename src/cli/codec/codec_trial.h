// Measures the size and the error that a codec gives, while chunks of any number of elements pass through it.
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

// Compares elements before and after the codec. An error counts where both are finite. A NaN has no error, and it makes its
// whole group NaN.
struct ErrorStatistics {
  uint64_t elements = 0;
  uint64_t nonfinite = 0;  // NaN or infinite before
  uint64_t compared = 0;   // finite before and after
  double signal = 0;       // sum of x²
  double noise = 0;        // sum of (x − x')²
  double max_abs_error = 0;

  void add(std::span<const float> before, std::span<const float> after);
  // 10·log10(signal / noise); none if either is zero.
  std::optional<double> snr_db() const;
  // None if nothing was compared.
  std::optional<double> rms_error() const;
  bool is_exact() const { return compared > 0 && noise == 0; }
};

uint64_t count_nonfinite(std::span<const float> values);
// Elements of f32, f16 or bf16 as fp32.
void widen(DType type, std::span<const std::byte> elements, std::span<float> values);

// Memory that several trials may share, one after the other. For chunks of at most file_message_elements.
struct TrialMemory {
  std::vector<std::byte> message, decoded;
  std::vector<float> before, after;
};

// The codec that elements of `dtype` get. The codecs f16 and bf16 apply to f32 only: other elements stay as they are, as in the
// engine.
WireCodec codec_for(const StepCodec& step, bool poison, DType dtype);

class CodecTrial {
 public:
  CodecTrial(const WireCodec& codec, DType dtype) : codec_(codec), dtype_(dtype) {}

  // Encodes and decodes the chunk. Its message and its decoded elements stand in memory then, until it is used again.
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

// As Codec::parse reads it, with nothing left to choose: "int4:metadata=bf16,spikes=off".
std::string canonical_text(const WireCodec& codec);

}  // namespace unisono::cli
