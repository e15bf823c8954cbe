// FP8: elements as 8-bit floats (E4M3) in groups of 128 that share a scale.
//
// E4M3 is OCP's (OCP 8-bit Floating Point Specification, revision 1.0): a sign, 4 bits of exponent with the bias 7, 3 bits of
// mantissa; no infinities, NaN is 0x7f and 0xff, the largest number is 448, the smallest step 2^-9. A group's scale is
// max|x| / 448 as bf16, rounded up, so no element overflows; what is decoded is code * scale. The groups and the rounding are
// ours. The functions keep the promises of kernels/blocks.h, and so are rules for what has no code: a NaN or an infinity makes
// its group NaN, what is above 2^126 saturates or poisons, what is below 2^-100 counts as zero.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/blocks.h"

namespace unisono::kernels {

inline constexpr uint16_t fp8_group = 128;
inline constexpr float fp8_largest = 448;

// The one format that there is; poison as in BlockFormat.
inline constexpr BlockFormat fp8_format{.bits = 8, .group = fp8_group, .metadata = Metadata::bf16};
bool is_fp8_format(const BlockFormat& format);

// A code for each element, zero bytes up to a multiple of 2, then a scale for each group.
BlockLayout fp8_layout_of(const BlockFormat& format, size_t count);
bool is_fp8_block(const BlockFormat& format, const void* block, size_t bytes, size_t count);

void fp8_encode_part(const BlockFormat& format, const BlockLayout& layout, BlockPart part, DType from, const void* elements,
                     void* block, BlockCounts& counts);
void fp8_decode_part(const BlockFormat& format, const BlockLayout& layout, BlockPart part, const void* block, DType to,
                     void* elements, BlockCounts& counts);
void fp8_decode_add_part(const BlockFormat& format, const BlockLayout& layout, BlockPart part, const void* block, void* sums);

// The definition of the three above, one element at a time.
void fp8_encode_part_reference(const BlockFormat& format, const BlockLayout& layout, BlockPart part, DType from,
                               const void* elements, void* block, BlockCounts& counts);
void fp8_decode_part_reference(const BlockFormat& format, const BlockLayout& layout, BlockPart part, const void* block,
                               DType to, void* elements, BlockCounts& counts);
void fp8_decode_add_part_reference(const BlockFormat& format, const BlockLayout& layout, BlockPart part, const void* block,
                                   void* sums);

// The bits of the bf16 scale for a group whose largest magnitude this is; zero for zero.
uint16_t fp8_scale_for(float largest);
// One number: the nearest code, ties to even, of a magnitude of at most 448; and the number of a code.
uint8_t e4m3_of(float value);
float number_of_e4m3(uint8_t code);

}  // namespace unisono::kernels
