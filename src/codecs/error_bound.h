// How far an encoded result may be from the exact one: a rounding in each step. For those who check results.
#pragma once

#include <algorithm>

#include "unisono/codec_facts.h"
#include "unisono/tensor.h"

namespace unisono {

// Of one encoding of elements whose magnitude is at most `largest`, and none of which is too large for the scales.
inline double encoding_error_bound(const StepCodec& step, DType dtype, double largest) {
  const double sixteen_bits = largest * 0x1p-8;
  const auto& facts = facts_of(step.kind);
  if (facts.has_options) return 0.51 * (2 * largest + sixteen_bits) * (1 + 0x1p-7) / ((1 << step.bits) - 1) + sixteen_bits;
  return dtype == DType::f32 ? largest * facts.error : std::max(largest * facts.error, sixteen_bits);
}

// Of a sum over so many ranks, whatever the schedule: contributions, sums of host groups, the result, its rounding to the
// tensor's type.
inline double sum_error_bound(const Codec& codec, DType dtype, double largest, double ranks) {
  const double sum = ranks * largest;
  return ranks * encoding_error_bound(codec.reduce, dtype, largest) + ranks * encoding_error_bound(codec.across, dtype, sum) +
         encoding_error_bound(codec.gather, dtype, sum) + encoding_error_bound({}, dtype, sum);
}

}  // namespace unisono
