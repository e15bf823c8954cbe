// The SIMD kernel of sketches: two rows and up to four directions at a time, so that a direction's numbers serve both rows, and eight
// sums hide the latency of each other. More directions go over the same two rows again, which then lie in a near cache.
//
// A part of simd.cc, compiled once per instruction set like it: the include guard opens again for each (Highway's idiom).
#if defined(UNISONO_KERNELS_SKETCH_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifndef UNISONO_KERNELS_SKETCH_INL_H
#define UNISONO_KERNELS_SKETCH_INL_H
#else
#undef UNISONO_KERNELS_SKETCH_INL_H
#endif

#include <algorithm>
#include <cstdint>

#include "kernels/formats_inl.h"
#include "kernels/sketch.h"

#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
HWY_BEFORE_NAMESPACE();
namespace unisono::kernels {
namespace HWY_NAMESPACE {

constexpr uint32_t directions_at_once = 4;

// What the residual is for.
enum class Residual : uint8_t { none, added, subtracted };

inline const float* residual_of(const SketchTask& task, size_t row) {
  return task.cleared != nullptr && task.cleared[row] != 0 ? task.zeros : task.residual + row * task.columns;
}

// One or two rows times `count` directions. Plain variables: compilers keep arrays of vectors in memory.
template <uint32_t count, bool pair, Residual residual>
void sketch_block(const SketchTask& task, size_t row, uint32_t first) {
  const Tag<float> d;
  constexpr bool compensate = residual == Residual::added;
  const size_t n = task.columns, lanes = hn::Lanes(d), whole = n / lanes * lanes;
  float* const a = task.values + row * n;
  float* const b = a + (pair ? n : 0);
  const float* const ra = residual != Residual::none ? residual_of(task, row) : nullptr;
  const float* const rb = residual != Residual::none ? residual_of(task, row + (pair ? 1 : 0)) : nullptr;
  const float* const v0 = task.directions + first * n;
  const float *const v1 = v0 + (count > 1 ? n : 0), *const v2 = v1 + (count > 2 ? n : 0), *const v3 = v2 + (count > 3 ? n : 0);
  const auto value = [&](float* from, const float* left, size_t c) HWY_ATTR {
    auto x = hn::LoadU(d, from + c);
    if constexpr (residual == Residual::subtracted) x = hn::Sub(x, hn::LoadU(d, left + c));
    if constexpr (compensate) {
      x = hn::Add(x, hn::LoadU(d, left + c));
      hn::StoreU(x, d, from + c);
    }
    return x;
  };
  Vec<float> a0 = hn::Zero(d), a1 = a0, a2 = a0, a3 = a0, b0 = a0, b1 = a0, b2 = a0, b3 = a0;
  for (size_t c = 0; c < whole; c += lanes) {
    const auto x = value(a, ra, c), y = pair ? value(b, rb, c) : x;
    const auto add = [&](Vec<float>& to_a, Vec<float>& to_b, const float* direction) HWY_ATTR {
      const auto v = hn::LoadU(d, direction + c);
      to_a = hn::MulAdd(x, v, to_a);
      if constexpr (pair) to_b = hn::MulAdd(y, v, to_b);
    };
    if constexpr (count > 0) add(a0, b0, v0);
    if constexpr (count > 1) add(a1, b1, v1);
    if constexpr (count > 2) add(a2, b2, v2);
    if constexpr (count > 3) add(a3, b3, v3);
  }
  for (size_t c = whole; compensate && c < n; ++c) {
    a[c] += ra[c];
    if constexpr (pair) b[c] += rb[c];
  }
  // Inlined: otherwise compilers forget to clear the upper halves of registers, and the caller's code without AVX takes four times as long.
  const auto total = [&](Vec<float> sum, const float* from, const float* left, const float* direction) HWY_ATTR __attribute__((always_inline)) {
    float all = hn::GetLane(hn::SumOfLanes(d, sum));
    for (size_t c = whole; c < n; ++c) all += (residual == Residual::subtracted ? from[c] - left[c] : from[c]) * direction[c];
    return task.scale * all;
  };
  const auto finish = [&](Vec<float> sum_a, Vec<float> sum_b, const float* direction, uint32_t j) HWY_ATTR __attribute__((always_inline)) {
    task.sketch[row * task.rank + first + j] = total(sum_a, a, ra, direction);
    if constexpr (pair) task.sketch[(row + 1) * task.rank + first + j] = total(sum_b, b, rb, direction);
  };
  if constexpr (count > 0) finish(a0, b0, v0, 0);
  if constexpr (count > 1) finish(a1, b1, v1, 1);
  if constexpr (count > 2) finish(a2, b2, v2, 2);
  if constexpr (count > 3) finish(a3, b3, v3, 3);
}

template <bool pair, Residual residual>
void sketch_some(const SketchTask& task, size_t row, uint32_t first) {
  switch (std::min(task.rank - first, directions_at_once)) {
    case 0: return sketch_block<0, pair, residual>(task, row, first);  // compensated only
    case 1: return sketch_block<1, pair, residual>(task, row, first);
    case 2: return sketch_block<2, pair, residual>(task, row, first);
    case 3: return sketch_block<3, pair, residual>(task, row, first);
    default: return sketch_block<4, pair, residual>(task, row, first);
  }
}

// Once the residual has been added, values are all there is.
template <bool pair>
void sketch_all_directions(const SketchTask& task, size_t row) {
  const bool subtracted = task.residual != nullptr && task.difference;
  for (uint32_t first = 0; first == 0 || first < task.rank; first += directions_at_once) {
    if (subtracted) sketch_some<pair, Residual::subtracted>(task, row, first);
    else if (task.residual != nullptr && first == 0) sketch_some<pair, Residual::added>(task, row, first);
    else sketch_some<pair, Residual::none>(task, row, first);
  }
}

void sketch_rows(const SketchTask& task) {
  size_t row = 0;
  for (; row + 2 <= task.rows; row += 2) sketch_all_directions<true>(task, row);
  if (row < task.rows) sketch_all_directions<false>(task, row);
}

// One row; its first numbers alone until what is kept is aligned, if that has to be.
template <bool far>
double put_row_aside(float* values, float* kept, size_t count) {
  const Tag<float> d;
  const size_t lanes = hn::Lanes(d);
  double squares = 0;
  const auto one = [&](size_t i) {
    squares += double{values[i]} * values[i];
    kept[i] = values[i];
    values[i] = 0;
  };
  size_t i = 0;
  if constexpr (far) {
    const size_t off = reinterpret_cast<uintptr_t>(kept) / sizeof(float) % lanes;
    for (const size_t before = std::min(count, (lanes - off) % lanes); i < before; ++i) one(i);
  }
  // Short sums in fp32, added up in double.
  while (i + 2 * lanes <= count) {
    auto sum = hn::Zero(d), other = sum;
    for (const size_t end = std::min(count, i + 64 * lanes); i + 2 * lanes <= end; i += 2 * lanes) {
      const auto x = hn::LoadU(d, values + i), y = hn::LoadU(d, values + i + lanes);
      sum = hn::MulAdd(x, x, sum);
      other = hn::MulAdd(y, y, other);
      if constexpr (far) hn::Stream(x, d, kept + i), hn::Stream(y, d, kept + i + lanes);
      else hn::StoreU(x, d, kept + i), hn::StoreU(y, d, kept + i + lanes);
      hn::StoreU(hn::Zero(d), d, values + i);
      hn::StoreU(hn::Zero(d), d, values + i + lanes);
    }
    squares += hn::GetLane(hn::SumOfLanes(d, hn::Add(sum, other)));
  }
  for (; i < count; ++i) one(i);
  return squares;
}

double put_rows_aside(const PutAsideTask& task) {
  double squares = 0;
  // Rows that are alike are one.
  for (size_t row = 0; row < task.rows;) {
    const bool uncounted = task.uncounted != nullptr && task.uncounted[row] != 0;
    size_t end = row + 1;
    while (end < task.rows && (task.uncounted != nullptr && task.uncounted[end] != 0) == uncounted) ++end;
    float *const values = task.values + row * task.columns, *const kept = task.kept + row * task.columns;
    const size_t count = (end - row) * task.columns;
    const double some = task.far ? put_row_aside<true>(values, kept, count) : put_row_aside<false>(values, kept, count);
    if (!uncounted) squares += some;
    row = end;
  }
  if (task.far) hwy::FlushStream();
  return squares;
}

}  // namespace HWY_NAMESPACE
}  // namespace unisono::kernels
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET
#endif  // UNISONO_KERNELS_SKETCH_INL_H
