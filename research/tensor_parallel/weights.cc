#include "research/tensor_parallel/weights.h"

namespace tensor_parallel {
namespace {

// SplitMix64 (Steele, Lea, Flood, 2014).
uint64_t mixed(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// Returns a value whose distribution is bell-shaped and has variance 1. The sum stays an integer until the last step, so that
// all compilers produce the same bits.
float bell(uint64_t bits) {
  const auto part = [bits](int shift) { return static_cast<int32_t>((bits >> shift) & 0xFFFF); };
  const int32_t sum = part(0) + part(16) + part(32) + part(48) - 2 * 0xFFFF;
  // A uniform value has variance 1/12, so the sum of four of them has 1/3.
  return static_cast<float>(sum) * (1.7320508f / 65536);
}

}  // namespace

void fill(uint64_t seed, const Slice& slice, float* out, size_t stride) {
  const uint64_t start = mixed(seed ^ mixed(slice.matrix));
  for (size_t row = 0; row < slice.rows; ++row) {
    float* const values = out + row * stride;
    const uint64_t at = (slice.first_row + row) * slice.columns_total + slice.first_column;
    for (size_t i = 0; i < slice.columns; ++i) values[i] = slice.deviation * bell(mixed(start + at + i));
    if (slice.outlier == 1) continue;
    for (size_t i = 0; i < slice.columns; ++i) {
      if (is_outlier(slice.first_column + i)) values[i] *= slice.outlier;
    }
  }
}

}  // namespace tensor_parallel
