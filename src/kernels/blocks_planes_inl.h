// Converts codes between registers and their bit planes in memory. Four vectors of numbers become one vector of one-byte codes.
// Codes are split into planes, and joined again. This code knows nothing about scales and groups.
//
// This file is part of blocks_simd.cc, which is compiled once per instruction set. Therefore the include guard opens again for
// each instruction set (Highway's idiom).
#if defined(UNISONO_KERNELS_BLOCKS_PLANES_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifndef UNISONO_KERNELS_BLOCKS_PLANES_INL_H
#define UNISONO_KERNELS_BLOCKS_PLANES_INL_H
#else
#undef UNISONO_KERNELS_BLOCKS_PLANES_INL_H
#endif

#include <array>
#include <cstring>
#include <type_traits>

#include "kernels/blocks_group.h"
#include "kernels/blocks_numbers_inl.h"
#include "kernels/formats_inl.h"

#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
HWY_BEFORE_NAMESPACE();
namespace unisono::kernels {
namespace HWY_NAMESPACE {

using Codes = Tag<uint8_t>;
using CodeVector = Vec<uint8_t>;

constexpr size_t code_lanes = vector_bytes;  // number of codes in one vector, and of floats in four vectors

// Says which bits of a code are in one plane. The widest plane comes first. Each plane begins at the bit that follows the last
// bit of the previous plane.
struct PlaneBits {
  int width = 0, shift = 0;
};
template <int bits>
constexpr auto planes_of() {
  std::array<PlaneBits, (bits & 1) + (bits >> 1 & 1) + (bits >> 2 & 1) + (bits >> 3 & 1)> planes;
  int shift = 0;
  size_t i = 0;
  for (int width = 8; width > 0; width /= 2) {
    if ((bits & width) == 0) continue;
    planes[i++] = {width, shift};
    shift += width;
  }
  return planes;
}

// ---- numbers to codes

// Each of the vectors holds one code in the low byte of each 32-bit lane. Returns all codes, in the order of the vectors.
// First, shifts and blends bring four codes into each lane. Then bytes are reordered within blocks of 16 bytes. Last, groups of
// four bytes are reordered across the whole vector.
HWY_INLINE CodeVector join_codes(Vec<uint32_t> v0, Vec<uint32_t> v1, Vec<uint32_t> v2, Vec<uint32_t> v3) {
  const Tag<uint16_t> d16;
  const Codes d8;
  const auto v02 = hn::OddEven(hn::BitCast(d16, hn::ShiftLeft<16>(v2)), hn::BitCast(d16, v0));
  const auto v13 = hn::OddEven(hn::BitCast(d16, hn::ShiftLeft<16>(v3)), hn::BitCast(d16, v1));
  const auto lanes = hn::BitCast(d8, hn::Or(v02, hn::ShiftLeft<8>(v13)));
  HWY_ALIGN static constexpr uint8_t by_vector[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
  const auto fours = hn::TableLookupBytes(lanes, hn::LoadDup128(d8, by_vector));
#if HWY_MAX_BYTES > 16
  const Tag<uint32_t> d32;
  static constexpr auto order = [] {
    std::array<int32_t, float_lanes> from{};
    for (size_t i = 0; i < float_lanes; ++i) from[i] = static_cast<int32_t>(i % (float_lanes / 4) * 4 + i / (float_lanes / 4));
    return from;
  }();
  return hn::BitCast(d8, hn::TableLookupLanes(hn::BitCast(d32, fours), hn::SetTableIndices(d32, order.data())));
#else
  return fours;
#endif
}

// ---- codes to planes

template <int distance>
HWY_INLINE CodeVector or_with_higher(CodeVector codes) {
  const auto pairs = hn::BitCast(Tag<uint16_t>(), codes);
  return hn::BitCast(Codes(), hn::Or(pairs, hn::ShiftRight<distance>(pairs)));
}

// Writes one plane of two vectors of codes. This writes 2 * code_lanes * width bits.
template <int width, int shift>
HWY_INLINE void pack(CodeVector first, CodeVector second, uint8_t* to) {
  const Codes d8;
  if constexpr (width == 1) {
    const auto bit = hn::Set(d8, uint8_t{1 << shift});
    hn::StoreMaskBits(d8, hn::TestBit(first, bit), to);
    hn::StoreMaskBits(d8, hn::TestBit(second, bit), to + code_lanes / 8);
    return;
  }
  if constexpr (shift > 0) {  // the mask below removes the bits that this shift takes from the next byte
    const Tag<uint16_t> d16;
    first = hn::BitCast(d8, hn::ShiftRight<shift>(hn::BitCast(d16, first)));
    second = hn::BitCast(d8, hn::ShiftRight<shift>(hn::BitCast(d16, second)));
  }
  if constexpr (width < 8) {
    const auto mask = hn::Set(d8, static_cast<uint8_t>((1 << width) - 1));
    first = hn::And(first, mask);
    second = hn::And(second, mask);
  }
  if constexpr (width == 8) {
    hn::StoreU(first, d8, to);
    hn::StoreU(second, d8, to + code_lanes);
  } else if constexpr (width == 4) {
    hn::StoreU(hn::ConcatEven(d8, or_with_higher<4>(second), or_with_higher<4>(first)), d8, to);
  } else if constexpr (width == 2) {
    const auto pairs = or_with_higher<4>(hn::ConcatEven(d8, or_with_higher<6>(second), or_with_higher<6>(first)));
    const hn::Half<Codes> half;
    hn::StoreU(hn::LowerHalf(half, hn::ConcatEven(d8, pairs, pairs)), half, to);
  }
}

// Writes all planes of two vectors of codes. `at` is the index of the first code in the block.
template <int bits>
HWY_INLINE void pack_planes(CodeVector first, CodeVector second, const BlockLayout& layout, std::byte* block, size_t at) {
  constexpr auto planes = planes_of<bits>();
  const auto to = [&](size_t plane) {
    return reinterpret_cast<uint8_t*>(block + layout.planes[plane].offset + at * static_cast<size_t>(planes[plane].width) / 8);
  };
  pack<planes[0].width, planes[0].shift>(first, second, to(0));
  if constexpr (planes.size() > 1) pack<planes[1].width, planes[1].shift>(first, second, to(1));
  if constexpr (planes.size() > 2) pack<planes[2].width, planes[2].shift>(first, second, to(2));
}

// ---- planes to codes

// Reads one plane of one vector of codes.
template <int width>
HWY_INLINE CodeVector unpack(const uint8_t* from) {
  const Codes d8;
  const Tag<uint16_t> d16;
  const Tag<uint32_t> d32;
  if constexpr (width == 8) {
    return hn::LoadU(d8, from);
  } else if constexpr (width == 4) {
    const auto byte = hn::PromoteTo(d16, hn::LoadU(hn::Rebind<uint8_t, Tag<uint16_t>>(), from));
    return hn::BitCast(d8, hn::And(hn::Or(byte, hn::ShiftLeft<4>(byte)), hn::Set(d16, 0x0F0F)));
  } else if constexpr (width == 2) {
    const auto byte = hn::PromoteTo(d32, hn::LoadU(hn::Rebind<uint8_t, Tag<uint32_t>>(), from));
    const auto pairs = hn::Or(byte, hn::ShiftLeft<12>(byte));
    return hn::BitCast(d8, hn::And(hn::Or(pairs, hn::ShiftLeft<6>(pairs)), hn::Set(d32, 0x03030303)));
  } else {
    uint8_t mask[8] = {};  // LoadMaskBits reads 8 bytes
    std::memcpy(mask, from, code_lanes / 8);
    return hn::IfThenElseZero(hn::LoadMaskBits(d8, mask), hn::Set(d8, 1));
  }
}

template <int bits>
HWY_INLINE CodeVector unpack_planes(const BlockLayout& layout, const std::byte* block, size_t at) {
  constexpr auto planes = planes_of<bits>();
  const auto from = [&](size_t plane) {
    return reinterpret_cast<const uint8_t*>(block + layout.planes[plane].offset +
                                            at * static_cast<size_t>(planes[plane].width) / 8);
  };
  // The high bits of each byte are zero, so the shift of a 16-bit lane moves no bit into its other byte.
  const auto shifted = [](CodeVector part, auto shift) HWY_ATTR {
    return hn::BitCast(Codes(), hn::ShiftLeft<shift()>(hn::BitCast(Tag<uint16_t>(), part)));
  };
  auto codes = unpack<planes[0].width>(from(0));
  if constexpr (planes.size() > 1)
    codes = hn::Or(codes, shifted(unpack<planes[1].width>(from(1)), std::integral_constant<int, planes[1].shift>()));
  if constexpr (planes.size() > 2)
    codes = hn::Or(codes, shifted(unpack<planes[2].width>(from(2)), std::integral_constant<int, planes[2].shift>()));
  return codes;
}

}  // namespace HWY_NAMESPACE
}  // namespace unisono::kernels
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET
#endif  // UNISONO_KERNELS_BLOCKS_PLANES_INL_H
