// Memory of simulated calls: values that follow from a seed, between guards that reveal writes beyond the buffer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "unisono/tensor.h"

namespace unisono::sim {

// exact: small whole numbers, whose sums are exact in any order. rough: any magnitude. special: with NaN, infinities, zeros of
// both signs and subnormals. Integers are random bits in all three.
enum class Values : uint8_t { exact, rough, special };

struct Fill {
  DType dtype = DType::f32;
  Values values = Values::exact;
  bool product = false;  // exact: small enough for products
  uint64_t seed = 0;     // of this tensor
};

// Elements first … first + count of the tensor described by `fill`; `data` may have any alignment.
void fill_values(const Fill& fill, size_t first, size_t count, std::byte* data);

// One element as a number, for messages and for sums in double.
double as_double(DType dtype, const std::byte* element);

// Exactly `bytes` bytes of memory, `shift` bytes off alignment, with guards on both sides.
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
