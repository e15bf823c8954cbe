// How elements travel: as they are, as 16-bit floats, or as codes of 2 to 8 bits in groups that share a scale.
//
//   group->all_reduce(tensor, {.codec = Codec::quantized(4)});
//   auto codec = unisono::Codec::parse("int8/int4:group=64");   // contributions with 8 bits, results with 4
//
// Source: Flash Communication (arXiv 2412.04964, 2508.03760). docs/guides/thin_links.md has what they cost and lose,
// docs/reference/wire_format.md the bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "unisono/export.h"
#include "unisono/status.h"

namespace unisono {

// How a codec encodes the elements of one step of a collective.
struct StepCodec {
  // plain: the tensor's own type. f16, bf16: for f32 tensors. fp8: 8-bit floats (OCP's E4M3) in groups of 128 with a scale. The
  // numbers are part of the wire format.
  enum class Kind : uint8_t { plain = 0, quantize = 1, f16 = 2, bf16 = 3, fp8 = 4 };
  enum class Metadata : uint8_t { f16 = 0, bf16 = 1, f32 = 2, automatic = 3 };
  enum class Spikes : uint8_t { off = 0, on = 1, automatic = 2 };

  Kind kind = Kind::plain;
  // Only for Kind::quantize:
  uint8_t bits = 8;                         // of an element's code: 2 to 8
  uint16_t group = 128;                     // elements that share a scale: 32, 64, 128 or 256
  Metadata metadata = Metadata::automatic;  // the type of scales: f16 for f16 tensors, else bf16
  Spikes spikes = Spikes::automatic;        // smallest and largest element of a group apart from the codes: with 2 and 3 bits
  friend bool operator==(const StepCodec&, const StepCodec&) = default;
};

// For all_reduce, reduce_scatter, all_gather and all_to_all. Every rank must ask for the same; who does not is named. Quantised
// elements are summed in fp32, in rank order; every rank ends with the same bits.
//
// A codec that is not plain is left out, and the report says why (Report::codec_note), where it cannot be used (one rank;
// integers and f64; other operations than sum and avg), and, with an automatic schedule, where it does not pay: below 1,024
// elements, and where plain is predicted to take less than 1/0.95 of the time.
struct Codec {
  StepCodec reduce;        // contributions; in a hierarchical schedule inside host groups
  StepCodec across;        // contributions between host groups; only there
  StepCodec gather;        // results, and what is only moved
  bool own_exact = false;  // two_step: who adds up takes its own values as they are, not as it would have sent them
  bool poison =
      false;  // what is too large for the type of the scales becomes NaN with its group, instead of the largest that fits

  bool is_plain() const {
    return reduce.kind == StepCodec::Kind::plain && across.kind == StepCodec::Kind::plain &&
           gather.kind == StepCodec::Kind::plain;
  }
  friend bool operator==(const Codec&, const Codec&) = default;

  // All steps alike. Values that do not exist are refused by the call that is given them.
  static Codec of(const StepCodec& step) { return {.reduce = step, .across = step, .gather = step}; }
  static Codec quantized(uint8_t bits, uint16_t group = 128) {
    return of({.kind = StepCodec::Kind::quantize, .bits = bits, .group = group});
  }

  // "plain", "f16", "bf16", "fp8", "int2" … "int8", "auto" (int8), or "quantize"; "int8/int4" for reduce and gather,
  // "plain/int4/int8" for reduce, across and gather; then ":" and options, separated by commas: bits, group, metadata (f16,
  // bf16, f32, auto), spikes (on, off, auto), each also with one value per step; own_exact (on, off), on_overflow (saturate,
  // poison). "quantize:bits=8/4,group=128,spikes=on". invalid: names the part that is wrong and what is allowed.
  UNISONO_EXPORT static Result<Codec> parse(std::string_view text);
  // Text in the form that parse() reads.
  UNISONO_EXPORT std::string to_string() const;
};

}  // namespace unisono
