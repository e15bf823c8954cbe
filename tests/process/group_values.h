// Test data for the collectives of real processes: the input of each rank, and the expected results, which are computed without
// the library.
//
// Floating-point values are small whole numbers. Therefore sums and products are exact in every type and in every order. Only
// the division for avg rounds. Integers use all of their bits, and their sums wrap around.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "unisono/unisono.h"

namespace unisono::testing {

// Values repeat with this period, so that a large tensor can be filled by copying. The period is prime, so it divides no slice
// and no chunk. Therefore a slice in a wrong place changes the values.
inline constexpr size_t value_period = 8191;

// Memory with any alignment, between two guard areas. They show whether anything was written outside of the memory.
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

// Writes the first `count` input elements of this source and this seed. A source is a rank or a pair of ranks.
void fill(DType type, std::byte* out, size_t count, uint64_t source, uint64_t seed);

// Returns the reduction of the inputs of ranks 0 to world - 1.
std::vector<std::byte> reduced(DType type, ReduceOp op, size_t count, uint32_t world, uint64_t seed);

// Returns "" if all elements have the same bits. Otherwise returns a description of the first difference.
std::string difference(DType type, const std::byte* got, const std::byte* wanted, size_t count);

// Returns "" if no f32 element differs from the wanted value by more than `tolerance`. Otherwise returns a description of the
// first difference.
std::string difference_above(double tolerance, const std::byte* got, const std::byte* wanted, size_t count);

std::optional<DType> dtype_from(const std::string& name);
std::optional<ReduceOp> op_from(const std::string& name);

// Returns a hash. It is fast, because it takes eight bytes at a time. It shows whether memory has changed, and whether
// processes have equal results.
uint64_t hash_of(const std::byte* data, size_t bytes);

}  // namespace unisono::testing
