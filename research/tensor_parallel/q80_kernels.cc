// This file is compiled without contraction (fused multiply-add), so that every instruction set gives the same bits. All code
// is in an anonymous namespace. Without that, the builds for different instruction sets would have functions of the same name,
// and the linker would keep only one of them.
#include "research/tensor_parallel/q80_kernels.h"

#include <bit>
#include <cstring>

#include "research/tensor_parallel/q80.h"

namespace tensor_parallel {
namespace {

constexpr uint16_t half_nan = 0x7E00;
constexpr float half_max = 65504;

// Rounds x to the nearest half-precision number; ties go to the even one. x must be between 0 and half_max.
uint16_t to_half(float x) {
  // Half-precision numbers below 2^-14 are multiples of 2^-24. Single-precision numbers between 0.5 and 1 are multiples of
  // 2^-24, too. Therefore x is rounded correctly if 0.5 is added, and the low bits of the sum count the multiples of 2^-24.
  if (x < 0x1p-14f) return static_cast<uint16_t>(std::bit_cast<uint32_t>(x + 0.5f) - std::bit_cast<uint32_t>(0.5f));
  const auto bits = std::bit_cast<uint32_t>(x) - (112u << 23);
  return static_cast<uint16_t>((bits + 0xFFF + ((bits >> 13) & 1)) >> 13);
}

// Converts a half-precision number to a float. The number must be a result of to_half, or half_nan.
float from_half(uint16_t half) {
  if (half == half_nan) return std::bit_cast<float>(0x7FC00000u);
  if (half < 0x400) return static_cast<float>(half) * 0x1p-24f;
  return std::bit_cast<float>((static_cast<uint32_t>(half) << 13) + (112u << 23));
}

// Encodes one block. Callers pass a constant count, so the compiler can vectorize the loops.
inline void encode_block(const float* __restrict values, size_t count, uint8_t* __restrict out) {
  // If magnitudes are compared by their bits, the order is the same. The bits of NaN are the largest.
  int32_t largest_bits = 0;
  for (size_t i = 0; i < count; ++i) {
    const int32_t magnitude = std::bit_cast<int32_t>(values[i]) & 0x7FFFFFFF;
    largest_bits = magnitude > largest_bits ? magnitude : largest_bits;
  }
  const float scale = std::bit_cast<float>(largest_bits) / 127.0f;
  if (!(scale <= half_max)) {
    std::memcpy(out, &half_nan, 2);
    std::memset(out + 2, 0, count);
    return;
  }
  const uint16_t half = to_half(scale);
  std::memcpy(out, &half, 2);
  const float inverse = scale >= 0x1p-126f ? 1 / scale : 0;  // Smaller scales become 0 in half precision.
  for (size_t i = 0; i < count; ++i) {
    const float code = values[i] * inverse;
    const float away = std::bit_cast<float>((std::bit_cast<uint32_t>(code) & 0x80000000u) | std::bit_cast<uint32_t>(0.5f));
    out[2 + i] = static_cast<uint8_t>(static_cast<int8_t>(static_cast<int32_t>(code + away)));
  }
}

inline void add_block(const uint8_t* __restrict encoded, size_t count, float* __restrict sums) {
  uint16_t half = 0;
  std::memcpy(&half, encoded, 2);
  const float scale = from_half(half);
  for (size_t i = 0; i < count; ++i) sums[i] += scale * static_cast<float>(static_cast<int8_t>(encoded[2 + i]));
}

void encode(const float* values, size_t count, uint8_t* out) {
  for (; count >= q80_block; count -= q80_block, values += q80_block, out += q80_block + 2)
    encode_block(values, q80_block, out);
  if (count > 0) encode_block(values, count, out);
}

void add(const uint8_t* encoded, size_t count, float* sums) {
  for (; count >= q80_block; count -= q80_block, encoded += q80_block + 2, sums += q80_block)
    add_block(encoded, q80_block, sums);
  if (count > 0) add_block(encoded, count, sums);
}

}  // namespace

#define TENSOR_PARALLEL_JOIN2(a, b) a##b
#define TENSOR_PARALLEL_JOIN(a, b) TENSOR_PARALLEL_JOIN2(a, b)

// The names are q80_kernels_baseline and q80_kernels_x86_64_v3.
extern const Q80Kernels TENSOR_PARALLEL_JOIN(q80_kernels_, TENSOR_PARALLEL_TARGET);
const Q80Kernels TENSOR_PARALLEL_JOIN(q80_kernels_, TENSOR_PARALLEL_TARGET){.encode = encode, .add = add};

}  // namespace tensor_parallel
