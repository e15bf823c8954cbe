// The SIMD kernels of blocks: whole groups whose values need no special care. What is rare (a last group in part, values that are no
// numbers or too large) goes to the reference, one group at a time, so there is one place that says what happens then.
//
// A group passes twice through the registers: once for its range, once for its codes, which wait in the first-level cache as bytes and are
// packed into planes from there, 32 at a time. Scales are made for 16 groups at once: the divisions of one would be waited for. Decoding
// is the reverse.

#include "kernels/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/blocks_simd.cc"
#include <hwy/foreach_target.h>  // before highway.h
#include <hwy/highway.h>

#include <cstring>
#include <limits>

#include "kernels/blocks_group.h"
#include "kernels/dispatch.h"
#include "kernels/kernel_table.h"

HWY_BEFORE_NAMESPACE();
namespace unisono::kernels {
namespace HWY_NAMESPACE {
namespace {

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128

constexpr BlockKernels make_block_kernels() { return {.encode = encode_block_reference, .decode = decode_block_reference, .decode_add = decode_add_block_reference}; }

#else

namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::CappedTag<float, 32>;
using F = hn::Vec<Floats>;
using Codes = hn::CappedTag<uint8_t, 32>;
using CodeVector = hn::Vec<Codes>;

constexpr size_t float_lanes = hn::MaxLanes(Floats());
constexpr size_t code_lanes = hn::MaxLanes(Codes());

// ---- planes

// Packs the bits [shift, shift + width) of 32 codes into 4 * width bytes.
template <int width>
HWY_INLINE void pack(const uint8_t* HWY_RESTRICT codes, int shift, uint8_t* HWY_RESTRICT to) {
  const Codes d8;
  const hn::Repartition<uint16_t, Codes> d16;
  for (size_t i = 0; i < 32; i += code_lanes) {
    auto part = hn::Load(d8, codes + i);
    if constexpr (width < 8) {
      part = hn::BitCast(d8, hn::ShiftRightSame(hn::BitCast(d16, part), shift));
      part = hn::And(part, hn::Set(d8, static_cast<uint8_t>((1 << width) - 1)));
    }
    uint8_t* const at = to + i * width / 8;
    if constexpr (width == 8) {
      hn::StoreU(part, d8, at);
    } else if constexpr (width == 4) {
      const hn::Rebind<uint8_t, decltype(d16)> half;
      const auto pair = hn::BitCast(d16, part);
      const auto byte = hn::And(hn::Or(pair, hn::ShiftRight<4>(pair)), hn::Set(d16, 0x00FF));
      hn::StoreU(hn::DemoteTo(half, hn::BitCast(hn::RebindToSigned<decltype(d16)>(), byte)), half, at);
    } else if constexpr (width == 2) {
      const hn::Repartition<uint32_t, Codes> d32;
      const hn::Rebind<uint8_t, decltype(d32)> quarter;
      const auto four = hn::BitCast(d32, part);
      const auto joined = hn::Or(hn::Or(four, hn::ShiftRight<6>(four)), hn::Or(hn::ShiftRight<12>(four), hn::ShiftRight<18>(four)));
      const auto byte = hn::And(joined, hn::Set(d32, 0x000000FF));
      hn::StoreU(hn::DemoteTo(quarter, hn::BitCast(hn::RebindToSigned<decltype(d32)>(), byte)), quarter, at);
    } else {
      hn::StoreMaskBits(d8, hn::Ne(part, hn::Zero(d8)), at);
    }
  }
}

// The reverse, for a vector of codes.
template <int width>
HWY_INLINE CodeVector unpacked(const uint8_t* at) {
  const Codes d8;
  const hn::Repartition<uint16_t, Codes> d16;
  if constexpr (width == 8) {
    return hn::LoadU(d8, at);
  } else if constexpr (width == 4) {
    const hn::Rebind<uint8_t, decltype(d16)> half;
    const auto byte = hn::PromoteTo(d16, hn::LoadU(half, at));
    return hn::BitCast(d8, hn::And(hn::Or(byte, hn::ShiftLeft<4>(byte)), hn::Set(d16, 0x0F0F)));
  } else if constexpr (width == 2) {
    const hn::Repartition<uint32_t, Codes> d32;
    const hn::Rebind<uint8_t, decltype(d32)> quarter;
    const auto byte = hn::PromoteTo(d32, hn::LoadU(quarter, at));
    const auto spread = hn::Or(hn::Or(byte, hn::ShiftLeft<6>(byte)), hn::Or(hn::ShiftLeft<12>(byte), hn::ShiftLeft<18>(byte)));
    return hn::BitCast(d8, hn::And(spread, hn::Set(d32, 0x03030303)));
  } else {
    uint8_t bits[8] = {};  // as many are read
    std::memcpy(bits, at, code_lanes / 8);
    return hn::IfThenElseZero(hn::LoadMaskBits(d8, bits), hn::Set(d8, 1));
  }
}

HWY_INLINE void pack_plane(int width, const uint8_t* codes, int shift, uint8_t* to) {
  switch (width) {
    case 8: return pack<8>(codes, shift, to);
    case 4: return pack<4>(codes, shift, to);
    case 2: return pack<2>(codes, shift, to);
    default: return pack<1>(codes, shift, to);
  }
}

// For 32 codes; added to the bits that the planes before have given them.
template <int width>
HWY_INLINE void unpack(const uint8_t* from, int shift, bool first, uint8_t* codes) {
  const Codes d8;
  const hn::Repartition<uint16_t, Codes> d16;
  for (size_t i = 0; i < 32; i += code_lanes) {
    auto part = unpacked<width>(from + i * width / 8);
    if (!first) {
      part = hn::BitCast(d8, hn::ShiftLeftSame(hn::BitCast(d16, part), shift));  // no bit leaves its byte
      part = hn::Or(part, hn::Load(d8, codes + i));
    }
    hn::Store(part, d8, codes + i);
  }
}

HWY_INLINE void unpack_plane(int width, const uint8_t* from, int shift, bool first, uint8_t* codes) {
  switch (width) {
    case 8: return unpack<8>(from, shift, first, codes);
    case 4: return unpack<4>(from, shift, first, codes);
    case 2: return unpack<2>(from, shift, first, codes);
    default: return unpack<1>(from, shift, first, codes);
  }
}

// ---- encoding

struct Extent {
  float low = 0, high = 0;
  bool usual = false;  // all are numbers, and none is too large
};

HWY_INLINE F comparable_of(F value) { return hn::IfThenZeroElse(hn::Lt(hn::Abs(value), hn::Set(Floats(), tiny)), value); }

HWY_INLINE Extent extent_of(const float* values, size_t size, float limit) {
  const Floats d;
  const auto most = hn::Set(d, limit);
  auto fits = hn::Le(hn::Abs(hn::LoadU(d, values)), most);
  auto low = comparable_of(hn::LoadU(d, values)), high = low;
  for (size_t i = float_lanes; i < size; i += float_lanes) {
    const auto x = hn::LoadU(d, values + i);
    fits = hn::And(fits, hn::Le(hn::Abs(x), most));  // not for a NaN
    low = hn::Min(low, comparable_of(x));
    high = hn::Max(high, comparable_of(x));
  }
  if (!hn::AllTrue(d, fits)) return {};
  return {hn::GetLane(hn::MinOfLanes(d, low)), hn::GetLane(hn::MaxOfLanes(d, high)), true};
}

// The first that compares equal.
HWY_INLINE uint32_t first_equal(const float* values, size_t size, float wanted) {
  const Floats d;
  const auto want = hn::Set(d, wanted);
  for (size_t i = 0; i < size; i += float_lanes) {
    const auto found = hn::FindFirstTrue(d, hn::Eq(comparable_of(hn::LoadU(d, values + i)), want));
    if (found >= 0) return static_cast<uint32_t>(i) + static_cast<uint32_t>(found);
  }
  return 0;
}

HWY_INLINE void make_codes(const float* values, size_t size, float minimum, float inverse, float steps, uint8_t* codes) {
  const Floats d;
  const hn::Rebind<uint8_t, Floats> d8;
  const auto least = hn::Set(d, minimum), factor = hn::Set(d, inverse), top = hn::Set(d, steps), zero = hn::Zero(d);
  for (size_t i = 0; i < size; i += float_lanes) {
    const auto t = hn::Mul(hn::Sub(hn::LoadU(d, values + i), least), factor);
    hn::StoreU(hn::DemoteTo(d8, hn::NearestInt(hn::Min(hn::Max(t, zero), top))), d8, codes + i);
  }
}

constexpr size_t batch_groups = 16;

// Groups on their way into a block, side by side.
struct Batch {
  const float* values[batch_groups];
  GroupHeader headers[batch_groups];
  bool usual[batch_groups];
  HWY_ALIGN float low[batch_groups], high[batch_groups], minimum[batch_groups], scale[batch_groups], inverse[batch_groups];
  HWY_ALIGN float copies[batch_groups * group_max];  // of values that had to be widened or changed
};

// As rounded() of one number; never used to the nearest.
HWY_INLINE F rounded_all(Metadata type, F value, bool up) {
  const Floats d;
  const hn::RebindToUnsigned<Floats> bits;
  const auto zero = hn::Zero(d);
  if (type == Metadata::f32) return hn::Add(value, zero);
  const uint32_t unit = type == Metadata::f16 ? 1u << 13 : 1u << 16;
  const auto grows = up ? hn::Ge(value, zero) : hn::Lt(value, zero);
  const auto added = hn::IfThenElseZero(hn::RebindMask(bits, grows), hn::Set(bits, unit - 1));
  auto result = hn::BitCast(d, hn::And(hn::Add(hn::BitCast(bits, value), added), hn::Set(bits, ~(unit - 1))));
  if (type == Metadata::f16) {
    const auto steps = hn::Mul(value, hn::Set(d, 0x1p24f));
    const auto whole = hn::Mul(up ? hn::Ceil(steps) : hn::Floor(steps), hn::Set(d, 0x1p-24f));
    result = hn::IfThenElse(hn::Lt(hn::Abs(value), hn::Set(d, 0x1p-14f)), whole, result);
  }
  return hn::Add(result, zero);
}

// As set_scale() of one group.
HWY_INLINE void make_scales(const BlockFormat& format, Batch& batch) {
  const Floats d;
  const auto zero = hn::Zero(d), steps = hn::Set(d, static_cast<float>((1u << format.bits) - 1)), least = hn::Set(d, smallest_scale(format.metadata));
  for (size_t i = 0; i < batch_groups; i += float_lanes) {
    const auto minimum = rounded_all(format.metadata, hn::Load(d, batch.low + i), false);
    const auto distance = hn::Sub(hn::Load(d, batch.high + i), minimum);
    const auto scale = hn::IfThenZeroElse(hn::Eq(distance, zero), hn::Max(rounded_all(format.metadata, hn::Div(distance, steps), true), least));
    hn::Store(minimum, d, batch.minimum + i);
    hn::Store(scale, d, batch.scale + i);
    // Nothing divided by nothing: all codes are 0.
    hn::Store(hn::IfThenZeroElse(hn::Eq(scale, zero), hn::Div(hn::Set(d, 1.0f), scale)), d, batch.inverse + i);
  }
}

// The first and the last value of a group get places of their own, and in the copy another's value: that changes neither the range nor the
// codes of the others.
HWY_INLINE Extent reserve_spikes(const BlockFormat& format, const Extent& extent, GroupHeader& header, const float* values, float* copy) {
  header.low_at = first_equal(values, format.group, extent.low);
  header.high_at = first_equal(values, format.group, extent.high);
  header.low = rounded(format.metadata, extent.low, Rounding::near);
  header.high = rounded(format.metadata, extent.high, Rounding::near);
  if (copy != values) std::memcpy(copy, values, format.group * sizeof(float));
  uint32_t other = 0;
  while (header.is_spike(other)) ++other;
  copy[header.low_at] = copy[header.high_at] = copy[other];
  return extent_of(copy, format.group, largest(format.metadata));
}

// Values, and the ranges of the usual ones.
HWY_INLINE void take_groups(const BlockFormat& format, DType from, const std::byte* elements, size_t groups, Batch& batch) {
  const size_t group_bytes = format.group * element_bytes(from);
  for (size_t i = 0; i < groups; ++i) {
    float* const copy = batch.copies + i * format.group;
    if (from == DType::f32) {
      batch.values[i] = reinterpret_cast<const float*>(elements + i * group_bytes);  // at any address: read as vectors or bytes only
    } else {
      convert(DType::f32, copy, from, elements + i * group_bytes, format.group);
      batch.values[i] = copy;
    }
    batch.headers[i] = {};
    auto extent = extent_of(batch.values[i], format.group, largest(format.metadata));
    batch.usual[i] = extent.usual;
    if (format.spikes && extent.usual) {
      extent = reserve_spikes(format, extent, batch.headers[i], batch.values[i], copy);
      batch.values[i] = copy;
    }
    batch.low[i] = extent.low;
    batch.high[i] = extent.high;
  }
  for (size_t i = groups; i < batch_groups; ++i) batch.low[i] = batch.high[i] = 0;
}

void encode(const BlockFormat& format, DType from, const void* elements, size_t count, void* bytes, BlockCounts& counts) {
  const auto layout = layout_of(format, count);
  auto* const block = static_cast<std::byte*>(bytes);
  HWY_ALIGN uint8_t codes[group_max];
  Batch batch;
  const size_t whole = count / format.group;
  const auto steps = static_cast<float>((1u << format.bits) - 1);
  for (size_t first_group = 0; first_group < whole; first_group += batch_groups) {
    const size_t groups = std::min(batch_groups, whole - first_group);
    take_groups(format, from, static_cast<const std::byte*>(elements) + first_group * format.group * element_bytes(from), groups, batch);
    make_scales(format, batch);
    for (size_t i = 0; i < groups; ++i) {
      auto& header = batch.headers[i];
      if (batch.usual[i]) {
        header.scale = batch.scale[i], header.minimum = batch.minimum[i];
        make_codes(batch.values[i], format.group, header.minimum, batch.inverse[i], steps, codes);
        if (format.spikes) codes[header.low_at] = codes[header.high_at] = 0;
      } else {
        float* const copy = batch.copies + i * format.group;
        if (batch.values[i] != copy) std::memcpy(copy, batch.values[i], format.group * sizeof(float));
        encode_group(format, copy, format.group, header, codes, counts);
      }
      const size_t first = (first_group + i) * format.group;
      for (const auto& plane : layout.planes) {
        if (plane.width == 0) break;
        auto* const to = reinterpret_cast<uint8_t*>(block + plane.offset + first * plane.width / 8);
        for (size_t at = 0; at < format.group; at += 32) pack_plane(plane.width, codes + at, plane.shift, to + at * plane.width / 8);
      }
      store_header(format, layout, first_group + i, header, block);
    }
  }
  encode_from(format, layout, whole, from, elements, count, block, counts);
}

// ---- decoding

HWY_INLINE void values_of(const BlockFormat& format, const GroupHeader& header, const uint8_t* codes, float* values) {
  const Floats d;
  const hn::Rebind<uint8_t, Floats> d8;
  const hn::Rebind<int32_t, Floats> d32;
  const auto scale = hn::Set(d, header.scale), minimum = hn::Set(d, header.minimum);
  for (size_t i = 0; i < format.group; i += float_lanes) {
    const auto q = hn::ConvertTo(d, hn::PromoteTo(d32, hn::LoadU(d8, codes + i)));
    hn::StoreU(hn::MulAdd(q, scale, minimum), d, values + i);
  }
  if (format.spikes) {
    values[header.low_at] = header.low;
    values[header.high_at] = header.high;
  }
}

// Without a true fma, fp32 scales would be rounded twice.
constexpr bool exact_products(Metadata type) {
  return HWY_NATIVE_FMA != 0 || type != Metadata::f32;
}

// Calls take(first, values) for each whole group, in order.
template <typename Take>
HWY_INLINE void decode_whole(const BlockFormat& format, const BlockLayout& layout, const std::byte* block, size_t groups, Take take) {
  HWY_ALIGN uint8_t codes[group_max];
  HWY_ALIGN float values[group_max];
  for (size_t g = 0; g < groups; ++g) {
    const size_t first = g * format.group;
    bool first_plane = true;
    for (const auto& plane : layout.planes) {
      if (plane.width == 0) break;
      const auto* const from = reinterpret_cast<const uint8_t*>(block + plane.offset + first * plane.width / 8);
      for (size_t i = 0; i < format.group; i += 32) unpack_plane(plane.width, from + i * plane.width / 8, plane.shift, first_plane, codes + i);
      first_plane = false;
    }
    const auto header = load_header(format, layout, g, block);
    if (header.poisoned()) std::fill_n(values, format.group, quiet_nan);
    else values_of(format, header, codes, values);
    take(first, values);
  }
}

void decode(const BlockFormat& format, const void* bytes, size_t count, DType to, void* elements, BlockCounts& counts) {
  if (!exact_products(format.metadata)) return decode_block_reference(format, bytes, count, to, elements, counts);
  const auto layout = layout_of(format, count);
  const auto* const block = static_cast<const std::byte*>(bytes);
  decode_whole(format, layout, block, count / format.group, [&](size_t first, float* values) {
    auto* const at = static_cast<std::byte*>(elements) + first * element_bytes(to);
    if (to == DType::f32) return static_cast<void>(std::memcpy(at, values, format.group * sizeof(float)));
    bound_values(format, to, values, format.group, counts);
    convert(to, at, DType::f32, values, format.group);
  });
  decode_from(format, layout, count / format.group, block, count, to, elements, counts);
}

void decode_add(const BlockFormat& format, const void* bytes, size_t count, void* sums) {
  if (!exact_products(format.metadata)) return decode_add_block_reference(format, bytes, count, sums);
  const auto layout = layout_of(format, count);
  const auto* const block = static_cast<const std::byte*>(bytes);
  decode_whole(format, layout, block, count / format.group, [&](size_t first, const float* values) HWY_ATTR {
    const Floats d;
    const auto nan = hn::Set(d, quiet_nan);
    for (size_t i = 0; i < format.group; i += float_lanes) {
      float* const at = static_cast<float*>(sums) + first + i;
      const auto sum = hn::Add(hn::LoadU(d, at), hn::Load(d, values + i));
      hn::StoreU(hn::IfThenElse(hn::IsNaN(sum), nan, sum), d, at);
    }
  });
  decode_add_from(format, layout, count / format.group, block, count, sums);
}

constexpr BlockKernels make_block_kernels() { return {.encode = encode, .decode = decode, .decode_add = decode_add}; }

#endif  // HWY_TARGET

}  // namespace

const BlockKernels& block_kernels() {
  static constexpr BlockKernels kernels = [] {
    BlockKernels made = make_block_kernels();
    made.target = HWY_TARGET;
    return made;
  }();
  return kernels;
}

}  // namespace HWY_NAMESPACE
}  // namespace unisono::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "base/check.h"

namespace unisono::kernels {

const BlockKernels& block_kernels_of(int64_t target) {
  using Function = const BlockKernels& (*)();
  static constexpr Function compiled[] = {HWY_CHOOSE_TARGET_LIST(block_kernels), HWY_CHOOSE_FALLBACK(block_kernels)};
  for (const Function kernels : compiled) {
    if (kernels != nullptr && kernels().target == target) return kernels();
  }
  UNISONO_CHECK(!"an instruction set that this file was not compiled for");
  return compiled[0]();
}

}  // namespace unisono::kernels
#endif  // HWY_ONCE
