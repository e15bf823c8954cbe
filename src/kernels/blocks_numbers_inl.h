// The scales, minima and spikes of 16 groups at once: how they are rounded, and how they are stored in a block.
//
// This file is part of blocks_simd.cc, which is compiled once per instruction set. Therefore the include guard opens again for
// each instruction set (Highway's idiom).
#if defined(UNISONO_KERNELS_BLOCKS_NUMBERS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifndef UNISONO_KERNELS_BLOCKS_NUMBERS_INL_H
#define UNISONO_KERNELS_BLOCKS_NUMBERS_INL_H
#else
#undef UNISONO_KERNELS_BLOCKS_NUMBERS_INL_H
#endif

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/blocks_group.h"
#include "kernels/formats_inl.h"

#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
HWY_BEFORE_NAMESPACE();
namespace unisono::kernels {
namespace HWY_NAMESPACE {

constexpr size_t float_lanes = vector_bytes / 4;
constexpr size_t batch_groups = 16;
constexpr size_t cache_line_bytes = 64;

using F = Vec<float>;

// One number for each group of a batch (the groups that are processed together).
struct alignas(64) Numbers {
  float of[batch_groups] = {};
};

HWY_INLINE F set(float value) { return hn::Set(Tag<float>(), value); }
HWY_INLINE F load_numbers(const Numbers& numbers, size_t i) { return hn::Load(Tag<float>(), numbers.of + i); }
HWY_INLINE void store_numbers(F value, size_t i, Numbers& numbers) { hn::Store(value, Tag<float>(), numbers.of + i); }

// Loads a vector of elements and widens them to fp32. The address may have any alignment.
template <DType type>
HWY_INLINE F load_wide(const uint8_t* at) {
  if constexpr (type == DType::f32) return load<float>(at);
#if UNISONO_NATIVE_F16
  else if constexpr (type == DType::f16) return Halves::load_half(at);
#endif
  else {
    const hn::Rebind<uint16_t, Tag<float>> d16;
    const auto bits =
        hn::PromoteTo(Tag<uint32_t>(), hn::BitCast(d16, hn::LoadU(hn::Repartition<uint8_t, decltype(d16)>(), at)));
    if constexpr (type == DType::bf16) return float_of(hn::ShiftLeft<16>(bits));
    else return f32_from_low_f16(bits);
  }
}

// Stores two vectors as 16-bit elements at any address. A NaN must be the quiet NaN that decoding produces, because this NaN is
// not changed by the rounding.
template <DType type>
HWY_INLINE void store_narrow(F first, F second, uint8_t* at) {
  const Tag<uint16_t> d16;
  if constexpr (type == DType::bf16) {
    const auto low = hn::BitCast(d16, round_up_to_cut<16>(bits_of(first))),
               high = hn::BitCast(d16, round_up_to_cut<16>(bits_of(second)));
    store<uint16_t>(hn::ConcatOdd(d16, high, low), at);
  } else {
#if UNISONO_NATIVE_F16
    Halves::store({first, second}, at);
#else
    store<uint16_t>(hn::ConcatEven(d16, hn::BitCast(d16, low_f16_from_f32(second)), hn::BitCast(d16, low_f16_from_f32(first))),
                    at);
#endif
  }
}

// Returns how many of `count` elements the kernels process: as many as possible, but a multiple of the group size and of
// `codes_at_once`.
HWY_INLINE size_t whole_elements(const BlockFormat& format, size_t count, size_t codes_at_once) {
  return count / std::max<size_t>(format.group, codes_at_once) * std::max<size_t>(format.group, codes_at_once);
}

// comparable() and rounded() for vectors.
HWY_INLINE F comparable_of(F value) { return hn::IfThenZeroElse(hn::Lt(hn::Abs(value), set(tiny)), value); }

template <Rounding rounding>
HWY_INLINE F rounded_of(Metadata type, F value) {
  const Tag<uint32_t> bits;
  const auto zero = hn::Zero(Tag<float>());
  if (type == Metadata::f32) return hn::Add(value, zero);
  const bool half = type == Metadata::f16;
  const uint32_t unit = half ? 1u << 13 : 1u << 16;
  Vec<uint32_t> raised;
  if constexpr (rounding == Rounding::near) {
    raised = half ? round_up_to_cut<13>(bits_of(value)) : round_up_to_cut<16>(bits_of(value));
  } else {
    const auto grows = rounding == Rounding::up ? hn::Ge(value, zero) : hn::Lt(value, zero);
    raised = hn::Add(bits_of(value), hn::IfThenElseZero(hn::RebindMask(bits, grows), all(unit - 1)));
  }
  auto result = float_of(hn::And(raised, all(~(unit - 1))));
  if (half) {  // subnormal numbers are multiples of 2^-24
    const auto steps = hn::Mul(value, set(0x1p24f));
    const auto whole = rounding == Rounding::up     ? hn::Ceil(steps)
                       : rounding == Rounding::down ? hn::Floor(steps)
                                                    : hn::Round(steps);
    result = hn::IfThenElse(hn::Lt(hn::Abs(value), set(0x1p-14f)), hn::Mul(whole, set(0x1p-24f)), result);
  }
  return hn::Add(result, zero);
}

// ---- numbers in a block

// Returns the 16 bits of each number, in the low half of its lane. The numbers must be exact in the type, and must not be NaN.
HWY_INLINE Vec<uint32_t> low_bits_of(Metadata type, F value) {
  const auto bits = bits_of(value);
  if (type == Metadata::bf16) return hn::ShiftRight<16>(bits);
  const auto magnitude = hn::And(bits, all(0x7FFFFFFF));
  const auto normal = hn::Sub(hn::ShiftRight<13>(magnitude), all(112u << 10));
  // An f16 below 2^-14 is k * 2^-24. The low bits of the sum k + 2^23 are k.
  const auto steps = hn::And(bits_of(hn::Add(hn::Mul(float_of(magnitude), set(0x1p24f)), set(0x1p23f))), all(0x7FF));
  const auto is_small = hn::RebindMask(Tag<uint32_t>(), hn::Lt(float_of(magnitude), set(0x1p-14f)));
  return hn::Or(hn::ShiftLeft<15>(hn::ShiftRight<31>(bits)), hn::IfThenElse(is_small, steps, normal));
}

// Stores the two numbers of each group side by side.
HWY_INLINE void store_pairs(Metadata type, const Numbers& first, const Numbers& second, size_t groups, std::byte* to) {
  HWY_ALIGN uint32_t words[2 * batch_groups];
  if (type == Metadata::f32) {
    for (size_t i = 0; i < batch_groups; ++i) {
      words[2 * i] = std::bit_cast<uint32_t>(first.of[i]);
      words[2 * i + 1] = std::bit_cast<uint32_t>(second.of[i]);
    }
    std::memcpy(to, words, groups * 8);
    return;
  }
  for (size_t i = 0; i < batch_groups; i += float_lanes) {
    const auto low = low_bits_of(type, load_numbers(first, i)), high = low_bits_of(type, load_numbers(second, i));
    hn::Store(hn::Or(low, hn::ShiftLeft<16>(high)), Tag<uint32_t>(), words + i);
  }
  std::memcpy(to, words, groups * 4);
}

// Loads the two numbers of each group. The numbers of all groups from `groups` on become zero.
HWY_INLINE void load_pairs(Metadata type, const std::byte* from, size_t groups, Numbers& first, Numbers& second) {
  HWY_ALIGN uint32_t words[2 * batch_groups] = {};
  std::memcpy(words, from, groups * 2 * metadata_bytes(type));
  if (type == Metadata::f32) {
    for (size_t i = 0; i < batch_groups; ++i) {
      first.of[i] = std::bit_cast<float>(words[2 * i]);
      second.of[i] = std::bit_cast<float>(words[2 * i + 1]);
    }
    return;
  }
  for (size_t i = 0; i < batch_groups; i += float_lanes) {
    const auto word = hn::Load(Tag<uint32_t>(), words + i);
    const bool half = type == Metadata::f16;
    store_numbers(half ? f32_from_low_f16(hn::And(word, all(0xFFFF))) : float_of(hn::ShiftLeft<16>(word)), i, first);
    store_numbers(half ? f32_from_low_f16(hn::ShiftRight<16>(word)) : float_of(hn::And(word, all(0xFFFF0000))), i, second);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace unisono::kernels
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET
#endif  // UNISONO_KERNELS_BLOCKS_NUMBERS_INL_H
