// PowerSGD approximates the average of a matrix by the product of two thin factors. The ranks average each factor.
//
// Source: T. Vogels, S. P. Karimireddy, M. Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
// Optimization" (arXiv:1905.13727), algorithms 1 and 2. The ranks average P = M Q and make it orthonormal. Then they average Q
// = M'P, and the result is P Q'. The next step begins with this Q (warm start). The residual of a rank is the difference
// between its matrix and the result.
//
// Our addition: if a column of P is only rounding error, it becomes zeros, and the next step replaces the matching column of Q
// with new random numbers. Therefore a zero matrix gives zeros, and later steps do not stay at zero.
// docs/design/methods/power_sgd.md has the details.
#pragma once

#include <memory>

#include "compressors/compressor.h"

namespace unisono {

struct PowerOptions {
  // Decides which tensors are sent whole: small ones, and those whose factors would be nearly as large as the tensor. If the
  // option `rank` below is 0, the rule also determines the rank (see rank_of_equal_bytes()).
  RowRule rule;
  uint32_t rank = 0;  // how many columns each factor has, at most the smaller dimension of the tensor; 0: rank_of_equal_bytes()
  uint64_t seed = 0;
};

// Returns p = (K n + m r) / (m + n), rounded down, but at least 1. Here K is the number of kept rows, m the number of rows, n
// the number of columns, and r the rank of the sketch. Factors with p columns are as large as the rows and the sketch that
// ARC-Top-K would send if it used this rule.
uint64_t rank_of_equal_bytes(const RowRule& rule, Matrix matrix);

// The result depends only on the options and the shape. Therefore it is the same on all ranks.
Decision decide(const PowerOptions& options, std::span<const uint64_t> shape);

// CompressorInput::warm holds Q' in row-major order: factors x columns. CompressorInput::difference and
// CompressorInput::cleared are not supported. `side_value_count` has the same meaning as in make_arc_top_k().
//
// Returns invalid if check() refuses the options, or if a tensor is too large: it has more than 2^32 - 1 rows or columns, or it
// needs more random numbers than a stream has.
Result<std::unique_ptr<Compressor>> make_power_sgd(const PowerOptions& options, uint32_t group,
                                                   std::vector<GroupTensor> tensors, uint32_t side_value_count = 0);

}  // namespace unisono
