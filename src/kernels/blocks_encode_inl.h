// Encodes whole groups into a block, 16 at a time: first their ranges, then their scales side by side (the kernel would have to
// wait for the divisions of a single group), then their codes. The last pass finds in the first-level cache what the first has
// read.
//
// All groups take the same way; the few for which it gives wrong bytes (no numbers, too large, too small) are done again by the
// reference. A part of blocks_simd.cc, compiled once per instruction set like it: the include guard opens again for each
// (Highway's idiom).
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

// Codes are packed so many at a time: one vector of the plane of 4 bits.
constexpr size_t packed_codes = 2 * code_lanes;

// The codes of values [at, at + code_lanes) of the batch. Each half of them always belongs to one group.
template <int bits, bool spikes>
HWY_INLINE CodeVector codes_of(const Batch& batch, size_t at, int group_shift) {
  // Added to this, a number from 0 to 2^22 is rounded to nearest even, and stands in the low bits.
  const auto to_integer = set(0x1.8p23f);
  const auto code = [&](size_t i, F minimum, F inverse) HWY_ATTR {
    const auto t = hn::Mul(hn::Sub(load<float>(batch.values + (at + i * float_lanes) * 4), minimum), inverse);
    const auto number = bits_of(hn::Add(t, to_integer));
    return spikes ? hn::And(number, all((1u << bits) - 1)) : number;  // a spike may give any
  };
  const size_t g0 = at >> group_shift, g1 = (at + 2 * float_lanes) >> group_shift;
  const auto minimum0 = set(batch.minimum.of[g0]), inverse0 = set(batch.inverse.of[g0]);
  const auto minimum1 = set(batch.minimum.of[g1]), inverse1 = set(batch.inverse.of[g1]);
  return join_codes(code(0, minimum0, inverse0), code(1, minimum0, inverse0), code(2, minimum1, inverse1),
                    code(3, minimum1, inverse1));
}

// Spikes have the code 0.
template <int bits>
HWY_INLINE void clear_code(const BlockLayout& layout, std::byte* block, size_t at) {
  size_t offset = 0;
  for (const auto& plane : planes_of<bits>()) {
    const size_t width = static_cast<size_t>(plane.width), bit = at * width;
    block[layout.planes[offset++].offset + bit / 8] &= ~static_cast<std::byte>(((1u << width) - 1) << bit % 8);
  }
}

template <int bits>
void place_spikes(const Batch& batch, const BlockLayout& layout, size_t first, std::byte* block) {
  std::byte* places = block + layout.places + first / batch.group * 2;
  for (size_t i = 0; i < batch.groups; ++i, first += batch.group) {
    for (const float at : {batch.low_at.of[i], batch.high_at.of[i]}) {
      const auto place = static_cast<size_t>(static_cast<int32_t>(at));
      *places++ = static_cast<std::byte>(place);
      clear_code<bits>(layout, block, first + place);
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
  if constexpr (spikes) place_spikes<bits>(batch, layout, first, block);
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

// ---- all together

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
