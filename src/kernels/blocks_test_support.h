// Helpers for tests that make blocks.
#pragma once

#include "kernels/blocks.h"
#include "kernels/test_support.h"

namespace unisono::kernels {

inline BlockBytes encode(const BlockFormat& format, const Floats& values, BlockCounts* counts = nullptr) {
  BlockCounts own;
  BlockBytes block(block_bytes(format, values.size()), 0xEE);
  encode_block_reference(format, DType::f32, values.data(), values.size(), block.data(), counts == nullptr ? own : *counts);
  return block;
}

inline BlockFormat format(int bits, int group, Metadata metadata, bool spikes = false) {
  return {.bits = static_cast<uint8_t>(bits), .group = static_cast<uint16_t>(group), .metadata = metadata, .spikes = spikes};
}

}  // namespace unisono::kernels
