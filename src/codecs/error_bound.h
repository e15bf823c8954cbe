// Upper bounds of the rounding errors in an encoded result. Tests and tools compare results with these bounds.
#pragma once

#include <algorithm>

#include "unisono/codec_facts.h"
#include "unisono/tensor.h"

namespace unisono {

// Returns an upper bound of the error that one encoding makes, for elements whose magnitude is at most `largest`. The bound
// holds only if all elements are in the range that the scales can represent.
inline double encoding_error_bound(const StepCodec& step, DType dtype, double largest) {
  const double sixteen_bits = largest * 0x1p-8;
  const auto& facts = facts_of(step.kind);
  if (facts.has_options) return 0.51 * (2 * largest + sixteen_bits) * (1 + 0x1p-7) / ((1 << step.bits) - 1) + sixteen_bits;
  return dtype == DType::f32 ? largest * facts.error : std::max(largest * facts.error, sixteen_bits);
}

// Returns an upper bound of the error of a sum over `ranks` ranks, for any schedule. It adds up the rounding errors of the
// contributions, of the sums of host groups, of the result, and of the conversion to `dtype`.
inline double sum_error_bound(const Codec& codec, DType dtype, double largest, double ranks) {
  const double sum = ranks * largest;
  return ranks * encoding_error_bound(codec.reduce, dtype, largest) + ranks * encoding_error_bound(codec.across, dtype, sum) +
         encoding_error_bound(codec.gather, dtype, sum) + encoding_error_bound({}, dtype, sum);
}

}  // namespace unisono
