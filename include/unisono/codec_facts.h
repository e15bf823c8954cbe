// The table of codecs: their names and properties. Row k describes the codec whose number (StepCodec::Kind) is k.
//
// All other lists of codecs are derived from this table. tools/check_source refuses a second one.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "unisono/codec.h"

namespace unisono {

struct CodecFacts {
  StepCodec::Kind kind = StepCodec::Kind::plain;
  const char* name = "";
  const char* other_name = "";  // second name that parsers accept; "": none
  double bits = 0;              // bits per element on the wire, with its part of a scale; 0: StepCodec's options decide
  bool only_f32 = false;        // applies to f32 tensors; 16-bit elements are sent plain
  bool is_grouped = false;      // elements form groups that share a scale; messages begin with a header
  bool has_options = false;     // StepCodec's bits, group, metadata and spikes apply
  // Largest error of an element, divided by the largest magnitude in its group. 0: StepCodec's options decide.
  double error = 0;
};

inline constexpr auto codec_table = std::to_array<CodecFacts>({
    {.kind = StepCodec::Kind::plain, .name = "plain", .bits = 32, .error = 0x1p-20},
    {.kind = StepCodec::Kind::quantize, .name = "quantize", .is_grouped = true, .has_options = true},
    {.kind = StepCodec::Kind::f16, .name = "f16", .other_name = "fp16", .bits = 16, .only_f32 = true, .error = 0x1p-8},
    {.kind = StepCodec::Kind::bf16, .name = "bf16", .bits = 16, .only_f32 = true, .error = 0x1p-8},
    {.kind = StepCodec::Kind::fp8,
     .name = "fp8",
     .other_name = "e4m3",
     .bits = 8 + 16.0 / 128,
     .is_grouped = true,
     .error = 1.01 / 28},
});
inline constexpr size_t codec_count = codec_table.size();

static_assert(
    [] {
      for (size_t i = 0; i < codec_count; ++i) {
        if (static_cast<size_t>(codec_table[i].kind) != i) return false;
      }
      return true;
    }(),
    "rows must be ordered by number");

constexpr bool is_codec(size_t number) { return number < codec_count; }
// kind must be a valid codec number.
constexpr const CodecFacts& facts_of(StepCodec::Kind kind) { return codec_table[static_cast<size_t>(kind)]; }

inline constexpr auto codec_names = [] {
  std::array<const char*, codec_count> names{};
  for (size_t i = 0; i < codec_count; ++i) names[i] = codec_table[i].name;
  return names;
}();

// Finds a codec by either of its names. Returns null for an unknown name.
constexpr const CodecFacts* find_codec(std::string_view name) {
  for (const auto& facts : codec_table) {
    if (name == facts.name || (!name.empty() && name == facts.other_name)) return &facts;
  }
  return nullptr;
}

// Bits on the wire for an fp32 element.
constexpr double bits_per_element(const StepCodec& step) {
  const auto& facts = facts_of(step.kind);
  return facts.has_options ? step.bits + 32.0 / step.group : facts.bits;
}

}  // namespace unisono
