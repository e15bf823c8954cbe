// ARC-Top-K: the average of a shared random sketch says which rows of the average are longest. These rows are sent whole, and
// no indices are.
//
// Source: C. Chen, C. Ma, Z. Li, Y. He, Y. Dong, K. Yuan, "An All-Reduce Compatible Top-K Compressor for
// Communication-Efficient Distributed Learning", arXiv:2510.26709. Random-K draws the rows instead, and needs no sketch.
#pragma once

#include <memory>

#include "compressors/compressor.h"

namespace unisono {

struct ArcOptions {
  RowRule rule;
  uint64_t seed = 0;
  uint32_t refresh_every = 0;  // steps in which each row is sent at least once; 0: no promise
  bool random = false;         // Random-K: rows are drawn, and only one all-reduce is needed
  bool exact = false;          // for tests and simulations: rows by their true lengths, which a single process can know
};

// notes: how many numbers of the caller's travel beside the sketch, where there is one.
// invalid: options that check() refuses, a tensor of more rows or columns than 2^32 - 1, or more directions than can be drawn.
Result<std::unique_ptr<Compressor>> make_arc_top_k(const ArcOptions& options, uint32_t group, std::vector<GroupTensor> tensors,
                                                   uint32_t notes = 0);

}  // namespace unisono
