// Encodes values in blocks of 32. A block has 34 bytes: 32 integers of 8 bits, and a 16-bit scale for all of them. The format
// is the Q80 of distributed-llama and the Q8_0 of llama.cpp.
//
// This is an independent implementation of the format; it does not use these programs. A block is {fp16 scale, 32 × int8},
// little-endian, with value = scale × code. The code is value × 127 / (largest magnitude of the block), rounded to the nearest
// integer; halves are rounded away from zero. The bytes and the sums are equal on all machines.
//
// There are two differences from these programs. The last block may be shorter. And if a block contains a NaN or an infinity,
// or if its scale is too large for fp16, all its values become NaN; these programs do not define this case.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tensor_parallel {

inline constexpr size_t q80_block = 32;
constexpr size_t q80_bytes(size_t values) { return values + 2 * ((values + q80_block - 1) / q80_block); }

// Encodes the values. `out` must have q80_bytes(values.size()) bytes.
void q80_encode(std::span<const float> values, std::span<uint8_t> out);
// Decodes sums.size() values that q80_encode has encoded, and adds them to `sums`.
void q80_add(std::span<const uint8_t> encoded, std::span<float> sums);

}  // namespace tensor_parallel
