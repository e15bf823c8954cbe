// FP8: elements are encoded as 8-bit floats (E4M3), in groups of 128 that share a scale.
//
// E4M3 is defined by the OCP 8-bit Floating Point Specification, revision 1.0. A number has a sign, 4 bits of exponent with
// bias 7, and 3 bits of mantissa. There are no infinities. 0x7f and 0xff are NaN. The largest number is 448, and the smallest
// step is 2^-9.
//
// OCP does not define groups and their rounding. Here, the scale of a group is max|x| / 448 as bf16, rounded up so that no
// element overflows. A decoded element is code * scale.
//
// Alignment, counts and parts are as in kernels/blocks.h, and so are special values. A NaN or an infinity makes its group NaN.
// Magnitudes above 2^126 saturate, or become NaN with `poison`. Magnitudes below 2^-100 count as zero.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/blocks.h"

namespace unisono::kernels {

inline constexpr uint16_t fp8_group = 128;
inline constexpr float fp8_largest = 448;

// The FP8 format. Formats that differ from it only in `poison` are FP8 formats, too. There are no others.
inline constexpr BlockFormat fp8_format{.bits = 8, .group = fp8_group, .metadata = Metadata::bf16};
bool is_fp8_format(const BlockFormat& format);

// Returns the layout of a block. It has one code per element, then zeros up to a multiple of 2 bytes, then one scale per group.
BlockLayout fp8_layout_of(const BlockFormat& format, size_t count);
bool is_fp8_block(const BlockFormat& format, const void* block, size_t bytes, size_t count);

void fp8_encode_part(const BlockFormat& format, const BlockLayout& layout, BlockPart part, DType from, const void* elements,
                     void* block, BlockCounts& counts);
void fp8_decode_part(const BlockFormat& format, const BlockLayout& layout, BlockPart part, const void* block, DType to,
                     void* elements, BlockCounts& counts);
void fp8_decode_add_part(const BlockFormat& format, const BlockLayout& layout, BlockPart part, const void* block, void* sums);

// The reference for the three functions above. It processes one element at a time, and defines their results.
void fp8_encode_part_reference(const BlockFormat& format, const BlockLayout& layout, BlockPart part, DType from,
                               const void* elements, void* block, BlockCounts& counts);
void fp8_decode_part_reference(const BlockFormat& format, const BlockLayout& layout, BlockPart part, const void* block,
                               DType to, void* elements, BlockCounts& counts);
void fp8_decode_add_part_reference(const BlockFormat& format, const BlockLayout& layout, BlockPart part, const void* block,
                                   void* sums);

// Returns the bits of the bf16 scale for a group in which `largest` is the largest magnitude. Returns 0 for 0.
uint16_t fp8_scale_for(float largest);
// e4m3_of() returns the code that is nearest to the value (ties to even). The magnitude must be at most 448. number_of_e4m3()
// returns the number of a code.
uint8_t e4m3_of(float value);
float number_of_e4m3(uint8_t code);

}  // namespace unisono::kernels
