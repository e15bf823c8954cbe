// Encodes and decodes chunks with a codec, and sums up the errors.
#include "cli/codec/codec_trial.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "kernels/dispatch.h"

namespace unisono::cli {

void ErrorStatistics::add(std::span<const float> before, std::span<const float> after) {
  UNISONO_CHECK(before.size() == after.size());
  // First sum up this chunk alone. If small terms were added directly to the large sum of a long file, they would be rounded
  // away.
  ErrorStatistics here;
  for (size_t i = 0; i < before.size(); ++i) {
    const double x = before[i], error = x - after[i];
    here.nonfinite += std::isfinite(before[i]) ? 0 : 1;
    if (!std::isfinite(error)) continue;
    ++here.compared;
    here.signal += x * x;
    here.noise += error * error;
    here.max_abs_error = std::max(here.max_abs_error, std::abs(error));
  }
  elements += before.size();
  nonfinite += here.nonfinite;
  compared += here.compared;
  signal += here.signal;
  noise += here.noise;
  max_abs_error = std::max(max_abs_error, here.max_abs_error);
}

std::optional<double> ErrorStatistics::snr_db() const {
  if (!(signal > 0) || !(noise > 0)) return std::nullopt;
  return 10 * (std::log10(signal) - std::log10(noise));
}

std::optional<double> ErrorStatistics::rms_error() const {
  if (compared == 0) return std::nullopt;
  return std::sqrt(noise / static_cast<double>(compared));
}

uint64_t count_nonfinite(std::span<const float> values) {
  return static_cast<uint64_t>(std::count_if(values.begin(), values.end(), [](float value) { return !std::isfinite(value); }));
}

void widen(DType type, std::span<const std::byte> elements, std::span<float> values) {
  UNISONO_CHECK(elements.size() == values.size() * element_bytes(type));
  if (values.empty()) return;
  if (type == DType::f32) std::memcpy(values.data(), elements.data(), elements.size());
  else kernels::convert(DType::f32, values.data(), type, elements.data(), values.size());
}

WireCodec codec_for(const StepCodec& step, bool poison, DType dtype) {
  return wire_codec(facts_of(step.kind).only_f32 && dtype != DType::f32 ? StepCodec{} : step, dtype, dtype, poison);
}

void CodecTrial::add(std::span<const std::byte> elements, TrialMemory& memory) {
  const size_t count = elements.size() / element_bytes(dtype_);
  UNISONO_CHECK(count <= file_message_elements && elements.size() % element_bytes(dtype_) == 0);
  memory.message.resize(codec_.message_bytes(count));
  memory.decoded.resize(elements.size());
  memory.before.resize(count);
  memory.after.resize(count);
  tally_.add(codec_, count);
  if (count == 0) return;
  unisono::encode(
      {.codec = codec_, .dtype = dtype_, .elements = elements.data(), .count = count, .message = memory.message.data()},
      counts_);
  unisono::decode(
      {.codec = codec_, .message = memory.message.data(), .dtype = dtype_, .elements = memory.decoded.data(), .count = count},
      counts_);
  widen(dtype_, elements, memory.before);
  widen(dtype_, memory.decoded, memory.after);
  errors_.add(memory.before, memory.after);
}

std::string canonical_text(const WireCodec& codec) {
  StepCodec step{.kind = codec.kind};
  if (facts_of(codec.kind).has_options) {
    step.bits = codec.block.bits;
    step.group = codec.block.group;
    step.metadata = static_cast<StepCodec::Metadata>(codec.block.metadata);
    step.spikes = codec.block.spikes ? StepCodec::Spikes::on : StepCodec::Spikes::off;
  }
  auto all = Codec::of(step);
  all.poison = codec.block.poison;
  return all.to_string();
}

}  // namespace unisono::cli
