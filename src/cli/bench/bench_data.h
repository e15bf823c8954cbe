// Makes the inputs of collectives, and checks the results. Every element of the right result is known.
//
// The inputs of reductions are small whole numbers. Every element type holds them and their sums exactly, and the order of
// addition does not matter. So the right result has the same bits with every schedule. Inputs that are only moved, and not
// reduced, are arbitrary bits. The expected result is computed here in whole numbers, without the library's own arithmetic.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cli/bench/bench_plan.h"
#include "unisono/tensor.h"

namespace unisono::cli {

struct DataPlan {
  Collective collective = Collective::all_reduce;
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;
  uint32_t world_size = 1;
  uint32_t root = 0;
  Codec codec{};  // if this is not the plain codec, the inputs and checks of bench_accuracy.h are used
};

// Writes elements [first, first + count) of a rank's input to `out`.
void fill_input(const DataPlan& plan, uint32_t rank, size_t first, size_t count, void* out);

// Returns how many elements of this rank's result are wrong. `output` is the rank's output buffer. For an in-place
// reduce-scatter, `output` is only the rank's block in this buffer. For reduce and gather, only the root has an output, and the
// result is 0 on all other ranks.
uint64_t count_wrong(const DataPlan& plan, uint32_t rank, size_t block_count, const void* output);

}  // namespace unisono::cli
