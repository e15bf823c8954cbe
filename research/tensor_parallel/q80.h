// Blocks of 32 values as 8-bit integers that share a 16-bit scale: the Q80 of llama.cpp (Q8_0) and distributed-llama, 34 bytes
// each.
//
// Our own implementation of that format; neither of those programs is used. A block is {fp16 scale, 32 × int8}, little-endian;
// value = scale × code, code = value × 127 / (largest magnitude of the block), rounded to the nearest, halves away from zero. A
// last block of fewer values is as much shorter; theirs must be whole. A block that holds a NaN or an infinity, or whose scale
// is beyond fp16's range, becomes NaN as a whole; theirs is unspecified then. Same bytes and same sums on every machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tensor_parallel {

inline constexpr size_t q80_block = 32;
constexpr size_t q80_bytes(size_t values) { return values + 2 * ((values + q80_block - 1) / q80_block); }

// out has q80_bytes(values.size()) bytes.
void q80_encode(std::span<const float> values, std::span<uint8_t> out);
// Adds what q80_encode made of sums.size() values.
void q80_add(std::span<const uint8_t> encoded, std::span<float> sums);

}  // namespace tensor_parallel
