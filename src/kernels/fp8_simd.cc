// The SIMD kernels for FP8. They take whole groups of ordinary values. The reference takes all other groups, which are rare: an
// incomplete last group, and groups with NaN, infinity, or values that are too large. This file is compiled once per
// instruction set.

#include "base/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/fp8_simd.cc"
#include <hwy/foreach_target.h>  // must precede highway.h
#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/blocks_group.h"
#include "kernels/blocks_numbers_inl.h"
#include "kernels/dispatch.h"
#include "kernels/fp8.h"
#include "kernels/kernel_table.h"

#ifndef UNISONO_KERNELS_FP8_SIMD_ONCE
#define UNISONO_KERNELS_FP8_SIMD_ONCE
namespace unisono::kernels {

struct Fp8Kernels {
  int64_t target = 0;
  decltype(&fp8_encode_part) encode = nullptr;
  decltype(&fp8_decode_part) decode = nullptr;
  decltype(&fp8_decode_add_part) decode_add = nullptr;
};

}  // namespace unisono::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace unisono::kernels {
namespace HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
namespace {

using Codes = Vec<uint32_t>;  // one code in each lane

HWY_INLINE Codes fp8_codes_of(F value) {
  const auto sign = hn::ShiftRight<24>(hn::And(bits_of(value), all(0x80000000)));
  const auto magnitude = hn::And(bits_of(value), all(0x7FFFFFFF));
  const auto normal = hn::Sub(hn::ShiftRight<20>(round_up_to_cut<20>(magnitude)), all(120u << 3));
  // Below 2^-6, a number is k * 2^-9, and its code is k. The low bits of the sum k + 2^23 are k.
  const auto steps = hn::And(bits_of(hn::Add(hn::Mul(float_of(magnitude), set(0x1p9f)), set(0x1p23f))), all(0xFF));
  const auto is_small = hn::RebindMask(Tag<uint32_t>(), hn::Lt(float_of(magnitude), set(0x1p-6f)));
  return hn::Or(sign, hn::IfThenElse(is_small, steps, normal));
}

HWY_INLINE F fp8_numbers_of(Codes codes) {
  const auto sign = hn::ShiftLeft<24>(hn::And(codes, all(0x80)));
  const auto magnitude = hn::And(codes, all(0x7F));
  const auto normal = hn::Add(hn::ShiftLeft<20>(magnitude), all(120u << 23));
  const auto steps = hn::Mul(hn::ConvertTo(Tag<float>(), hn::BitCast(Tag<int32_t>(), magnitude)), set(0x1p-9f));
  const auto is_small = hn::Eq(hn::And(magnitude, all(0x78)), all(0));
  const auto number = hn::IfThenElse(is_small, bits_of(steps), normal);
  const auto is_nan = hn::Eq(magnitude, all(0x7F));
  return float_of(hn::Or(sign, hn::IfThenElse(is_nan, all(0x7FC00000), number)));
}

HWY_INLINE void fp8_store_codes(Codes codes, std::byte* to) {
  const hn::Rebind<uint8_t, Tag<int32_t>> d8;
  hn::StoreU(hn::DemoteTo(d8, hn::BitCast(Tag<int32_t>(), codes)), d8, reinterpret_cast<uint8_t*>(to));
}

HWY_INLINE Codes fp8_load_codes(const std::byte* from) {
  const hn::Rebind<uint8_t, Tag<uint32_t>> d8;
  return hn::PromoteTo(Tag<uint32_t>(), hn::LoadU(d8, reinterpret_cast<const uint8_t*>(from)));
}

// Encodes one group. Returns false if the reference must encode it instead.
template <DType type>
bool fp8_encode_group(const uint8_t* elements, std::byte* codes, std::byte* scale_to) {
  const Tag<float> d;
  constexpr size_t lane_bytes = float_lanes * (type == DType::f32 ? 4 : 2);
  auto largest_so_far = hn::Zero(d);
  auto sound = hn::Eq(largest_so_far, largest_so_far);
  for (size_t i = 0; i < fp8_group; i += float_lanes) {
    const auto magnitude = hn::Abs(load_wide<type>(elements + i / float_lanes * lane_bytes));
    sound = hn::And(sound, hn::Le(magnitude, set(largest(Metadata::bf16))));
    largest_so_far = hn::Max(largest_so_far, comparable_of(magnitude));
  }
  if (!hn::AllTrue(d, sound)) return false;
  const uint16_t scale = fp8_scale_for(hn::GetLane(hn::MaxOfLanes(d, largest_so_far)));
  std::memcpy(scale_to, &scale, 2);
  if (scale == 0) return std::memset(codes, 0, fp8_group), true;
  const auto inverse = set(1 / std::bit_cast<float>(static_cast<uint32_t>(scale) << 16));
  for (size_t i = 0; i < fp8_group; i += float_lanes) {
    const auto value = comparable_of(load_wide<type>(elements + i / float_lanes * lane_bytes));
    const auto scaled = hn::Min(hn::Max(hn::Mul(value, inverse), set(-fp8_largest)), set(fp8_largest));
    fp8_store_codes(fp8_codes_of(scaled), codes + i);
  }
  return true;
}

HWY_INLINE float fp8_scale_at(const BlockLayout& layout, size_t group, const std::byte* block) {
  uint16_t bits = 0;
  std::memcpy(&bits, block + layout.scales + 2 * group, 2);
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

HWY_INLINE F fp8_without_payload(F value) { return hn::IfThenElse(hn::IsNaN(value), set(quiet_nan), value); }

template <DType type>
void fp8_encode_groups(const BlockFormat& format, const BlockLayout& layout, BlockPart part, const void* elements,
                       std::byte* block, BlockCounts& counts) {
  for (size_t first = 0; first < part.count; first += fp8_group) {
    const size_t at = part.first + first;
    const auto* const from = after(elements, type, first);
    if (!fp8_encode_group<type>(reinterpret_cast<const uint8_t*>(from), block + at, block + layout.scales + at / fp8_group * 2))
      fp8_encode_part_reference(format, layout, {at, fp8_group}, type, from, block, counts);
  }
}

void fp8_encode(const BlockFormat& format, const BlockLayout& layout, BlockPart part, DType from, const void* elements,
                void* bytes, BlockCounts& counts) {
  auto* const block = static_cast<std::byte*>(bytes);
  const size_t whole = part.count / fp8_group * fp8_group;
  const BlockPart groups{part.first, whole};
  if (from == DType::f32) fp8_encode_groups<DType::f32>(format, layout, groups, elements, block, counts);
  else if (from == DType::bf16) fp8_encode_groups<DType::bf16>(format, layout, groups, elements, block, counts);
  else fp8_encode_groups<DType::f16>(format, layout, groups, elements, block, counts);
  fp8_encode_part_reference(format, layout, rest_of(part, whole), from, after(elements, from, whole), block, counts);
}

void fp8_decode(const BlockFormat& format, const BlockLayout& layout, BlockPart part, const void* bytes, DType to,
                void* elements, BlockCounts& counts) {
  const auto* const block = static_cast<const std::byte*>(bytes);
  const size_t whole = part.count / fp8_group * fp8_group;
  for (size_t first = 0; first < whole; first += fp8_group) {
    const size_t at = part.first + first;
    const auto scale = set(fp8_scale_at(layout, at / fp8_group, block));
    alignas(64) float values[fp8_group];
    for (size_t i = 0; i < fp8_group; i += float_lanes)
      hn::Store(fp8_without_payload(hn::Mul(fp8_numbers_of(fp8_load_codes(block + at + i)), scale)), Tag<float>(), values + i);
    auto* const place = after(elements, to, first);
    if (to == DType::f32) {
      std::memcpy(place, values, sizeof(values));
    } else {
      bound_values(to, values, fp8_group, format.poison, counts);
      convert(to, place, DType::f32, values, fp8_group);
    }
  }
  fp8_decode_part_reference(format, layout, rest_of(part, whole), bytes, to, after(elements, to, whole), counts);
}

void fp8_decode_add(const BlockFormat& format, const BlockLayout& layout, BlockPart part, const void* bytes, void* sums) {
  const auto* const block = static_cast<const std::byte*>(bytes);
  const size_t whole = part.count / fp8_group * fp8_group;
  for (size_t first = 0; first < whole; first += fp8_group) {
    const size_t at = part.first + first;
    const auto scale = set(fp8_scale_at(layout, at / fp8_group, block));
    for (size_t i = 0; i < fp8_group; i += float_lanes) {
      auto* const sum = reinterpret_cast<uint8_t*>(after(sums, DType::f32, first + i));
      const auto value = fp8_without_payload(hn::Mul(fp8_numbers_of(fp8_load_codes(block + at + i)), scale));
      store<float>(fp8_without_payload(hn::Add(load<float>(sum), value)), sum);
    }
  }
  fp8_decode_add_part_reference(format, layout, rest_of(part, whole), bytes, after(sums, DType::f32, whole));
}

}  // namespace
#endif  // HWY_TARGET

const Fp8Kernels& fp8_kernels() {
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
  static constexpr Fp8Kernels kernels{.target = HWY_TARGET,
                                      .encode = fp8_encode_part_reference,
                                      .decode = fp8_decode_part_reference,
                                      .decode_add = fp8_decode_add_part_reference};
#else
  static constexpr Fp8Kernels kernels{
      .target = HWY_TARGET, .encode = fp8_encode, .decode = fp8_decode, .decode_add = fp8_decode_add};
#endif
  return kernels;
}

}  // namespace HWY_NAMESPACE
}  // namespace unisono::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "base/check.h"

namespace unisono::kernels {
namespace {

// Highway gives better instruction sets lower bits.
const Fp8Kernels& kernels_in_use() {
  using Function = const Fp8Kernels& (*)();
  static constexpr Function compiled[] = {HWY_CHOOSE_TARGET_LIST(fp8_kernels), HWY_CHOOSE_FALLBACK(fp8_kernels)};
  const Fp8Kernels* best = nullptr;
  for (const Function kernels : compiled) {
    if (kernels == nullptr || kernels().target < target_in_use()) continue;
    if (best == nullptr || kernels().target < best->target) best = &kernels();
  }
  UNISONO_CHECK(best != nullptr);
  return *best;
}

}  // namespace

void fp8_encode_part(const BlockFormat& format, const BlockLayout& layout, BlockPart part, DType from, const void* elements,
                     void* block, BlockCounts& counts) {
  UNISONO_CHECK(part.first % fp8_group == 0);
  kernels_in_use().encode(format, layout, part, from, elements, block, counts);
}

void fp8_decode_part(const BlockFormat& format, const BlockLayout& layout, BlockPart part, const void* block, DType to,
                     void* elements, BlockCounts& counts) {
  UNISONO_CHECK(part.first % fp8_group == 0);
  kernels_in_use().decode(format, layout, part, block, to, elements, counts);
}

void fp8_decode_add_part(const BlockFormat& format, const BlockLayout& layout, BlockPart part, const void* block, void* sums) {
  UNISONO_CHECK(part.first % fp8_group == 0);
  kernels_in_use().decode_add(format, layout, part, block, sums);
}

}  // namespace unisono::kernels
#endif  // HWY_ONCE
