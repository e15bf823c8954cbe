// Codecs: how elements are encoded on the wire. A codec sends elements unchanged (plain), as floats of 16 or 8 bits, or as
// codes of 2 to 8 bits. Elements with codes form groups; the elements of a group share one scale.
//
//   group->all_reduce(tensor, {.codec = Codec::quantized(4)});
//   auto codec = unisono::Codec::parse("int8/int4:group=64");   // contributions with 8 bits, results with 4
//
// Source: Flash Communication (arXiv 2412.04964, 2508.03760). docs/guides/thin_links.md describes the cost and the accuracy of
// codecs. docs/reference/wire_format.md describes their bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "unisono/export.h"
#include "unisono/status.h"

namespace unisono {

// How a codec encodes the elements of one step of a collective.
struct StepCodec {
  // - plain: the tensor's own type.
  // - quantize: codes of `bits` bits.
  // - f16, bf16: 16-bit floats, for f32 tensors.
  // - fp8: 8-bit floats (OCP's E4M3); each 128 elements share a scale.
  // The numbers are part of the wire format.
  enum class Kind : uint8_t { plain = 0, quantize = 1, f16 = 2, bf16 = 3, fp8 = 4 };
  enum class Metadata : uint8_t { f16 = 0, bf16 = 1, f32 = 2, automatic = 3 };
  enum class Spikes : uint8_t { off = 0, on = 1, automatic = 2 };

  Kind kind = Kind::plain;
  // The fields below are used with Kind::quantize only.
  uint8_t bits = 8;                         // bits per element, 2 to 8
  uint16_t group = 128;                     // elements that share a scale: 32, 64, 128 or 256
  Metadata metadata = Metadata::automatic;  // the type of scales: f16 for f16 tensors, else bf16
  // With spikes, the smallest and the largest element of a group are sent separately, not as codes. automatic: on if `bits` is
  // 2 or 3.
  Spikes spikes = Spikes::automatic;
  friend bool operator==(const StepCodec&, const StepCodec&) = default;
};

// The codecs of one all_reduce, reduce_scatter, all_gather or all_to_all. Every rank must pass the same codec; otherwise the
// call returns an error that names the ranks that differ. Quantised elements are summed in fp32, in rank order. Every rank ends
// with the same bits.
//
// The library sends plain elements in these cases, and gives the reason in Report::codec_note:
// - The group has one rank, the elements are integers or f64, or the operation is not sum or avg.
// - The schedule is automatic, and there are fewer than 1,024 elements.
// - The schedule is automatic, and the codec is predicted to need more than 95 % of the time without it.
struct Codec {
  StepCodec reduce;        // codec of contributions; hierarchical schedules use it inside host groups only
  StepCodec across;        // codec of contributions between host groups; hierarchical schedules only
  StepCodec gather;        // codec of results; all_gather and all_to_all use it for all data
  bool own_exact = false;  // two_step: the rank that adds does not encode its own contribution
  // The treatment of values beyond the range of the scales' type. true: their whole group becomes NaN. false: they become the
  // largest value that fits.
  bool poison = false;

  bool is_plain() const {
    return reduce.kind == StepCodec::Kind::plain && across.kind == StepCodec::Kind::plain &&
           gather.kind == StepCodec::Kind::plain;
  }
  friend bool operator==(const Codec&, const Codec&) = default;

  // Uses one codec for all steps. It does not check `step`; the collective that gets the codec does.
  static Codec of(const StepCodec& step) { return {.reduce = step, .across = step, .gather = step}; }
  static Codec quantized(uint8_t bits, uint16_t group = 128) {
    return of({.kind = StepCodec::Kind::quantize, .bits = bits, .group = group});
  }

  // Parses text such as "quantize:bits=8/4,group=128,spikes=on".
  // - A codec is "plain", "f16", "bf16", "fp8", "int2" … "int8", "auto" (int8) or "quantize".
  // - "int8/int4" sets `reduce` and `gather`. "plain/int4/int8" sets `reduce`, `across` and `gather`.
  // - After ":" come options, separated by commas. Some accept one value per step, separated by "/": bits, group, metadata
  //   (f16, bf16, f32, auto), spikes (on, off, auto). Others do not: own_exact (on, off), on_overflow (saturate, poison).
  // Returns invalid for any other text. The message names the wrong part and the allowed values.
  UNISONO_EXPORT static Result<Codec> parse(std::string_view text);
  // Returns text that parse() reads.
  UNISONO_EXPORT std::string to_string() const;
};

}  // namespace unisono
