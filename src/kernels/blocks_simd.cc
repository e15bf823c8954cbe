// The SIMD kernels for blocks. They take whole groups of ordinary values, 16 groups at a time. The reference encodes all other
// groups, which are rare: an incomplete last group, and groups with NaN, infinity, or values that are too large or too small.
// So the encoding of these groups is defined by a single implementation.
//
// Encoding is written in blocks_encode_inl.h, and decoding in blocks_decode_inl.h. This file compiles them once per instruction
// set.

#include "base/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/blocks_simd.cc"
#include <hwy/foreach_target.h>  // must precede highway.h
#include <hwy/highway.h>

#include "kernels/blocks_decode_inl.h"
#include "kernels/blocks_encode_inl.h"
#include "kernels/blocks_group.h"
#include "kernels/kernel_table.h"

HWY_BEFORE_NAMESPACE();
namespace unisono::kernels {
namespace HWY_NAMESPACE {

const BlockKernels& block_kernels() {
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
  static constexpr BlockKernels kernels{.target = HWY_TARGET,
                                        .encode = encode_part_reference,
                                        .decode = decode_part_reference,
                                        .decode_add = decode_add_part_reference};
#else
  static constexpr BlockKernels kernels{.target = HWY_TARGET, .encode = encode, .decode = decode, .decode_add = decode_add};
#endif
  return kernels;
}

}  // namespace HWY_NAMESPACE
}  // namespace unisono::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "base/check.h"

namespace unisono::kernels {

// Highway gives better instruction sets lower bits.
const BlockKernels& block_kernels_of(int64_t target) {
  using Function = const BlockKernels& (*)();
  static constexpr Function compiled[] = {HWY_CHOOSE_TARGET_LIST(block_kernels), HWY_CHOOSE_FALLBACK(block_kernels)};
  const BlockKernels* best = nullptr;
  for (const Function kernels : compiled) {
    if (kernels == nullptr || kernels().target < target) continue;
    if (best == nullptr || kernels().target < best->target) best = &kernels();
  }
  UNISONO_CHECK(best != nullptr);
  return *best;
}

}  // namespace unisono::kernels
#endif  // HWY_ONCE
