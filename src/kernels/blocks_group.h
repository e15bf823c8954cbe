// One group of a block: the numbers in its header, how they are rounded, and how they are stored. The reference and the SIMD
// kernels share these functions.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "kernels/blocks.h"

namespace unisono::kernels {

inline constexpr uint32_t group_max = 256;
inline constexpr uint32_t no_index = UINT32_MAX;
inline constexpr float tiny = 0x1p-100f;  // magnitudes below this count as zero, so denormals never matter
inline constexpr float quiet_nan = std::numeric_limits<float>::quiet_NaN();

constexpr size_t metadata_bytes(Metadata type) { return type == Metadata::f32 ? 4 : 2; }
// largest() is the largest magnitude that encoding does not change. smallest_scale() is the smallest scale that is not zero.
constexpr float largest(Metadata type) { return type == Metadata::f16 ? 65504.0f : 0x1p126f; }
constexpr float smallest_scale(Metadata type) { return type == Metadata::f16 ? 0x1p-24f : tiny; }

// Returns 0 if the magnitude is below `tiny`, and otherwise the value itself. Comparisons and headers use the result.
inline float comparable(float value) { return std::fabs(value) < tiny ? 0.0f : value; }

enum class Rounding : uint8_t { down, up, near };

// Rounds the value to a number of the metadata's type. It is rounded down, up, or to nearest (ties to even). The value must be
// finite and in the range of the type. The result is exact in fp32, and is never -0.
inline float rounded(Metadata type, float value, Rounding rounding) {
  if (type == Metadata::f32) return value + 0.0f;
  if (type == Metadata::f16 && std::fabs(value) < 0x1p-14f) {  // subnormal numbers are multiples of 2^-24
    const float steps = value * 0x1p24f;
    const float whole = rounding == Rounding::down ? std::floor(steps)
                        : rounding == Rounding::up ? std::ceil(steps)
                                                   : std::nearbyint(steps);
    return whole * 0x1p-24f + 0.0f;
  }
  const uint32_t bits = std::bit_cast<uint32_t>(value), unit = type == Metadata::f16 ? 1u << 13 : 1u << 16;
  const bool negative = (bits >> 31) != 0;
  // To round, this number is added to the magnitude, and then the low bits are cleared. A carry out of the mantissa raises the
  // exponent, as it should.
  const uint32_t added = rounding == Rounding::near               ? unit / 2 - 1 + (bits / unit & 1)
                         : (rounding == Rounding::up) != negative ? unit - 1
                                                                  : 0;
  return std::bit_cast<float>((bits + added) & ~(unit - 1)) + 0.0f;
}

struct GroupHeader {
  float scale = 0, minimum = 0;
  float low = 0, high = 0;  // the spikes, if the format has spikes
  uint32_t low_at = no_index, high_at = no_index;

  bool poisoned() const { return std::isnan(scale); }
  bool is_spike(uint32_t i) const { return i == low_at || i == high_at; }
};

// Sets scale and minimum such that codes can represent the values from `low` to `high`. They are rounded in such a way that the
// codes cover this range.
inline void set_scale(const BlockFormat& format, float low, float high, GroupHeader& header) {
  const auto steps = static_cast<float>((1u << format.bits) - 1);
  header.minimum = rounded(format.metadata, low, Rounding::down);
  const float distance = high - header.minimum;
  header.scale =
      distance == 0 ? 0 : std::max(rounded(format.metadata, distance / steps, Rounding::up), smallest_scale(format.metadata));
}

void store_header(const BlockFormat& format, const BlockLayout& layout, size_t group, const GroupHeader& header,
                  std::byte* block);
GroupHeader load_header(const BlockFormat& format, const BlockLayout& layout, size_t group, const std::byte* block);

// The reference encoder for one group of fp32 values. It writes header and codes, and counts special values in `counts`.
void encode_group(const BlockFormat& format, const float* values, uint32_t size, GroupHeader& header, uint8_t* codes,
                  BlockCounts& counts);

// The reference for a part of a block. The SIMD kernels call it for the elements at the end that do not fill whole groups.
void encode_part_reference(const BlockFormat& format, const BlockLayout& layout, BlockPart part, DType from,
                           const void* elements, void* block, BlockCounts& counts);
void decode_part_reference(const BlockFormat& format, const BlockLayout& layout, BlockPart part, const void* block, DType to,
                           void* elements, BlockCounts& counts);
void decode_add_part_reference(const BlockFormat& format, const BlockLayout& layout, BlockPart part, const void* block,
                               void* sums);

inline const std::byte* after(const void* elements, DType type, size_t count) {
  return static_cast<const std::byte*>(elements) + count * element_bytes(type);
}
inline std::byte* after(void* elements, DType type, size_t count) {
  return static_cast<std::byte*>(elements) + count * element_bytes(type);
}
// Returns the part without its first `whole` elements, which must be whole groups.
inline BlockPart rest_of(BlockPart part, size_t whole) { return {part.first + whole, part.count - whole}; }

}  // namespace unisono::kernels
