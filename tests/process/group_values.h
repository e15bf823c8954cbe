// Numbers for collectives of real processes: what each rank gives, and, computed here without the library, what everyone must
// get.
//
// Floating-point values are small whole numbers, so that sums and products are exact in every type and any order, and only the
// division of an average rounds. Integers use all their bits and wrap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "unisono/unisono.h"

namespace unisono::testing {

// Values repeat after so many elements, which fits no slice, no chunk and no power of two: large tensors are as cheap as a
// copy.
inline constexpr size_t value_period = 8191;

// Memory with any alignment between two guards; whoever writes outside is found.
class Buffer {
 public:
  Buffer(size_t bytes, size_t offset);
  std::byte* data() { return storage_.data() + begin_; }
  const std::byte* data() const { return storage_.data() + begin_; }
  size_t bytes() const { return bytes_; }
  bool guards_hold() const;

 private:
  size_t begin_, bytes_;
  std::vector<std::byte> storage_;
};

// Writes the `count` elements that `giver` gives in the operation with this seed.
void fill(DType type, std::byte* out, size_t count, uint64_t giver, uint64_t seed);

// The reduction of what givers 0 … world-1 give.
std::vector<std::byte> reduced(DType type, ReduceOp op, size_t count, uint32_t world, uint64_t seed);

// Empty if equal to the bit, else where they first differ.
std::string difference(DType type, const std::byte* got, const std::byte* wanted, size_t count);

// Likewise, if no element is further off than that.
std::string difference_above(double tolerance, const std::byte* got, const std::byte* wanted, size_t count);

std::optional<DType> dtype_from(const std::string& name);
std::optional<ReduceOp> op_from(const std::string& name);

// To compare memory with what it was, and results of processes with each other; eight bytes at a step.
uint64_t hash_of(const std::byte* data, size_t bytes);

}  // namespace unisono::testing
