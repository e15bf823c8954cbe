// There is one GroupFormat for each codec in which groups of elements share a scale. It holds the functions of the codec.
// group_format.cc has the table of all formats.
//
// The functions are kernels (src/kernels/) and keep the promises of kernels/blocks.h. They accept any alignment and any number
// of elements. They can work on parts that begin at multiples of a group. They produce the same bytes on every machine.
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
  uint8_t mark = 0;  // These bits of the header's flag byte distinguish this codec from the others.
  // Resolves every option of the step that is left automatic, for tensors of this type.
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
// Returns null if the codec has no groups.
const GroupFormat* find_group_format(StepCodec::Kind kind);

}  // namespace unisono
