// How far an encoded result may be from the exact one: each step adds a rounding error. Tests and tools check results with it.
#pragma once

#include <algorithm>

#include "unisono/codec_facts.h"
#include "unisono/tensor.h"

namespace unisono {

// The error of one encoding. No element's magnitude exceeds `largest`, and none is too large for the scales.
inline double encoding_error_bound(const StepCodec& step, DType dtype, double largest) {
  const double sixteen_bits = largest * 0x1p-8;
  const auto& facts = facts_of(step.kind);
  if (facts.has_options) return 0.51 * (2 * largest + sixteen_bits) * (1 + 0x1p-7) / ((1 << step.bits) - 1) + sixteen_bits;
  return dtype == DType::f32 ? largest * facts.error : std::max(largest * facts.error, sixteen_bits);
}

// The error of a sum over so many ranks with any schedule. It adds up the roundings of contributions, of sums of host groups,
// of the result, and to the tensor's type.
inline double sum_error_bound(const Codec& codec, DType dtype, double largest, double ranks) {
  const double sum = ranks * largest;
  return ranks * encoding_error_bound(codec.reduce, dtype, largest) + ranks * encoding_error_bound(codec.across, dtype, sum) +
         encoding_error_bound(codec.gather, dtype, sum) + encoding_error_bound({}, dtype, sum);
}

}  // namespace unisono
