// Arithmetic on spans: the one entry to the SIMD kernels, and the scalar reference that specifies them.
//
// Every kernel takes any alignment and any count. Results are equal to the reference bit for bit on every target.
#pragma once

#include <cstddef>
#include <span>

#include "unisono/tensor.h"

namespace unisono::kernels {

// destination[i] = sources[0][i] op sources[1][i] op …, folded from the left in the order given, in the element type (16-bit
// floats: in fp32, rounded to nearest even once at the end). Then, if divisor > 1: divided by it (floats: one true
// division in the type of the fold, 16-bit floats before the rounding; integers: truncated). Integers wrap.
// min and max of floats: the left operand unless the right one is smaller/greater; NaN if either is NaN.
// A NaN in the result is always the positive quiet NaN without payload (0x7FC00000, …), also from one source: which operand's
// bits a sum of NaNs takes differs between processors and compilers, and equal results on all ranks must not.
// Bit operations on floats are a bug of the caller.
struct Reduction {
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;           // avg folds like sum; the division is asked for by divisor
  std::span<const void* const> sources;  // at least one; each of `count` elements
  void* destination = nullptr;           // may be one of the sources exactly; no other overlap
  void* copy = nullptr;                  // null, or a second place for the same result (an outgoing slot)
  size_t count = 0;
  uint32_t divisor = 1;
};
void reduce(const Reduction& task);            // best target of this machine
void reduce_reference(const Reduction& task);  // scalar, the definition

// memcpy for payloads: streaming stores above the size where they pay. No overlap. Call it qualified: with std::byte* the
// compiler finds std::copy too.
void copy(void* destination, const void* source, size_t bytes);
// Leaves nothing of the destination in the caches.
void stream_copy(void* destination, const void* source, size_t bytes);

// Conversions between floating types: to wider exact, to narrower rounded to nearest even, overflow to infinity, NaN stays NaN
// (quiet, sign and top payload bits kept). Pairs: f32<->bf16, f32<->f16. No overlap except exact aliasing is not allowed.
void convert(DType to, void* destination, DType from, const void* source, size_t count);
void convert_reference(DType to, void* destination, DType from, const void* source, size_t count);

// Targets of this machine, best first ("AVX3_ZEN4", "AVX2", …, "EMU128"/"SCALAR"), and a way to force one in tests and
// benchmarks; an unknown name gives false and changes nothing; "" restores the best.
std::span<const char* const> targets();
bool force_target(const char* name);

}  // namespace unisono::kernels
