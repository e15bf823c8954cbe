// Decodes whole groups of a block, 16 at a time (a batch). First, the scales and minima of the 16 groups are loaded. Then codes
// are decoded in registers, and the values are stored at the destination or added to it. Spikes are written last.
//
// This file is part of blocks_simd.cc, which is compiled once per instruction set. Therefore the include guard opens again for
// each instruction set (Highway's idiom).
#if defined(UNISONO_KERNELS_BLOCKS_DECODE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifndef UNISONO_KERNELS_BLOCKS_DECODE_INL_H
#define UNISONO_KERNELS_BLOCKS_DECODE_INL_H
#else
#undef UNISONO_KERNELS_BLOCKS_DECODE_INL_H
#endif

#include <algorithm>
#include <bit>
#include <cstring>

#include <hwy/cache_control.h>

#include "kernels/blocks_planes_inl.h"
#include "kernels/dispatch.h"

#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
HWY_BEFORE_NAMESPACE();
namespace unisono::kernels {
namespace HWY_NAMESPACE {

// A batch of groups that is being decoded.
struct Decoding {
  // `first`: index of the first element in the block; `groups`: at most 16, each of `group` elements
  size_t first, groups, group;
  Numbers scale, minimum;  // one number per group; both are NaN if the stored scale is NaN
  Numbers low, high;       // the two spikes of each group; NaN if the stored scale is NaN
  size_t ahead;            // distance in elements to the next batch, which is prefetched; 0: no full batch follows
};

HWY_INLINE void load_headers(const BlockFormat& format, const BlockLayout& layout, const std::byte* block, Decoding& now) {
  const size_t at = now.first / format.group * 2 * metadata_bytes(format.metadata);
  load_pairs(format.metadata, block + layout.scales + at, now.groups, now.scale, now.minimum);
  if (format.spikes) load_pairs(format.metadata, block + layout.spikes + at, now.groups, now.low, now.high);
  for (size_t i = 0; i < batch_groups; i += float_lanes) {
    const auto poisoned = hn::IsNaN(load_numbers(now.scale, i));
    for (auto* const numbers : {&now.scale, &now.minimum, &now.low, &now.high}) {
      store_numbers(hn::IfThenElse(poisoned, set(quiet_nan), load_numbers(*numbers, i)), i, *numbers);
    }
  }
}

// The use of decoded values: they are stored in the given type, or added to fp32 values.
enum class Purpose : uint8_t { set_f32, set_f16, set_bf16, add };

// Stores two vectors of values at any address, or adds them to the values there.
template <Purpose purpose>
HWY_INLINE void put(F first, F second, uint8_t* at) {
  if constexpr (purpose == Purpose::set_f16) return store_narrow<DType::f16>(first, second, at);
  if constexpr (purpose == Purpose::set_bf16) return store_narrow<DType::bf16>(first, second, at);
  if constexpr (purpose == Purpose::add) {
    first = hn::Add(load<float>(at), first);
    second = hn::Add(load<float>(at + vector_bytes), second);
    first = hn::IfThenElse(hn::IsNaN(first), set(quiet_nan), first);
    second = hn::IfThenElse(hn::IsNaN(second), set(quiet_nan), second);
  }
  store<float>(first, at);
  store<float>(second, at + vector_bytes);
}

// Stores the decoded values at `to`, or adds them to the values there. `to` may have any alignment.
template <int bits, Purpose purpose>
void decode_groups(const BlockLayout& layout, const std::byte* block, const Decoding& now, uint8_t* to) {
  constexpr size_t value_bytes = purpose == Purpose::set_f16 || purpose == Purpose::set_bf16 ? 2 : 4;
  HWY_ALIGN uint8_t buffer[code_lanes];
  const int group_shift = std::countr_zero(now.group);
  for (size_t at = 0; at < now.groups * now.group; at += code_lanes) {
    // Prefetches the destination. Sums are read, and even a cache line that is overwritten must first be loaded.
    for (size_t line = 0; value_bytes == 4 && line < 4 * code_lanes; line += cache_line_bytes)
      hwy::Prefetch(to + (at + now.ahead) * 4 + line);
    const uint8_t* codes = buffer;
    if constexpr (bits == 8) codes = reinterpret_cast<const uint8_t*>(block + layout.planes[0].offset + now.first + at);
    else hn::Store(unpack_planes<bits>(layout, block, now.first + at), Codes(), buffer);
    for (size_t i = 0; i < code_lanes; i += 2 * float_lanes) {  // one iteration never crosses a group boundary
      const size_t g = (at + i) >> group_shift;
      const auto scale = set(now.scale.of[g]), minimum = set(now.minimum.of[g]);
      const auto value = [&](size_t from) HWY_ATTR {
        const auto code = hn::PromoteTo(Tag<int32_t>(), hn::LoadU(hn::Rebind<uint8_t, Tag<float>>(), codes + from));
        return hn::MulAdd(hn::ConvertTo(Tag<float>(), code), scale, minimum);
      };
      put<purpose>(value(i), value(i + float_lanes), to + (at + i) * value_bytes);
    }
  }
}

using DecodeGroups = void (*)(const BlockLayout& layout, const std::byte* block, const Decoding& now, uint8_t* to);

template <Purpose purpose>
DecodeGroups decode_groups_of(int bits) {
  switch (bits) {
    case 2: return decode_groups<2, purpose>;
    case 3: return decode_groups<3, purpose>;
    case 4: return decode_groups<4, purpose>;
    case 5: return decode_groups<5, purpose>;
    case 6: return decode_groups<6, purpose>;
    case 7: return decode_groups<7, purpose>;
    default: return decode_groups<8, purpose>;
  }
}

DecodeGroups decode_groups_to(DType to, int bits) {
  switch (to) {
    case DType::f16: return decode_groups_of<Purpose::set_f16>(bits);
    case DType::bf16: return decode_groups_of<Purpose::set_bf16>(bits);
    default: return decode_groups_of<Purpose::set_f32>(bits);
  }
}

// ---- spikes

// The addresses of the elements that are spikes, for all groups of a batch. They may have any alignment.
struct SpikeAddresses {
  uint8_t* at[2 * batch_groups];  // null: the stored index is outside the group, which is impossible in a valid block
};

HWY_INLINE SpikeAddresses spike_addresses_of(const BlockLayout& layout, const std::byte* block, const Decoding& now,
                                             uint8_t* elements, size_t value_bytes) {
  SpikeAddresses addresses;
  const std::byte* const spike_indices = block + layout.spike_indices + now.first / now.group * 2;
  for (size_t i = 0; i < 2 * now.groups; ++i) {
    const auto index = static_cast<size_t>(spike_indices[i]);
    addresses.at[i] = index < now.group ? elements + (i / 2 * now.group + index) * value_bytes : nullptr;
  }
  return addresses;
}

// Writes the low spike of each group, then the high spike. If both have the same index, the high spike remains.
template <typename Value>
HWY_INLINE void set_spikes(const SpikeAddresses& addresses, size_t groups, const Value* low, const Value* high) {
  for (size_t i = 0; i < 2 * groups; ++i) {
    if (addresses.at[i] != nullptr) std::memcpy(addresses.at[i], (i % 2 == 0 ? low : high) + i / 2, sizeof(Value));
  }
}

HWY_INLINE void set_spikes_as(DType to, const SpikeAddresses& addresses, const Decoding& now) {
  if (to == DType::f32) return set_spikes(addresses, now.groups, now.low.of, now.high.of);
  uint16_t low[batch_groups], high[batch_groups];
  convert(to, low, DType::f32, now.low.of, batch_groups);
  convert(to, high, DType::f32, now.high.of, batch_groups);
  set_spikes(addresses, now.groups, low, high);
}

// Sets each sum that has a spike to before + spike. `before` is the value of the sum before decode_groups() added a code to it.
HWY_INLINE void add_spikes(const SpikeAddresses& addresses, const float* before, const Decoding& now) {
  Numbers low, high;
  for (size_t i = 0; i < now.groups; ++i) {
    low.of[i] = before[2 * i] + now.low.of[i];
    high.of[i] = before[2 * i + 1] + now.high.of[i];
    if (std::isnan(low.of[i])) low.of[i] = quiet_nan;
    if (std::isnan(high.of[i])) high.of[i] = quiet_nan;
  }
  set_spikes(addresses, now.groups, low.of, high.of);
}

// ---- decoding a part

// Returns whether the product of a code and a scale is not rounded before it is added. Without a true fma, it would be rounded
// if the scale is fp32.
constexpr bool exact_products(Metadata type) { return HWY_NATIVE_FMA != 0 || type != Metadata::f32; }

// Calls take(done, batch) for each batch of the part, in order. `done` is the number of elements before the batch.
template <typename Take>
HWY_INLINE void each_batch(const BlockFormat& format, const BlockLayout& layout, size_t first, size_t whole,
                           const std::byte* block, Take take) {
  Decoding now;
  now.group = format.group;
  for (size_t done = 0; done < whole; done += now.groups * now.group) {
    now.first = first + done;
    now.groups = std::min(batch_groups, (whole - done) / now.group);
    now.ahead = whole - done >= 2 * batch_groups * now.group ? batch_groups * now.group : 0;
    load_headers(format, layout, block, now);
    take(done, now);
  }
}

// Lets the reference decode a group again if the group may hold values that are too large for `to`. The value with the largest
// magnitude is at one end of the group's range of codes, or it is a spike.
HWY_INLINE void decode_large_again(const BlockFormat& format, const BlockLayout& layout, const std::byte* block,
                                   const Decoding& now, DType to, std::byte* at, BlockCounts& counts) {
  const float steps = static_cast<float>((1u << format.bits) - 1), limit = to == DType::f16 ? 65504.0f : 0x1p127f;
  for (size_t i = 0; i < now.groups; ++i) {
    const float ends = std::max(std::fabs(now.minimum.of[i]), std::fabs(now.scale.of[i] * steps + now.minimum.of[i]));
    const float spikes = format.spikes ? std::max(std::fabs(now.low.of[i]), std::fabs(now.high.of[i])) : 0.0f;
    if (!(ends >= limit || spikes >= limit)) continue;
    decode_part_reference(format, layout, {now.first + i * now.group, now.group}, block, to, after(at, to, i * now.group),
                          counts);
  }
}

void decode(const BlockFormat& format, const BlockLayout& layout, BlockPart part, const void* bytes, DType to, void* elements,
            BlockCounts& counts) {
  if (!exact_products(format.metadata)) return decode_part_reference(format, layout, part, bytes, to, elements, counts);
  const auto* const block = static_cast<const std::byte*>(bytes);
  const auto groups = decode_groups_to(to, format.bits);
  const size_t whole = whole_elements(format, part.count, code_lanes);
  each_batch(format, layout, part.first, whole, block, [&](size_t done, const Decoding& now) HWY_ATTR {
    auto* const at = after(elements, to, done);
    auto* const there = reinterpret_cast<uint8_t*>(at);
    groups(layout, block, now, there);
    if (format.spikes) set_spikes_as(to, spike_addresses_of(layout, block, now, there, element_bytes(to)), now);
    if (to != DType::f32) decode_large_again(format, layout, block, now, to, at, counts);
  });
  decode_part_reference(format, layout, rest_of(part, whole), block, to, after(elements, to, whole), counts);
}

void decode_add(const BlockFormat& format, const BlockLayout& layout, BlockPart part, const void* bytes, void* sums) {
  if (!exact_products(format.metadata)) return decode_add_part_reference(format, layout, part, bytes, sums);
  const auto* const block = static_cast<const std::byte*>(bytes);
  const auto groups = decode_groups_of<Purpose::add>(format.bits);
  const size_t whole = whole_elements(format, part.count, code_lanes);
  each_batch(format, layout, part.first, whole, block, [&](size_t done, const Decoding& now) HWY_ATTR {
    auto* const at = reinterpret_cast<uint8_t*>(after(sums, DType::f32, done));
    if (!format.spikes) return groups(layout, block, now, at);
    const auto addresses = spike_addresses_of(layout, block, now, at, 4);
    float before[2 * batch_groups] = {};
    for (size_t i = 0; i < 2 * now.groups; ++i) {
      if (addresses.at[i] != nullptr) std::memcpy(&before[i], addresses.at[i], 4);
    }
    groups(layout, block, now, at);
    add_spikes(addresses, before, now);
  });
  decode_add_part_reference(format, layout, rest_of(part, whole), block, after(sums, DType::f32, whole));
}

}  // namespace HWY_NAMESPACE
}  // namespace unisono::kernels
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET
#endif  // UNISONO_KERNELS_BLOCKS_DECODE_INL_H
