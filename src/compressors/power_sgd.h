// PowerSGD: the mean as a product of two thin factors, each the average of what all ranks compute. What ARC-Top-K is compared
// with.
//
// Source: T. Vogels, S. P. Karimireddy, M. Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
// Optimization" (arXiv:1905.13727): P = M Q is averaged and made orthonormal, then Q = M'P is averaged, and P Q' comes out; Q
// is where the next step begins. Its residual is what comes out less than what went in (lab/compressors/mean_feedback): no rows
// are sent, so rows() are none.
//
// Ours: a column of P that is nothing but rounding is left out, and its column of Q is drawn anew: zeros give zeros, and
// nothing is stuck at them.
#pragma once

#include <memory>

#include "compressors/compressor.h"

namespace unisono {

struct PowerOptions {
  RowRule
      rule;  // which tensors are sent whole, because they are small or the factors nearly as large; and the bytes, for rank 0
  uint32_t rank = 0;  // columns of the factors, where the tensor has as many; 0: rank_of_equal_bytes
  uint64_t seed = 0;
};

// The rank whose factors are as large as the rows and the sketch that the rule keeps of the matrix, or a little smaller; 1 at
// least: p = (K n + m r) / (m + n).
uint64_t rank_of_equal_bytes(const RowRule& rule, Matrix matrix);

// The factors' columns for each of the tensors are decided from the options alone; CompressorInput::difference is not taken.
// invalid: options that check() refuses, or a tensor of more columns than can be drawn.
Result<std::unique_ptr<Compressor>> make_power_sgd(const PowerOptions& options, uint32_t group,
                                                   std::vector<GroupTensor> tensors);

}  // namespace unisono
