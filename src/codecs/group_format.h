// How a codec whose elements share scales in groups writes them: one row per such codec, in group_format.cc.
//
// The functions are kernels (src/kernels/) and keep the promises of kernels/blocks.h: any alignment, any count, part by part at
// multiples of a group, the same bytes on every machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "kernels/blocks.h"
#include "unisono/codec.h"
#include "unisono/tensor.h"

namespace unisono {

struct GroupFormat {
  StepCodec::Kind kind = StepCodec::Kind::quantize;
  uint8_t mark = 0;  // in the header of a message, beside the flags of metadata and spikes: tells the codecs apart
  // Nothing of the step is left open: its options, and the tensor's type.
  kernels::BlockFormat (*format_of)(const StepCodec& step, DType tensor) = nullptr;
  bool (*is_valid)(const kernels::BlockFormat& format) = nullptr;
  std::string (*text)(const kernels::BlockFormat& format) = nullptr;

  kernels::BlockLayout (*layout)(const kernels::BlockFormat& format, size_t count) = nullptr;
  void (*encode)(const kernels::BlockFormat& format, const kernels::BlockLayout& layout, kernels::BlockPart part, DType from,
                 const void* elements, void* block, kernels::BlockCounts& counts) = nullptr;
  void (*decode)(const kernels::BlockFormat& format, const kernels::BlockLayout& layout, kernels::BlockPart part,
                 const void* block, DType to, void* elements, kernels::BlockCounts& counts) = nullptr;
  void (*decode_add)(const kernels::BlockFormat& format, const kernels::BlockLayout& layout, kernels::BlockPart part,
                     const void* block, void* sums) = nullptr;
  bool (*is_block)(const kernels::BlockFormat& format, const void* block, size_t bytes, size_t count) = nullptr;
};

std::span<const GroupFormat> group_formats();
// Null for codecs without groups.
const GroupFormat* find_group_format(StepCodec::Kind kind);

}  // namespace unisono
