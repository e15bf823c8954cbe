// The kernels for one instruction set. simd.cc makes one table for each instruction set. dispatch.cc chooses a table that the
// processor can run. Tables are constants and are never destroyed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/blocks.h"
#include "kernels/dispatch.h"
#include "kernels/sketch.h"
#include "kernels/weighted_mean.h"

namespace unisono::kernels {

using ReduceFunction = void (*)(const Reduction& task);  // called with count > 0 and at least one source
using ConvertFunction = void (*)(void* destination, const void* source, size_t count);
using CopyFunction = void (*)(void* destination, const void* source, size_t bytes);

struct KernelTable {
  int64_t target = 0;                                        // Highway's bit for the instruction set
  ReduceFunction reduce[dtype_count][reduce_op_count] = {};  // null if the type does not have the operation
  ConvertFunction f32_from_bf16 = nullptr;
  ConvertFunction bf16_from_f32 = nullptr;
  ConvertFunction f32_from_f16 = nullptr;
  ConvertFunction f16_from_f32 = nullptr;
  CopyFunction stream_copy = nullptr;  // uses streaming stores, which bypass the caches; only for sizes far above a vector
  CopyFunction line_copy = nullptr;    // uses ordinary stores of whole cache lines; only for sizes far above a vector
  double (*sketch)(const SketchTask& task) = nullptr;
  double (*weighted_mean)(const WeightedMeanTask& task) = nullptr;  // called with count > 0 and at least one source
};

// The kernels for blocks, for one instruction set. They are in a file of their own (blocks_simd.cc).
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

// Returns Highway's bit for the instruction set that is in use. This is the best one, unless force_target() has chosen another.
int64_t target_in_use();

// Return the tables that this build contains and this processor can run, and the names of their instruction sets. Both are in
// the same order, best first. There is always one table.
std::span<const KernelTable* const> runnable_tables();
std::span<const char* const> runnable_names();

}  // namespace unisono::kernels
