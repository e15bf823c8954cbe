// The kernels of one instruction set. simd.cc makes one table per instruction set it was compiled for, dispatch.cc chooses
// among those that the processor can run. Tables are constants and are never destroyed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/blocks.h"
#include "kernels/dispatch.h"
#include "kernels/sketch.h"
#include "kernels/weighted_mean.h"

namespace unisono::kernels {

using ReduceFunction = void (*)(const Reduction& task);  // count > 0, at least one source
using ConvertFunction = void (*)(void* destination, const void* source, size_t count);
using CopyFunction = void (*)(void* destination, const void* source, size_t bytes);

struct KernelTable {
  int64_t target = 0;                                        // Highway's bit for the instruction set
  ReduceFunction reduce[dtype_count][reduce_op_count] = {};  // null where the operation is not defined for the type
  ConvertFunction f32_from_bf16 = nullptr;
  ConvertFunction bf16_from_f32 = nullptr;
  ConvertFunction f32_from_f16 = nullptr;
  ConvertFunction f16_from_f32 = nullptr;
  CopyFunction stream_copy = nullptr;  // past the caches; for sizes far above a vector's
  CopyFunction line_copy = nullptr;    // through them; likewise
  double (*sketch)(const SketchTask& task) = nullptr;
  double (*weighted_mean)(const WeightedMeanTask& task) = nullptr;  // count > 0, at least one source
};

// The same for blocks, whose kernels are in a file of their own (blocks_simd.cc).
struct BlockKernels {
  int64_t target = 0;
  void (*encode)(const BlockFormat& format, const BlockLayout& layout, BlockPart part, DType from, const void* elements,
                 void* block, BlockCounts& counts) = nullptr;
  void (*decode)(const BlockFormat& format, const BlockLayout& layout, BlockPart part, const void* block, DType to,
                 void* elements, BlockCounts& counts) = nullptr;
  void (*decode_add)(const BlockFormat& format, const BlockLayout& layout, BlockPart part, const void* block,
                     void* sums) = nullptr;
};
const BlockKernels& block_kernels_of(int64_t target);

// Highway's bit for the instruction set in use: force_target()'s, else the best.
int64_t target_in_use();

// Tables that both this build and this processor have, best first; never empty. The names are in the same order.
std::span<const KernelTable* const> runnable_tables();
std::span<const char* const> runnable_names();

}  // namespace unisono::kernels
