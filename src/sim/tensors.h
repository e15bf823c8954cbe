// The memory of simulated calls. The values in it depend only on a seed. Guard bytes around each buffer reveal writes beyond
// its ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "unisono/tensor.h"

namespace unisono::sim {

// Says which floating-point values are made. exact: small whole numbers, whose sum is exact in any order. rough: values of any
// magnitude. special: values that include NaN, infinities, zeros of both signs and subnormals. Integers are random bits in each
// case.
enum class Values : uint8_t { exact, rough, special };

struct Fill {
  DType dtype = DType::f32;
  Values values = Values::exact;
  bool product = false;  // the magnitude of all values is near 1, so that products of many values stay in range
  uint64_t seed = 0;     // seed of this tensor
};

// Writes elements [first, first + count) of the tensor that `fill` describes. `data` may have any alignment.
void fill_values(const Fill& fill, size_t first, size_t count, std::byte* data);

// Returns one element as a number, for error messages and for sums in double.
double as_double(DType dtype, const std::byte* element);

// A buffer of exactly `bytes` bytes, misaligned by `shift` bytes, with guard bytes on both sides.
class GuardedBuffer {
 public:
  GuardedBuffer() = default;
  GuardedBuffer(size_t bytes, size_t shift);

  std::byte* data() { return memory_.empty() ? nullptr : memory_.data() + guard_bytes + shift_; }
  const std::byte* data() const { return memory_.empty() ? nullptr : memory_.data() + guard_bytes + shift_; }
  size_t bytes() const { return bytes_; }
  std::span<const std::byte> view() const { return {data(), bytes_}; }
  bool guards_intact() const;

 private:
  static constexpr size_t guard_bytes = 64;
  std::vector<std::byte> memory_;
  size_t bytes_ = 0, shift_ = 0;
};

}  // namespace unisono::sim
