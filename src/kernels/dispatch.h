// Arithmetic on spans. This is the only entry to the SIMD kernels, and to the scalar reference that defines their results.
//
// Every kernel takes any alignment and any count. On every target (instruction set), the results are equal to those of the
// reference, bit for bit.
#pragma once

#include <cstddef>
#include <span>

#include "unisono/tensor.h"

namespace unisono::kernels {

// destination[i] = (sources[0][i] op sources[1][i] op …) / divisor
//
// - The sources are folded (combined) from the left, in the element type. 16-bit floats are folded in fp32, and rounded to
//   nearest even at the end.
// - The result is divided only if divisor > 1. Floats are divided by one true division, in the type of the fold. Integers are
//   truncated.
// - Integers wrap. min (max) of floats is the right operand if that is smaller (greater), and otherwise the left one. If one
//   operand is NaN, the result is NaN.
// - If a result is NaN, it is always the positive quiet NaN without payload (0x7FC00000, …), even with one source. Results must
//   be equal on all ranks, but the bits of a sum of NaNs would differ between processors and compilers.
// - Bit operations on floats are not allowed.
struct Reduction {
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;           // avg folds like sum; the caller must also set `divisor`
  std::span<const void* const> sources;  // at least one source; each has `count` elements
  void* destination = nullptr;           // may be one of the sources, but must not overlap them otherwise
  void* copy = nullptr;                  // a second destination for the same result, such as a slot to be sent; may be null
  size_t count = 0;
  uint32_t divisor = 1;
};
void reduce(const Reduction& task);            // uses the best instruction set, or the one that force_target() chose
void reduce_reference(const Reduction& task);  // scalar; defines the results of reduce()

// Copies a payload like memcpy, but uses streaming stores for sizes at which they are faster. The buffers must not overlap.
// Callers must write kernels::copy: with std::byte* arguments, an unqualified `copy` also finds std::copy.
void copy(void* destination, const void* source, size_t bytes);
// Copies any number of bytes with streaming stores, so that the destination takes no space in the caches.
void stream_copy(void* destination, const void* source, size_t bytes);

// Converts f32 to or from bf16 or f16. Widening is exact. Narrowing rounds to nearest even, and overflow becomes infinity. A
// NaN becomes quiet, and keeps its sign and its top payload bits. The buffers must not overlap.
void convert(DType to, void* destination, DType from, const void* source, size_t count);
void convert_reference(DType to, void* destination, DType from, const void* source, size_t count);

// targets() returns the instruction sets that this machine can use, best first ("AVX3_ZEN4", "AVX2", …, "EMU128"/"SCALAR"). For
// tests and benchmarks, force_target() selects one of them by name; "" selects the best one. If the name is unknown, it changes
// nothing and returns false.
std::span<const char* const> targets();
bool force_target(const char* name);

}  // namespace unisono::kernels
