// Finds the ranges, scales and spikes of up to 16 groups at a time. Encoding needs them before it computes codes.
//
// This file is part of blocks_simd.cc, which is compiled once per instruction set. Therefore the include guard opens again for
// each instruction set (Highway's idiom).
#if defined(UNISONO_KERNELS_BLOCKS_RANGES_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifndef UNISONO_KERNELS_BLOCKS_RANGES_INL_H
#define UNISONO_KERNELS_BLOCKS_RANGES_INL_H
#else
#undef UNISONO_KERNELS_BLOCKS_RANGES_INL_H
#endif

#include <algorithm>

#include "kernels/blocks_numbers_inl.h"

#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
HWY_BEFORE_NAMESPACE();
namespace unisono::kernels {
namespace HWY_NAMESPACE {

// A batch (up to 16 groups) that is being encoded.
struct Batch {
  const uint8_t* values;  // fp32 values of all groups, at any alignment
  const std::byte* next;  // the elements of the next batch, which are prefetched
  size_t next_bytes;      // number of bytes to prefetch at `next`; 0: there is no next batch
  size_t groups;          // number of groups, up to 16
  size_t group;           // elements per group
  Numbers scale, minimum, inverse;
  Numbers low_spike, high_spike;  // the spikes in the form in which they are stored
  // A value <= low_bound may be the low spike, and a value >= high_bound may be the high spike (a candidate).
  Numbers low_bound, high_bound;
  Numbers low_at, high_at;                             // index of the first candidate for the spike in its group
  Numbers unusual;                                     // not 0: the reference must encode this group
  alignas(64) float copies[batch_groups * group_max];  // fp32 copies of 16-bit elements

  // Returns i, or the index of the last group if the batch has no group i.
  size_t group_index(size_t i) const { return std::min(i, groups - 1); }
};

// ---- from lanes to groups

// The range of the values in each lane. `merged` combines two ranges lane by lane. `each` takes two ranges, and applies a
// shuffle to each member of one range and the same member of the other.
template <bool spikes>
struct Range {
  F low, high;
  F sum;                  // becomes NaN or infinite if a value in the lane is NaN or infinite
  F next_low, next_high;  // the second smallest and the second largest value; used only with spikes

  static HWY_INLINE Range merged(const Range& a, const Range& b) {
    Range both{hn::Min(a.low, b.low), hn::Max(a.high, b.high), hn::Add(a.sum, b.sum), a.low, a.low};
    if constexpr (spikes) {
      both.next_low = hn::Min(hn::Max(a.low, b.low), hn::Min(a.next_low, b.next_low));
      both.next_high = hn::Max(hn::Min(a.high, b.high), hn::Max(a.next_high, b.next_high));
    }
    return both;
  }
  template <typename Move>
  static HWY_INLINE Range each(const Range& a, const Range& b, Move move) {
    Range both{move(a.low, b.low), move(a.high, b.high), move(a.sum, b.sum), a.low, a.low};
    if constexpr (spikes) both.next_low = move(a.next_low, b.next_low), both.next_high = move(a.next_high, b.next_high);
    return both;
  }
};

// For each lane: the lowest index at which the value of the spike was found.
struct SpikeIndices {
  F low_at, high_at;

  static HWY_INLINE SpikeIndices merged(const SpikeIndices& a, const SpikeIndices& b) {
    return {hn::Min(a.low_at, b.low_at), hn::Min(a.high_at, b.high_at)};
  }
  template <typename Move>
  static HWY_INLINE SpikeIndices each(const SpikeIndices& a, const SpikeIndices& b, Move move) {
    return {move(a.low_at, b.low_at), move(a.high_at, b.high_at)};
  }
};

template <typename Lanes, typename Lower, typename Upper>
HWY_INLINE Lanes folded(const Lanes& a, const Lanes& b, Lower lower, Upper upper) {
  return Lanes::merged(Lanes::each(a, b, lower), Lanes::each(a, b, upper));
}

// Folds four groups into one vector. Each 16-byte block of the result holds one lane of each group, in group order.
template <typename Lanes>
HWY_INLINE Lanes folded_four(const Lanes& a, const Lanes& b, const Lanes& c, const Lanes& d) {
  const auto lower = [](F x, F y) HWY_ATTR { return hn::InterleaveLower(Tag<float>(), x, y); };
  const auto upper = [](F x, F y) HWY_ATTR { return hn::InterleaveUpper(Tag<float>(), x, y); };
  const auto lower_pair = [](F x, F y) HWY_ATTR {
    const Tag<uint64_t> pairs;
    return hn::BitCast(Tag<float>(), hn::InterleaveLower(pairs, hn::BitCast(pairs, x), hn::BitCast(pairs, y)));
  };
  const auto upper_pair = [](F x, F y) HWY_ATTR {
    const Tag<uint64_t> pairs;
    return hn::BitCast(Tag<float>(), hn::InterleaveUpper(pairs, hn::BitCast(pairs, x), hn::BitCast(pairs, y)));
  };
  return folded(folded(a, b, lower, upper), folded(c, d, lower, upper), lower_pair, upper_pair);
}

// Calls of(group) for as many groups as a vector has lanes. Returns one lane per group, in the order of the groups. The results
// are merged like a tree, because one merge then serves several groups.
template <typename Of>
HWY_INLINE auto of_groups(size_t first, Of of) {
  const auto four = [&](size_t i) HWY_ATTR {
    const auto a = of(first + i), b = of(first + i + 1), c = of(first + i + 2), d = of(first + i + 3);  // in memory order
    return folded_four(a, b, c, d);
  };
#if HWY_MAX_BYTES == 16
  return four(0);
#else
  const auto lower = [](F x, F y) HWY_ATTR { return hn::ConcatLowerLower(Tag<float>(), y, x); };
  const auto upper = [](F x, F y) HWY_ATTR { return hn::ConcatUpperUpper(Tag<float>(), y, x); };
#if HWY_MAX_BYTES == 32
  const auto a = four(0), b = four(4);
  return folded(a, b, lower, upper);
#else
  // The 16-byte blocks of `even` hold results of a, a, c, c, and those of `odd` hold results of b, b, d, d. So only adjacent
  // blocks must still be merged.
  const auto a = four(0), b = four(4), c = four(8), d = four(12);
  const auto even = folded(a, c, lower, upper), odd = folded(b, d, lower, upper);
  return folded(
      even, odd, [](F x, F y) HWY_ATTR { return hn::OddEvenBlocks(y, x); },
      [](F x, F y) HWY_ATTR { return hn::SwapAdjacentBlocks(hn::OddEvenBlocks(x, y)); });
#endif
#endif
}

// ---- ranges and scales

// Finds the range of one group. Each iteration first orders two vectors, which saves comparisons. The members of Range are
// plain variables here, because compilers keep a struct of vectors in memory. If elements have 16 bits, they are also stored at
// `wide` as fp32.
template <bool spikes, DType type>
HWY_INLINE Range<spikes> range_of(const uint8_t* elements, size_t group, uint8_t* wide) {
  const auto value = [&](size_t i) HWY_ATTR {
    const auto x = load_wide<type>(elements + i * element_bytes(type));
    if constexpr (type != DType::f32) store<float>(x, wide + i * 4);
    return x;
  };
  const auto a = value(0), b = value(float_lanes);
  auto low = hn::Min(a, b), high = hn::Max(a, b), sum = hn::Add(a, b), next_low = high, next_high = low;
  for (size_t i = 2 * float_lanes; i < group; i += 2 * float_lanes) {
    const auto x = value(i), y = value(i + float_lanes);
    const auto lower = hn::Min(x, y), higher = hn::Max(x, y);
    if constexpr (spikes) {
      next_low = hn::Min(next_low, hn::Min(hn::Max(low, lower), higher));
      next_high = hn::Max(next_high, hn::Max(hn::Min(high, higher), lower));
    }
    low = hn::Min(low, lower);
    high = hn::Max(high, higher);
    sum = hn::Add(sum, hn::Add(x, y));
  }
  return {low, high, sum, next_low, next_high};
}

using Lanes = hn::Mask<Tag<float>>;

// set_scale() for one vector, which has one group in each lane.
HWY_INLINE void make_scales(const BlockFormat& format, F low, F high, Lanes usual, size_t i, Batch& batch) {
  const auto zero = hn::Zero(Tag<float>()), steps = set(static_cast<float>((1u << format.bits) - 1));
  const auto minimum = rounded_of<Rounding::down>(format.metadata, low);
  const auto distance = hn::Sub(high, minimum);
  const auto positive =
      hn::Max(rounded_of<Rounding::up>(format.metadata, hn::Div(distance, steps)), set(smallest_scale(format.metadata)));
  const auto scale = hn::IfThenZeroElse(hn::Eq(distance, zero), positive);
  const auto no_range = hn::Eq(scale, zero);
  store_numbers(minimum, i, batch.minimum);
  store_numbers(scale, i, batch.scale);
  // If the inverse is 0, all codes are 0.
  store_numbers(hn::IfThenZeroElse(no_range, hn::Div(set(1.0f), scale)), i, batch.inverse);
  // If the scale is much larger than `tiny`, no code can leave its range, so codes need not be clamped.
  usual = hn::And(usual, hn::Or(no_range, hn::Ge(scale, set(16 * tiny))));
  store_numbers(hn::IfThenZeroElse(usual, set(1.0f)), i, batch.unusual);
}

// Removes the spikes from the range. Stores bounds, which find_spikes() uses to find the indices of the spikes.
HWY_INLINE void reserve_spikes(const BlockFormat& format, Range<true>& range, size_t i, Batch& batch) {
  constexpr float nearly_tiny = 0x1.FFFFFEp-101f;  // the largest value that counts as zero
  const auto zero = hn::Zero(Tag<float>()), low = comparable_of(range.low), high = comparable_of(range.high);
  store_numbers(rounded_of<Rounding::near>(format.metadata, low), i, batch.low_spike);
  store_numbers(rounded_of<Rounding::near>(format.metadata, high), i, batch.high_spike);
  store_numbers(hn::IfThenElse(hn::Eq(low, zero), set(nearly_tiny), low), i, batch.low_bound);
  store_numbers(hn::IfThenElse(hn::Eq(high, zero), set(-nearly_tiny), high), i, batch.high_bound);
  range.low = range.next_low;
  range.high = range.next_high;
}

template <bool spikes, DType type>
HWY_NOINLINE void make_ranges(const BlockFormat& format, const uint8_t* elements, Batch& batch) {
  const auto limit = set(largest(format.metadata)), zero = hn::Zero(Tag<float>());
  batch.values = type == DType::f32 ? elements : reinterpret_cast<const uint8_t*>(batch.copies);
  for (size_t i = 0; i < batch.groups; i += float_lanes) {
    auto range = of_groups(i, [&](size_t g) HWY_ATTR {
      const size_t at = batch.group_index(g) * batch.group;
      return range_of<spikes, type>(elements + at * element_bytes(type), batch.group,
                                    reinterpret_cast<uint8_t*>(batch.copies + at));
    });
    const auto numbers = hn::Eq(hn::Mul(range.sum, zero), zero);
    const auto usual = hn::And(numbers, hn::And(hn::Ge(range.low, hn::Neg(limit)), hn::Le(range.high, limit)));
    if constexpr (spikes) reserve_spikes(format, range, i, batch);
    // Small values count as zero. This does not change the order of values, so only the ends of the range must be set to zero.
    make_scales(format, comparable_of(range.low), comparable_of(range.high), usual, i, batch);
  }
}

// `end` holds the element indices of the first vector behind the group. The loop runs backwards, so the lowest index is kept.
// It takes two vectors at a time, so it updates indices half as often.
HWY_INLINE SpikeIndices spike_indices_of(const uint8_t* values, size_t group, F low, F high, F end) {
  const auto one = set(float_lanes), two = set(2 * float_lanes);
  auto here = end, low_at = end, high_at = end;
  for (size_t i = group * 4; i > 0; i -= 2 * vector_bytes) {
    const auto x = load<float>(values + i - 2 * vector_bytes), y = load<float>(values + i - vector_bytes);
    const auto second = hn::Sub(here, one);
    here = hn::Sub(here, two);
    low_at = hn::IfThenElse(hn::Le(x, low), here, hn::IfThenElse(hn::Le(y, low), second, low_at));
    high_at = hn::IfThenElse(hn::Ge(x, high), here, hn::IfThenElse(hn::Ge(y, high), second, high_at));
  }
  return {low_at, high_at};
}

HWY_NOINLINE void find_spikes(Batch& batch) {
  alignas(64) static constexpr float lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const auto end = hn::Add(hn::Load(Tag<float>(), lanes), set(static_cast<float>(batch.group)));
  const auto last = set(static_cast<float>(batch.group - 1));
  for (size_t i = 0; i < batch.groups; i += float_lanes) {
    const auto spike_indices = of_groups(i, [&](size_t g) HWY_ATTR {
      return spike_indices_of(batch.values + batch.group_index(g) * batch.group * 4, batch.group, set(batch.low_bound.of[g]),
                              set(batch.high_bound.of[g]), end);
    });
    // In ordinary groups, both spikes were found. In groups that the reference will encode again, the index may be too large,
    // so it is limited here.
    store_numbers(hn::Min(spike_indices.low_at, last), i, batch.low_at);
    store_numbers(hn::Min(spike_indices.high_at, last), i, batch.high_at);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace unisono::kernels
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET
#endif  // UNISONO_KERNELS_BLOCKS_RANGES_INL_H
