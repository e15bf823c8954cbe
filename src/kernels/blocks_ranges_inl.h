// Finds the ranges, scales and spikes of up to 16 groups at a time. Encoding needs them before it can compute codes.
//
// A part of blocks_simd.cc, compiled once per instruction set like it: the include guard opens again for each (Highway's
// idiom).
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

// Groups on their way into a block.
struct Batch {
  const uint8_t* values;  // fp32, of all groups, at any address
  const std::byte* next;  // where the next batch's elements are, to be fetched meanwhile
  size_t next_bytes;      // 0: nothing to fetch
  size_t groups;          // up to 16
  size_t group;           // elements of each
  Numbers scale, minimum, inverse;
  Numbers low_spike, high_spike;                       // as they are stored
  Numbers low_bound, high_bound;                       // what is not above, not below, is the spike
  Numbers low_at, high_at;                             // the first such
  Numbers unusual;                                     // not zero: the reference has to do it
  alignas(64) float copies[batch_groups * group_max];  // of values that had to be widened

  // In place of those that are not there, the last again.
  size_t place_of(size_t i) const { return std::min(i, groups - 1); }
};

// ---- from lanes to groups

// The range of the values in each lane. `merged` combines two ranges lane by lane, `each` moves lanes of both.
template <bool spikes>
struct Range {
  F low, high;
  F sum;                  // neither a number nor finite where a value is not
  F next_low, next_high;  // the second smallest and largest; only with spikes

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

// The lowest places where the spikes' values were found.
struct Places {
  F low_at, high_at;

  static HWY_INLINE Places merged(const Places& a, const Places& b) {
    return {hn::Min(a.low_at, b.low_at), hn::Min(a.high_at, b.high_at)};
  }
  template <typename Move>
  static HWY_INLINE Places each(const Places& a, const Places& b, Move move) {
    return {move(a.low_at, b.low_at), move(a.high_at, b.high_at)};
  }
};

template <typename Lanes, typename Lower, typename Upper>
HWY_INLINE Lanes folded(const Lanes& a, const Lanes& b, Lower lower, Upper upper) {
  return Lanes::merged(Lanes::each(a, b, lower), Lanes::each(a, b, upper));
}

// Folds four groups into one vector. Each 16 bytes of it hold one lane of each group, in their order.
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

// Calls `of` for as many groups as a vector has lanes, and gives one lane per group, in their order. It merges them as a tree,
// so that one merge serves several groups.
template <typename Of>
HWY_INLINE auto of_groups(size_t first, Of of) {
  const auto four = [&](size_t i) HWY_ATTR {
    const auto a = of(first + i), b = of(first + i + 1), c = of(first + i + 2), d = of(first + i + 3);  // as they lie in memory
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
  // Halves: in the 16 bytes, groups 0, 0, 8, 8, and 4, 4, 12, 12. Only neighbours remain to be merged.
  const auto a = four(0), b = four(4), c = four(8), d = four(12);
  const auto even = folded(a, c, lower, upper), odd = folded(b, d, lower, upper);
  return folded(
      even, odd, [](F x, F y) HWY_ATTR { return hn::OddEvenBlocks(y, x); },
      [](F x, F y) HWY_ATTR { return hn::SwapAdjacentBlocks(hn::OddEvenBlocks(x, y)); });
#endif
#endif
}

// ---- ranges and scales

// Two vectors at a time, which are brought in order first. Plain variables: compilers keep a struct of vectors in memory.
// Elements of 16 bits go to `wide` on the way.
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

// As set_scale() of one group.
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
  store_numbers(hn::IfThenZeroElse(no_range, hn::Div(set(1.0f), scale)), i, batch.inverse);  // then all codes are 0
  // With scales so much larger than what counts as zero, no code comes out below 0 or above the last one, and none needs a
  // bound.
  usual = hn::And(usual, hn::Or(no_range, hn::Ge(scale, set(16 * tiny))));
  store_numbers(hn::IfThenZeroElse(usual, set(1.0f)), i, batch.unusual);
}

// Takes the spikes out of the range, and leaves what they are found by.
HWY_INLINE void reserve_spikes(const BlockFormat& format, Range<true>& range, size_t i, Batch& batch) {
  constexpr float nearly_tiny = 0x1.FFFFFEp-101f;  // the largest that counts as zero
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
      const size_t at = batch.place_of(g) * batch.group;
      return range_of<spikes, type>(elements + at * element_bytes(type), batch.group,
                                    reinterpret_cast<uint8_t*>(batch.copies + at));
    });
    const auto numbers = hn::Eq(hn::Mul(range.sum, zero), zero);
    const auto usual = hn::And(numbers, hn::And(hn::Ge(range.low, hn::Neg(limit)), hn::Le(range.high, limit)));
    if constexpr (spikes) reserve_spikes(format, range, i, batch);
    // Counting small values as zero keeps the order of values, so it is enough to look at the ends.
    make_scales(format, comparable_of(range.low), comparable_of(range.high), usual, i, batch);
  }
}

// `end` has the places that a vector behind the group would have. From the last vector on, so that the first place remains; two
// vectors at a time have their places counted once.
HWY_INLINE Places places_of(const uint8_t* values, size_t group, F low, F high, F end) {
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
    const auto places = of_groups(i, [&](size_t g) HWY_ATTR {
      return places_of(batch.values + batch.place_of(g) * batch.group * 4, batch.group, set(batch.low_bound.of[g]),
                       set(batch.high_bound.of[g]), end);
    });
    // There is always one, but in groups that are done again.
    store_numbers(hn::Min(places.low_at, last), i, batch.low_at);
    store_numbers(hn::Min(places.high_at, last), i, batch.high_at);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace unisono::kernels
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET
#endif  // UNISONO_KERNELS_BLOCKS_RANGES_INL_H
