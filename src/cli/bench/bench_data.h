// Inputs whose results are known for every element, and the check of a result against them.
//
// Inputs of reductions are small whole numbers, exact in every element type and in every order of addition, so a right result
// is right to the bit whatever the schedule. Inputs that are only moved are arbitrary bits. The expected result is computed
// here in whole numbers, independently of the library's own arithmetic.
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
  Codec codec{};  // not plain: inputs and checks are those of bench_accuracy.h
};

// Elements [first, first + count) of a rank's input.
void fill_input(const DataPlan& plan, uint32_t rank, size_t first, size_t count, void* out);

// Elements of this rank's result that are wrong. output holds what the collective gives this rank (nothing on other ranks
// than root for reduce and gather: 0). in place of reduce-scatter: only this rank's block.
uint64_t count_wrong(const DataPlan& plan, uint32_t rank, size_t block_count, const void* output);

}  // namespace unisono::cli
