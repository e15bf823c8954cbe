// Encodes whole groups into a block, 16 at a time (a batch): first it finds the ranges of the 16 groups, then their scales,
// then their codes. Scales are computed together, because the divisions of a single group would stall the kernel. When the
// codes are computed, the elements are still in the first-level cache.
//
// At first, all groups are encoded in the same way. The result is wrong for groups with NaN, infinity, or values that are too
// large or too small. The reference encodes these groups again.
//
// This file is part of blocks_simd.cc, which is compiled once per instruction set. Therefore the include guard opens again for
// each instruction set (Highway's idiom).
#if defined(UNISONO_KERNELS_BLOCKS_ENCODE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifndef UNISONO_KERNELS_BLOCKS_ENCODE_INL_H
#define UNISONO_KERNELS_BLOCKS_ENCODE_INL_H
#else
#undef UNISONO_KERNELS_BLOCKS_ENCODE_INL_H
#endif

#include <algorithm>
#include <bit>

#include <hwy/cache_control.h>

#include "kernels/blocks_planes_inl.h"
#include "kernels/blocks_ranges_inl.h"

#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
HWY_BEFORE_NAMESPACE();
namespace unisono::kernels {
namespace HWY_NAMESPACE {

// This many codes are packed together. Their 4-bit plane fills one vector.
constexpr size_t packed_codes = 2 * code_lanes;

// Returns the codes of the values [at, at + code_lanes) of the batch. The first half of them belongs to a single group, and so
// does the second half.
template <int bits, bool spikes>
HWY_INLINE CodeVector codes_of(const Batch& batch, size_t at, int group_shift) {
  // If 0 <= x <= 2^22, the sum x + 1.5 * 2^23 rounds x to nearest even, and its low bits hold the result.
  const auto to_integer = set(0x1.8p23f);
  const auto code = [&](size_t i, F minimum, F inverse) HWY_ATTR {
    const auto t = hn::Mul(hn::Sub(load<float>(batch.values + (at + i * float_lanes) * 4), minimum), inverse);
    const auto number = bits_of(hn::Add(t, to_integer));
    return spikes ? hn::And(number, all((1u << bits) - 1)) : number;  // a spike may be outside the range of codes
  };
  const size_t g0 = at >> group_shift, g1 = (at + 2 * float_lanes) >> group_shift;
  const auto minimum0 = set(batch.minimum.of[g0]), inverse0 = set(batch.inverse.of[g0]);
  const auto minimum1 = set(batch.minimum.of[g1]), inverse1 = set(batch.inverse.of[g1]);
  return join_codes(code(0, minimum0, inverse0), code(1, minimum0, inverse0), code(2, minimum1, inverse1),
                    code(3, minimum1, inverse1));
}

// Sets the code at index `at` to 0, the code of a spike.
template <int bits>
HWY_INLINE void clear_code(const BlockLayout& layout, std::byte* block, size_t at) {
  size_t offset = 0;
  for (const auto& plane : planes_of<bits>()) {
    const size_t width = static_cast<size_t>(plane.width), bit = at * width;
    block[layout.planes[offset++].offset + bit / 8] &= ~static_cast<std::byte>(((1u << width) - 1) << bit % 8);
  }
}

template <int bits>
void store_spike_indices(const Batch& batch, const BlockLayout& layout, size_t first, std::byte* block) {
  std::byte* spike_indices = block + layout.spike_indices + first / batch.group * 2;
  for (size_t i = 0; i < batch.groups; ++i, first += batch.group) {
    for (const float at : {batch.low_at.of[i], batch.high_at.of[i]}) {
      const auto index = static_cast<size_t>(static_cast<int32_t>(at));
      *spike_indices++ = static_cast<std::byte>(index);
      clear_code<bits>(layout, block, first + index);
    }
  }
}

template <int bits, bool spikes>
void make_codes(const Batch& batch, const BlockLayout& layout, size_t first, std::byte* block) {
  const int group_shift = std::countr_zero(batch.group);
  const size_t fetched = batch.next_bytes * packed_codes / (batch.groups * batch.group);
  for (size_t at = 0, step = 0; at < batch.groups * batch.group; at += packed_codes, step += fetched) {
    for (size_t line = 0; line < fetched; line += cache_line_bytes) hwy::Prefetch(batch.next + step + line);
    const auto codes = codes_of<bits, spikes>(batch, at, group_shift);
    pack_planes<bits>(codes, codes_of<bits, spikes>(batch, at + code_lanes, group_shift), layout, block, first + at);
  }
  if constexpr (spikes) store_spike_indices<bits>(batch, layout, first, block);
}

using MakeCodes = void (*)(const Batch& batch, const BlockLayout& layout, size_t first, std::byte* block);

template <bool spikes>
MakeCodes make_codes_of(int bits) {
  switch (bits) {
    case 2: return make_codes<2, spikes>;
    case 3: return make_codes<3, spikes>;
    case 4: return make_codes<4, spikes>;
    case 5: return make_codes<5, spikes>;
    case 6: return make_codes<6, spikes>;
    case 7: return make_codes<7, spikes>;
    default: return make_codes<8, spikes>;
  }
}

// ---- encoding a part

using MakeRanges = void (*)(const BlockFormat& format, const uint8_t* elements, Batch& batch);

template <bool spikes>
MakeRanges make_ranges_of(DType from) {
  switch (from) {
    case DType::bf16: return make_ranges<spikes, DType::bf16>;
    case DType::f16: return make_ranges<spikes, DType::f16>;
    default: return make_ranges<spikes, DType::f32>;
  }
}

void encode(const BlockFormat& format, const BlockLayout& layout, BlockPart part, DType from, const void* elements, void* bytes,
            BlockCounts& counts) {
  auto* const block = static_cast<std::byte*>(bytes);
  const size_t whole = whole_elements(format, part.count, packed_codes), whole_groups = whole / format.group;
  const auto ranges = format.spikes ? make_ranges_of<true>(from) : make_ranges_of<false>(from);
  const auto codes = format.spikes ? make_codes_of<true>(format.bits) : make_codes_of<false>(format.bits);
  Batch batch;
  batch.group = format.group;
  for (size_t done = 0; done < whole_groups; done += batch_groups) {
    batch.groups = std::min(batch_groups, whole_groups - done);
    const size_t first = part.first + done * format.group;
    const auto* const from_here = after(elements, from, done * format.group);
    const bool more = whole_groups - done >= 2 * batch_groups;
    batch.next = after(from_here, from, more ? batch_groups * batch.group : 0);
    batch.next_bytes = more ? batch_groups * batch.group * element_bytes(from) : 0;
    ranges(format, reinterpret_cast<const uint8_t*>(from_here), batch);
    if (format.spikes) find_spikes(batch);
    codes(batch, layout, first, block);
    const size_t header = first / format.group * 2 * metadata_bytes(format.metadata);
    store_pairs(format.metadata, batch.scale, batch.minimum, batch.groups, block + layout.scales + header);
    if (format.spikes)
      store_pairs(format.metadata, batch.low_spike, batch.high_spike, batch.groups, block + layout.spikes + header);
    for (size_t i = 0; i < batch.groups; ++i) {
      if (batch.unusual.of[i] == 0) continue;
      const BlockPart again{first + i * format.group, format.group};
      encode_part_reference(format, layout, again, from, after(from_here, from, i * format.group), block, counts);
    }
  }
  encode_part_reference(format, layout, rest_of(part, whole), from, after(elements, from, whole), block, counts);
}

}  // namespace HWY_NAMESPACE
}  // namespace unisono::kernels
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET
#endif  // UNISONO_KERNELS_BLOCKS_ENCODE_INL_H
