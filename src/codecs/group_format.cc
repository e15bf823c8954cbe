#include "codecs/group_format.h"

#include "base/concat.h"
#include "kernels/fp8.h"

namespace unisono {
namespace {

using kernels::BlockFormat;

BlockFormat integer_format(const StepCodec& step, DType tensor) {
  using Metadata = StepCodec::Metadata;
  BlockFormat format{.bits = step.bits, .group = step.group};
  if (step.metadata != Metadata::automatic) format.metadata = static_cast<kernels::Metadata>(step.metadata);
  else format.metadata = tensor == DType::f16 ? kernels::Metadata::f16 : kernels::Metadata::bf16;
  format.spikes = step.spikes == StepCodec::Spikes::on || (step.spikes == StepCodec::Spikes::automatic && step.bits <= 3);
  return format;
}

std::string integer_text(const BlockFormat& format) {
  constexpr const char* types[] = {"f16", "bf16", "f32"};
  return concat("int", format.bits, ":group=", format.group, ",metadata=", types[static_cast<int>(format.metadata)],
                format.spikes ? ",spikes=on" : "");
}

constexpr GroupFormat formats[] = {
    {.kind = StepCodec::Kind::quantize,
     .mark = 0,
     .format_of = integer_format,
     .is_valid = [](const BlockFormat& format) { return format.valid(); },
     .text = integer_text,
     .layout = kernels::layout_of,
     .encode = kernels::encode_part,
     .decode = kernels::decode_part,
     .decode_add = kernels::decode_add_part,
     .is_block = kernels::is_block},
    {.kind = StepCodec::Kind::fp8,
     .mark = 8,
     .format_of = [](const StepCodec&, DType) { return kernels::fp8_format; },
     .is_valid = kernels::is_fp8_format,
     .text = [](const BlockFormat&) { return std::string("fp8"); },
     .layout = kernels::fp8_layout_of,
     .encode = kernels::fp8_encode_part,
     .decode = kernels::fp8_decode_part,
     .decode_add = kernels::fp8_decode_add_part,
     .is_block = kernels::is_fp8_block},
};

}  // namespace

std::span<const GroupFormat> group_formats() { return formats; }

const GroupFormat* find_group_format(StepCodec::Kind kind) {
  for (const auto& format : formats) {
    if (format.kind == kind) return &format;
  }
  return nullptr;
}

}  // namespace unisono
