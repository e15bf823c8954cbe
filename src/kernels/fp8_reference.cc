// The scalar reference for FP8. It defines which bytes the SIMD kernels must write.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "kernels/blocks_group.h"
#include "kernels/dispatch.h"
#include "kernels/fp8.h"

namespace unisono::kernels {
namespace {

constexpr uint16_t bf16_nan = 0x7FC0, bf16_infinity = 0x7F80;
constexpr uint8_t zero_code = 0;

float element(DType type, const void* elements, size_t i) {
  float value = 0;
  const auto* const at = after(elements, type, i);
  if (type == DType::f32) std::memcpy(&value, at, sizeof(value));
  else convert_reference(DType::f32, &value, type, at, 1);
  return value;
}

void set_element(DType type, void* elements, size_t i, float value) {
  if (type == DType::f32) std::memcpy(after(elements, type, i), &value, sizeof(value));
  else convert_reference(type, after(elements, type, i), DType::f32, &value, 1);
}

uint16_t scale_at(const BlockLayout& layout, size_t group, const std::byte* block) {
  uint16_t bits = 0;
  std::memcpy(&bits, block + layout.scales + 2 * group, 2);
  return bits;
}

float scale_of(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

// Sets `taken` to the value, or to the limit if the value is too large. Returns false if the value makes its group NaN.
bool take(const BlockFormat& format, float value, float& taken, float& largest_of_group, uint64_t& saturated) {
  const float limit = largest(Metadata::bf16);
  const bool too_large = std::fabs(value) > limit;
  if (!std::isfinite(value) || (too_large && format.poison)) return false;
  taken = too_large ? std::copysign(limit, value) : comparable(value);
  largest_of_group = std::max(largest_of_group, std::fabs(taken));
  saturated += too_large;
  return true;
}

void encode_group(const BlockFormat& format, DType from, const void* elements, size_t first, size_t size, std::byte* codes,
                  std::byte* scale_to, BlockCounts& counts) {
  float taken[fp8_group], largest_of_group = 0;
  uint64_t saturated = 0;
  bool sound = true;
  for (size_t i = 0; i < size && sound; ++i)
    sound = take(format, element(from, elements, first + i), taken[i], largest_of_group, saturated);
  const uint16_t scale = sound ? fp8_scale_for(largest_of_group) : bf16_nan;
  std::memcpy(scale_to, &scale, 2);
  if (!sound || scale == 0) {
    counts.nonfinite_groups += !sound;
    std::fill_n(codes, size, std::byte{zero_code});
    return;
  }
  counts.saturated += saturated;
  const float inverse = 1 / scale_of(scale);
  for (size_t i = 0; i < size; ++i)
    codes[i] = static_cast<std::byte>(e4m3_of(std::clamp(taken[i] * inverse, -fp8_largest, fp8_largest)));
}

template <typename Take>
void decode_each(const BlockLayout& layout, BlockPart part, const void* bytes, Take take) {
  const auto* const block = static_cast<const std::byte*>(bytes);
  for (size_t i = 0; i < part.count; ++i) {
    const size_t at = part.first + i;
    const float value = number_of_e4m3(static_cast<uint8_t>(block[at])) * scale_of(scale_at(layout, at / fp8_group, block));
    take(i, std::isnan(value) ? quiet_nan : value);
  }
}

}  // namespace

// The scale is rounded up. So element / scale is at most 448, except for a rounding error.
uint16_t fp8_scale_for(float largest_of_group) {
  if (largest_of_group == 0) return 0;
  const float scale =
      std::max(rounded(Metadata::bf16, largest_of_group / fp8_largest, Rounding::up), smallest_scale(Metadata::bf16));
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(scale) >> 16);
}

// Below 2^-6, a code is a number of steps of 2^-9. nearbyint rounds to the nearest step, ties to even. From 2^-6 on, there are
// 8 steps between two powers of two.
uint8_t e4m3_of(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const float magnitude = std::fabs(value);
  const auto sign = static_cast<uint8_t>(bits >> 31 << 7);
  if (magnitude < 0x1p-6f) return static_cast<uint8_t>(sign | static_cast<uint32_t>(std::nearbyint(magnitude * 0x1p9f)));
  const uint32_t kept = (bits & 0x7FFFFFFF) + ((1u << 19) - 1) + (bits >> 20 & 1);  // a carry correctly raises the exponent
  return static_cast<uint8_t>(sign | ((kept >> 20) - (120u << 3)));
}

float number_of_e4m3(uint8_t code) {
  const uint32_t magnitude = code & 0x7Fu, sign = static_cast<uint32_t>(code >> 7) << 31;
  if (magnitude == 0x7F) return quiet_nan;
  const float value =
      magnitude < 8 ? static_cast<float>(magnitude) * 0x1p-9f : std::bit_cast<float>((magnitude << 20) + (120u << 23));
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
}

bool is_fp8_format(const BlockFormat& format) {
  auto expected = fp8_format;
  expected.poison = format.poison;
  return format == expected;
}

BlockLayout fp8_layout_of(const BlockFormat& format, size_t count) {
  UNISONO_CHECK(is_fp8_format(format));
  BlockLayout layout;
  layout.padding = count;
  layout.scales = (count + 1) / 2 * 2;
  layout.bytes = layout.spikes = layout.spike_indices = layout.scales + (count + fp8_group - 1) / fp8_group * 2;
  layout.count = count;
  return layout;
}

void fp8_encode_part_reference(const BlockFormat& format, const BlockLayout& layout, BlockPart part, DType from,
                               const void* elements, void* bytes, BlockCounts& counts) {
  auto* const block = static_cast<std::byte*>(bytes);
  for (size_t first = 0; first < part.count; first += fp8_group) {
    const size_t at = part.first + first;
    encode_group(format, from, elements, first, std::min<size_t>(fp8_group, part.count - first), block + at,
                 block + layout.scales + at / fp8_group * 2, counts);
  }
  if (part.first + part.count == layout.count) std::memset(block + layout.padding, 0, layout.scales - layout.padding);
}

void fp8_decode_part_reference(const BlockFormat& format, const BlockLayout& layout, BlockPart part, const void* block,
                               DType to, void* elements, BlockCounts& counts) {
  decode_each(layout, part, block, [&](size_t i, float value) {
    if (to != DType::f32) bound_values(to, &value, 1, format.poison, counts);
    set_element(to, elements, i, value);
  });
}

void fp8_decode_add_part_reference(const BlockFormat&, const BlockLayout& layout, BlockPart part, const void* block,
                                   void* sums) {
  decode_each(layout, part, block, [&](size_t i, float value) {
    const float sum = element(DType::f32, sums, i) + value;
    set_element(DType::f32, sums, i, std::isnan(sum) ? quiet_nan : sum);
  });
}

// Returns whether the bytes are a valid block. No code may be NaN. Each scale must be the quiet NaN, or finite and not
// negative.
bool is_fp8_block(const BlockFormat& format, const void* bytes, size_t size, size_t count) {
  const auto layout = fp8_layout_of(format, count);
  if (size != layout.bytes) return false;
  const auto* const block = static_cast<const std::byte*>(bytes);
  uint32_t nan_codes = 0;
  for (size_t i = 0; i < count; ++i) nan_codes += (block[i] & std::byte{0x7F}) == std::byte{0x7F};
  if (nan_codes != 0 || (layout.padding < layout.scales && block[layout.padding] != std::byte{0})) return false;
  for (size_t group = 0; group * fp8_group < count; ++group) {
    const auto scale = scale_at(layout, group, block);
    if (scale >= bf16_infinity && scale != bf16_nan) return false;
  }
  return true;
}

}  // namespace unisono::kernels
