// Loads and stores at any address, conversions of 16-bit floats, and formats. A format turns elements into vector lanes and
// back.
//
// This file is part of simd.cc, which is compiled once per instruction set. Therefore the include guard opens again for each
// instruction set (Highway's idiom).
//
// The conversions round by code that is written out here, because Highway 1.0.3 truncates fp32 -> bf16, and without F16C also
// fp32 -> f16. AVX512-BF16 is not used, because it flushes subnormals to zero.
#if defined(UNISONO_KERNELS_FORMATS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifndef UNISONO_KERNELS_FORMATS_INL_H
#define UNISONO_KERNELS_FORMATS_INL_H
#else
#undef UNISONO_KERNELS_FORMATS_INL_H
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
HWY_BEFORE_NAMESPACE();
namespace unisono::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// This is 1 if the processor's f16 conversions round to nearest even, and handle subnormals and NaN.
#undef UNISONO_NATIVE_F16
#define UNISONO_NATIVE_F16 (HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_ARCH_ARM_A64)

template <typename T>
using Tag = hn::ScalableTag<T>;
template <typename T>
using Vec = hn::Vec<Tag<T>>;

constexpr size_t vector_bytes = HWY_MAX_BYTES;

// All loads and stores take bytes, because elements may have any alignment.
template <typename T>
HWY_INLINE Vec<T> load(const uint8_t* at) {
  return hn::BitCast(Tag<T>(), hn::LoadU(Tag<uint8_t>(), at));
}

template <typename T>
HWY_INLINE void store(Vec<T> value, uint8_t* at) {
  hn::StoreU(hn::BitCast(Tag<uint8_t>(), value), Tag<uint8_t>(), at);
}

// ---- conversions in 32-bit lanes

HWY_INLINE Vec<uint32_t> bits_of(Vec<float> value) { return hn::BitCast(Tag<uint32_t>(), value); }
HWY_INLINE Vec<float> float_of(Vec<uint32_t> bits) { return hn::BitCast(Tag<float>(), bits); }
HWY_INLINE Vec<uint32_t> all(uint32_t bits) { return hn::Set(Tag<uint32_t>(), bits); }

// The first step of rounding to nearest, ties to even. In the second step, the caller clears the low `cut` bits of the result.
// NaN is not allowed.
template <int cut>
HWY_INLINE Vec<uint32_t> round_up_to_cut(Vec<uint32_t> bits) {
#if HWY_TARGET == HWY_AVX3  // masks are free on this target, so three instructions suffice instead of four
  const auto odd = hn::TestBit(bits, all(1u << cut));
  return hn::Add(bits, hn::IfThenElse(odd, all(1u << (cut - 1)), all((1u << (cut - 1)) - 1)));
#else
  const auto odd = hn::And(hn::ShiftRight<cut>(bits), all(1));
  return hn::Add(hn::Add(bits, all((1u << (cut - 1)) - 1)), odd);
#endif
}

HWY_INLINE Vec<uint32_t> quiet(Vec<uint32_t> bits) {
  return hn::IfThenElse(hn::RebindMask(Tag<uint32_t>(), hn::IsNaN(float_of(bits))), hn::Or(bits, all(0x00400000)), bits);
}

// Returns the bf16 in the high half of each lane; the low half is unspecified.
HWY_INLINE Vec<uint32_t> high_bf16_from_f32(Vec<float> value) {
  const auto bits = bits_of(value);
  const auto nan = hn::RebindMask(Tag<uint32_t>(), hn::IsNaN(value));
  return hn::IfThenElse(nan, hn::Or(bits, all(0x00400000)), round_up_to_cut<16>(bits));
}

// Converts f16 bits, which must be in the low half of each lane. The high half must be zero.
HWY_INLINE Vec<float> f32_from_low_f16(Vec<uint32_t> half) {
  const auto sign = hn::ShiftLeft<16>(hn::And(half, all(0x8000)));
  const auto magnitude = hn::ShiftLeft<13>(hn::And(half, all(0x7FFF)));
  const auto exponent = hn::And(magnitude, all(0x1Fu << 23));
  const auto normal = hn::Add(magnitude, all(112u << 23));
  // 2^-14 * (1 + mantissa) - 2^-14 is exact. No operand is an fp32 subnormal, so the processor's flush modes do not matter.
  const auto smallest = all(113u << 23);
  const auto subnormal = bits_of(hn::Sub(float_of(hn::Add(magnitude, smallest)), float_of(smallest)));
  auto result = hn::IfThenElse(hn::Eq(exponent, all(0)), subnormal, normal);
  result = hn::IfThenElse(hn::Eq(exponent, all(0x1Fu << 23)), hn::Add(normal, all(112u << 23)), result);
  return float_of(quiet(hn::Or(result, sign)));
}

HWY_INLINE Vec<uint32_t> low_f16_from_f32(Vec<float> value) {
  const Tag<int32_t> d32;  // signed comparisons are cheaper; they are correct because all magnitudes are below 2^31
  const auto bits = bits_of(value);
  const auto sign = hn::ShiftRight<16>(hn::And(bits, all(0x80000000)));
  const auto magnitude = hn::And(bits, all(0x7FFFFFFF));
  const auto below = [&](uint32_t limit) HWY_ATTR {
    return hn::RebindMask(Tag<uint32_t>(), hn::Lt(hn::BitCast(d32, magnitude), hn::Set(d32, static_cast<int32_t>(limit))));
  };
  const auto normal = hn::ShiftRight<13>(round_up_to_cut<13>(hn::Sub(magnitude, all(112u << 23))));
  // The low bits of the sum with 0.5 are the value in units of 2^-24 (the unit of f16 subnormals). The addition also rounds.
  const auto half = all(126u << 23);
  const auto subnormal = hn::Sub(bits_of(hn::Add(float_of(magnitude), float_of(half))), half);
  const auto nan = hn::Or(all(0x7E00), hn::And(hn::ShiftRight<13>(magnitude), all(0x3FF)));
  auto result = hn::IfThenElse(below(113u << 23), subnormal, normal);
  result = hn::IfThenElse(below(143u << 23), result, all(0x7C00));
  result = hn::IfThenElse(below(0x7F800001), result, nan);
  return hn::Or(result, sign);
}

// ---- formats: how elements in memory become lanes to fold

template <typename T>
struct Native {
  using Lane = T;
  static constexpr size_t element_bytes = sizeof(T);
  struct Packet {
    Vec<T> value;
  };
  static HWY_INLINE Packet load(const uint8_t* at) { return {HWY_NAMESPACE::load<T>(at)}; }
  static HWY_INLINE void store(Packet packet, uint8_t* at) { HWY_NAMESPACE::store<T>(packet.value, at); }
  template <typename Function>
  static HWY_INLINE Packet map(Packet a, const Function& f) {
    return {f(a.value)};
  }
  template <typename Op>
  static HWY_INLINE Packet combine(Packet a, Packet b) {
    return {Op::template apply<T>(a.value, b.value)};
  }
  static HWY_INLINE Vec<T> total(Packet a) { return a.value; }
};

// The common part of both 16-bit formats: one vector of elements becomes two vectors of fp32.
struct Pair {
  using Lane = float;
  static constexpr size_t element_bytes = 2;
  struct Packet {
    Vec<float> first, second;
  };
  template <typename Function>
  static HWY_INLINE Packet map(Packet a, const Function& f) {
    return {f(a.first), f(a.second)};
  }
  template <typename Op>
  static HWY_INLINE Packet combine(Packet a, Packet b) {
    return {Op::template apply<float>(a.first, b.first), Op::template apply<float>(a.second, b.second)};
  }
  static HWY_INLINE Vec<float> total(Packet a) { return hn::Add(a.first, a.second); }
};

// `first` holds the even elements, and `second` the odd ones. So a shift and a mask suffice, without shuffles across lanes.
// Before store(), unify_nan() must have replaced every NaN by its quiet NaN, which the rounding does not change.
struct BrainFloats : Pair {
  static HWY_INLINE Packet load(const uint8_t* at) {
    const auto both = HWY_NAMESPACE::load<uint32_t>(at);
    return {float_of(hn::ShiftLeft<16>(both)), float_of(hn::And(both, all(0xFFFF0000)))};
  }
  static HWY_INLINE void store(Packet packet, uint8_t* at) {
    const auto even = hn::ShiftRight<16>(round_up_to_cut<16>(bits_of(packet.first)));
    const auto odd = hn::And(round_up_to_cut<16>(bits_of(packet.second)), all(0xFFFF0000));
    HWY_NAMESPACE::store<uint32_t>(hn::Or(even, odd), at);
  }
};

struct Halves : Pair {
#if UNISONO_NATIVE_F16
  using HalfTag = hn::Rebind<hwy::float16_t, Tag<float>>;
  using ByteTag = hn::Repartition<uint8_t, HalfTag>;
  static constexpr size_t half_bytes = vector_bytes / 2;
  static HWY_INLINE Vec<float> load_half(const uint8_t* at) {
    return hn::PromoteTo(Tag<float>(), hn::BitCast(HalfTag(), hn::LoadU(ByteTag(), at)));
  }
  static HWY_INLINE void store_half(Vec<float> value, uint8_t* at) {
    hn::StoreU(hn::BitCast(ByteTag(), hn::DemoteTo(HalfTag(), value)), ByteTag(), at);
  }
  static HWY_INLINE Packet load(const uint8_t* at) { return {load_half(at), load_half(at + half_bytes)}; }
  static HWY_INLINE void store(Packet packet, uint8_t* at) {
    store_half(packet.first, at);
    store_half(packet.second, at + half_bytes);
  }
#else
  static HWY_INLINE Packet load(const uint8_t* at) {
    const auto both = HWY_NAMESPACE::load<uint32_t>(at);
    return {f32_from_low_f16(hn::And(both, all(0xFFFF))), f32_from_low_f16(hn::ShiftRight<16>(both))};
  }
  static HWY_INLINE void store(Packet packet, uint8_t* at) {
    const auto odd = hn::ShiftLeft<16>(low_f16_from_f32(packet.second));
    HWY_NAMESPACE::store<uint32_t>(hn::Or(low_f16_from_f32(packet.first), odd), at);
  }
#endif
};

}  // namespace HWY_NAMESPACE
}  // namespace unisono::kernels
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET
#endif  // UNISONO_KERNELS_FORMATS_INL_H
