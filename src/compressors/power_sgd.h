// PowerSGD: the average of a matrix as the product of two thin factors, each of which is an average over the ranks.
//
// Source: T. Vogels, S. P. Karimireddy, M. Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
// Optimization" (arXiv:1905.13727), algorithms 1 and 2: P = M Q is averaged and made orthonormal, then Q = M'P is averaged, and
// the result is P Q'. The next step begins with this Q (warm start). A rank keeps what its matrix differs from the result.
//
// Ours: a column of P that is only rounding error becomes zeros, and the next step draws its column of Q anew. So a zero matrix
// gives zeros, and the iteration does not get stuck at them. docs/design/methods/power_sgd.md has the details.
#pragma once

#include <memory>

#include "compressors/compressor.h"

namespace unisono {

struct PowerOptions {
  // Decides which tensors are sent whole: small ones, and those whose factors would be nearly as large. With `rank` 0 it also
  // determines the rank, see rank_of_equal_bytes().
  RowRule rule;
  uint32_t rank = 0;  // columns of the factors, where the tensor has as many; 0: rank_of_equal_bytes
  uint64_t seed = 0;
};

// The rank whose factors have the size of the rows and the sketch that ARC-Top-K would send by this rule, or a little less; at
// least 1: p = (K n + m r) / (m + n).
uint64_t rank_of_equal_bytes(const RowRule& rule, Matrix matrix);

// Depends on the options and the shape alone, so all ranks decide alike.
Decision decide(const PowerOptions& options, std::span<const uint64_t> shape);

// CompressorInput::warm is Q', by rows: factors x columns. CompressorInput::difference and ::cleared are not taken.
// notes: as in make_arc_top_k.
// invalid: options that check() refuses, or a tensor of more columns than can be drawn.
Result<std::unique_ptr<Compressor>> make_power_sgd(const PowerOptions& options, uint32_t group,
                                                   std::vector<GroupTensor> tensors, uint32_t notes = 0);

}  // namespace unisono
