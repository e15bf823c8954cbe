// The SIMD kernel of sketches. It takes two rows and up to four directions at a time (eight with AVX-512). So each loaded
// direction serves both rows, and eight independent sums hide the latency of additions. For more directions, it reads the same
// two rows again from a near cache.
//
// Part of simd.cc, which is compiled once per instruction set. The include guard therefore opens again for each instruction set
// (Highway's idiom).
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

// As many as the vector registers can hold.
constexpr uint32_t directions_at_once = HWY_TARGET <= HWY_AVX3 ? 8 : 4;

// How the kernel uses the residual, and where it writes the values: nowhere, to `values`, or to `moved` (`streaming`: with
// streaming stores).
enum class Residual : uint8_t { none, added, subtracted };
enum class Output : uint8_t { none, in_place, apart, streaming };

inline const float* residual_of(const SketchTask& task, size_t row) {
  return task.cleared != nullptr && task.cleared[row] != 0 ? task.zeros : task.residual + row * task.columns;
}

constexpr bool moves(Output output) { return output == Output::apart || output == Output::streaming; }

struct SketchRow {
  float* from;
  const float* residual_row;
  float* out;
};

template <Residual residual, Output output>
SketchRow sketch_row(const SketchTask& task, size_t row) {
  const size_t at = row * task.columns;
  return {task.values + at, residual != Residual::none ? residual_of(task, row) : nullptr,
          moves(output) ? task.moved + at : nullptr};
}

// Makes the compiler load a vector once. Otherwise compilers load it again for each row, although registers are free. Loads
// are the bottleneck of this kernel.
HWY_INLINE Vec<float> loaded_once(Vec<float> v) {
#if HWY_ARCH_X86
  asm("" : "+v"(v.raw));
#endif
  return v;
}

inline size_t stride_of(const SketchTask& task) { return task.stride != 0 ? task.stride : task.columns; }

// Prefetches to the second-level cache, because consecutive rows compete for the first level. Hardware prefetchers stop at the
// end of a 4 KiB page. The distance was measured. The address may be past the end of the row: nothing is read.
constexpr size_t floats_ahead = 1024, floats_of_line = 16;
HWY_INLINE void prefetch_ahead(const float* at, size_t ahead) {
  __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(at) + ahead * sizeof(float)), 0, 2);
}

// Handles a row that is shorter than a SIMD vector: adds the row's products to `sums`. If the function adds the residual and
// moves the values to `moved`, it returns the sum of squares of the residual. Otherwise it returns 0.
template <uint32_t count, Residual residual, Output output>
double sketch_short_row(const SketchRow& row, size_t columns, const float* directions, size_t stride, float* sums) {
  double kept = 0;
  for (size_t c = 0; c < columns; ++c) {
    float x = row.from[c];
    if constexpr (residual == Residual::added) x += row.residual_row[c];
    if constexpr (residual == Residual::subtracted) x -= row.residual_row[c];
    if constexpr (moves(output) && residual == Residual::added) kept += double{row.residual_row[c]} * row.residual_row[c];
    if constexpr (output == Output::in_place) row.from[c] = x;
    if constexpr (moves(output)) row.out[c] = x, row.from[c] = 0;
    for (uint32_t j = 0; j < count; ++j) sums[j] += x * directions[j * stride + c];
  }
  return kept;
}

// Adds or subtracts the residual for one vector of a row, and stores the result as `output` says.
template <Residual residual, Output output>
HWY_INLINE Vec<float> sketch_value(const SketchRow& row, size_t c, Vec<float>& squares) {
  const Tag<float> d;
  auto x = hn::LoadU(d, row.from + c);
  if constexpr (residual != Residual::none) {
    const auto e = loaded_once(hn::LoadU(d, row.residual_row + c));
    if constexpr (residual == Residual::subtracted) x = hn::Sub(x, e);
    else x = hn::Add(x, e);
    if constexpr (moves(output)) squares = hn::MulAdd(e, e, squares);
  }
  if constexpr (output == Output::in_place) hn::StoreU(x, d, row.from + c);
  if constexpr (output == Output::apart) hn::StoreU(x, d, row.out + c);
  if constexpr (output == Output::streaming) hn::Stream(x, d, row.out + c);
  if constexpr (moves(output)) hn::StoreU(hn::Zero(d), d, row.from + c);
  return x;
}

using Some = hn::Mask<Tag<float>>;

// sketch_value() for the lanes in `some` only; returns zeros in the other lanes.
template <Residual residual, Output output>
HWY_INLINE Vec<float> sketch_part(const SketchRow& row, size_t c, Some some, Vec<float>& squares) {
  const Tag<float> d;
  auto x = hn::LoadU(d, row.from + c);
  if constexpr (residual != Residual::none) {
    const auto e = hn::IfThenElseZero(some, hn::LoadU(d, row.residual_row + c));
    if constexpr (residual == Residual::subtracted) x = hn::Sub(x, e);
    else x = hn::Add(x, e);
    if constexpr (moves(output)) squares = hn::MulAdd(e, e, squares);
  }
  if constexpr (output == Output::in_place) hn::BlendedStore(x, some, d, row.from + c);
  if constexpr (moves(output)) hn::BlendedStore(x, some, d, row.out + c), hn::BlendedStore(hn::Zero(d), some, d, row.from + c);
  return hn::IfThenElseZero(some, x);
}

// Multiplies one or two rows by `count` directions. If the values are moved, returns the sum of squares of the residual.
// Compilers keep arrays of vectors in memory, hence the plain variables. If lambdas were not inlined, compilers would not clear
// the upper halves of registers on return, and the caller's code without AVX would take four times as long.
template <uint32_t count, bool pair, Residual residual, Output output>
double sketch_block(const SketchTask& task, size_t row, uint32_t first) {
  const Tag<float> d;
  const size_t n = task.columns, stride = stride_of(task), lanes = hn::Lanes(d);
  const auto a = sketch_row<residual, output>(task, row), b = sketch_row<residual, output>(task, row + (pair ? 1 : 0));
  const float* const directions = task.directions + first * stride;
  // Whole vectors cover [begin, end). Two partial vectors cover the floats before `begin` and from `end` on.
  const size_t begin = output == Output::streaming && n >= lanes
                           ? (lanes - reinterpret_cast<uintptr_t>(a.out) / sizeof(float) % lanes) % lanes
                           : 0;
  const size_t end = n < lanes ? 0 : begin + (n - begin) / lanes * lanes;
  Vec<float> squares = hn::Zero(d);
  Vec<float> a0 = hn::Zero(d), a1 = a0, a2 = a0, a3 = a0, a4 = a0, a5 = a0, a6 = a0, a7 = a0;
  Vec<float> b0 = a0, b1 = a0, b2 = a0, b3 = a0, b4 = a0, b5 = a0, b6 = a0, b7 = a0;
  const auto add_all = [&](Vec<float> x, Vec<float> y, size_t c) HWY_ATTR __attribute__((always_inline)) {
    const auto add = [&](Vec<float> & to_a, Vec<float> & to_b, size_t j) HWY_ATTR __attribute__((always_inline)) {
      const auto v = loaded_once(hn::LoadU(d, directions + j * stride + c));
      to_a = hn::MulAdd(x, v, to_a);
      if constexpr (pair) to_b = hn::MulAdd(y, v, to_b);
    };
    if constexpr (count > 0) add(a0, b0, 0);
    if constexpr (count > 1) add(a1, b1, 1);
    if constexpr (count > 2) add(a2, b2, 2);
    if constexpr (count > 3) add(a3, b3, 3);
    if constexpr (count > 4) add(a4, b4, 4);
    if constexpr (count > 5) add(a5, b5, 5);
    if constexpr (count > 6) add(a6, b6, 6);
    if constexpr (count > 7) add(a7, b7, 7);
  };
  const auto add_part = [&](size_t c, Some some) HWY_ATTR __attribute__((always_inline)) {
    const auto x = sketch_part<residual, output>(a, c, some, squares);
    add_all(x, pair ? sketch_part<residual, output>(b, c, some, squares) : x, c);
  };
  if (n >= lanes && begin > 0) add_part(0, hn::FirstN(d, begin));
  if (n >= lanes && end < n) add_part(n - lanes, hn::Not(hn::FirstN(d, lanes - (n - end))));
  const size_t ahead = std::min(floats_ahead, n);
  for (size_t c = begin; c < end; c += lanes) {
    if (pair && (c - begin) % floats_of_line < lanes) {
      const size_t there = c + ahead + (c + ahead < n ? 0 : n);  // in these two rows, or behind them in the next two
      prefetch_ahead(a.from, there), prefetch_ahead(b.from, there);
      if constexpr (residual != Residual::none) prefetch_ahead(a.residual_row, there), prefetch_ahead(b.residual_row, there);
    }
    const auto x = sketch_value<residual, output>(a, c, squares);
    add_all(x, pair ? sketch_value<residual, output>(b, c, squares) : x, c);
  }
  float short_sums[2][directions_at_once] = {};
  double kept = 0;
  if (n < lanes) kept = sketch_short_row<count, residual, output>(a, n, directions, stride, short_sums[0]);
  if (pair && n < lanes) kept += sketch_short_row<count, residual, output>(b, n, directions, stride, short_sums[1]);
  const auto finish = [&](Vec<float> sum_a, Vec<float> sum_b, uint32_t j) HWY_ATTR __attribute__((always_inline)) {
    task.sketch[row * task.rank + first + j] = task.scale * (hn::GetLane(hn::SumOfLanes(d, sum_a)) + short_sums[0][j]);
    if constexpr (pair)
      task.sketch[(row + 1) * task.rank + first + j] = task.scale * (hn::GetLane(hn::SumOfLanes(d, sum_b)) + short_sums[1][j]);
  };
  if constexpr (count > 0) finish(a0, b0, 0);
  if constexpr (count > 1) finish(a1, b1, 1);
  if constexpr (count > 2) finish(a2, b2, 2);
  if constexpr (count > 3) finish(a3, b3, 3);
  if constexpr (count > 4) finish(a4, b4, 4);
  if constexpr (count > 5) finish(a5, b5, 5);
  if constexpr (count > 6) finish(a6, b6, 6);
  if constexpr (count > 7) finish(a7, b7, 7);
  if constexpr (moves(output) && residual == Residual::added) kept += hn::GetLane(hn::SumOfLanes(d, squares));
  return kept;
}

template <bool pair, Residual residual, Output output>
double sketch_some(const SketchTask& task, size_t row, uint32_t first) {
  // The count is 0 if there are no directions.
  switch (std::min(task.rank - first, directions_at_once)) {
    case 0: return sketch_block<0, pair, residual, output>(task, row, first);
    case 1: return sketch_block<1, pair, residual, output>(task, row, first);
    case 2: return sketch_block<2, pair, residual, output>(task, row, first);
    case 3: return sketch_block<3, pair, residual, output>(task, row, first);
    case 4: return sketch_block<4, pair, residual, output>(task, row, first);
  }
  if constexpr (directions_at_once == 8) {
    switch (std::min(task.rank - first, directions_at_once)) {
      case 5: return sketch_block<5, pair, residual, output>(task, row, first);
      case 6: return sketch_block<6, pair, residual, output>(task, row, first);
      case 7: return sketch_block<7, pair, residual, output>(task, row, first);
      default: return sketch_block<8, pair, residual, output>(task, row, first);
    }
  }
  return 0;
}

// Every pass reads the values, so only the last pass writes them.
template <bool pair, Residual residual, Output output>
double sketch_all_directions(const SketchTask& task, size_t row) {
  uint32_t first = 0;
  for (; first + directions_at_once < task.rank; first += directions_at_once)
    sketch_some<pair, residual, Output::none>(task, row, first);
  return sketch_some<pair, residual, output>(task, row, first);
}

template <Residual residual, Output output>
double sketch_rows_to(const SketchTask& task) {
  double kept = 0;
  size_t row = 0;
  for (; row + 2 <= task.rows; row += 2) kept += sketch_all_directions<true, residual, output>(task, row);
  if (row < task.rows) kept += sketch_all_directions<false, residual, output>(task, row);
  if (output == Output::streaming) hwy::FlushStream();
  return kept;
}

double sketch_rows(const SketchTask& task) {
  if (task.residual != nullptr && task.difference) return sketch_rows_to<Residual::subtracted, Output::none>(task);
  if (task.moved == nullptr)
    return task.residual == nullptr ? sketch_rows_to<Residual::none, Output::none>(task)
                                    : sketch_rows_to<Residual::added, Output::in_place>(task);
  // For streaming stores, all rows must have the same alignment.
  const bool streaming = task.far && task.columns % hn::Lanes(Tag<float>()) == 0;
  if (task.residual == nullptr)
    return streaming ? sketch_rows_to<Residual::none, Output::streaming>(task)
                     : sketch_rows_to<Residual::none, Output::apart>(task);
  return streaming ? sketch_rows_to<Residual::added, Output::streaming>(task)
                   : sketch_rows_to<Residual::added, Output::apart>(task);
}

}  // namespace HWY_NAMESPACE
}  // namespace unisono::kernels
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET
#endif  // UNISONO_KERNELS_SKETCH_INL_H
