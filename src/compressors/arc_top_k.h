// ARC-Top-K: all ranks sketch their rows (multiply them) with the same random directions. The average of these sketches is an
// estimate of how long each row of the averaged matrix is. The rows with the longest sketches are sent whole, without indices.
//
// Source: C. Chen, C. Ma, Z. Li, Y. He, Y. Dong, K. Yuan, "An All-Reduce Compatible Top-K Compressor for
// Communication-Efficient Distributed Learning", arXiv:2510.26709. The variant Random-K chooses the rows at random, so it does
// not need a sketch.
#pragma once

#include <memory>

#include "compressors/compressor.h"

namespace unisono {

struct ArcOptions {
  RowRule rule;
  uint64_t seed = 0;
  uint32_t refresh_every = 0;  // In this number of steps, each row is sent at least once. 0: this is not guaranteed.
  bool random = false;         // Random-K: the rows are chosen at random, and there is only one all-reduce.
  // For tests and simulations in one process: the rows are chosen by their exact lengths, without a sketch.
  bool exact = false;
};

// The caller can have `side_value_count` numbers averaged with the sketch. They are ignored if there is no sketch.
//
// Returns invalid in three cases:
// - check() refuses the options;
// - a tensor has more than 2^32 - 1 rows or columns;
// - a tensor needs more random numbers than a stream has.
Result<std::unique_ptr<Compressor>> make_arc_top_k(const ArcOptions& options, uint32_t group, std::vector<GroupTensor> tensors,
                                                   uint32_t side_value_count = 0);

}  // namespace unisono
