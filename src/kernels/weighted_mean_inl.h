// The SIMD kernel for weighted means. Four vectors of doubles hold the sums while all sources are read, so each mean is written
// once. For the variance, the values are read again from the first-level cache.
//
// This file is part of simd.cc, which is compiled once per instruction set. Therefore the include guard opens again for each
// instruction set (Highway's idiom).
#if defined(UNISONO_KERNELS_WEIGHTED_MEAN_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifndef UNISONO_KERNELS_WEIGHTED_MEAN_INL_H
#define UNISONO_KERNELS_WEIGHTED_MEAN_INL_H
#else
#undef UNISONO_KERNELS_WEIGHTED_MEAN_INL_H
#endif

#include <limits>

#include "kernels/formats_inl.h"
#include "kernels/weighted_mean.h"

#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128 && HWY_HAVE_FLOAT64
HWY_BEFORE_NAMESPACE();
namespace unisono::kernels {
namespace HWY_NAMESPACE {

using HalfTag = hn::Rebind<float, Tag<double>>;  // floats that fill half a vector: as many as a vector has doubles
constexpr size_t mean_lanes = vector_bytes / sizeof(double);

struct FourVectors {
  Vec<double> a, b, c, d;
};

HWY_INLINE FourVectors four_of(double value) {
  const auto v = hn::Set(Tag<double>(), value);
  return {v, v, v, v};
}

HWY_INLINE FourVectors four_at(const float* at) {
  const Tag<double> d;
  const HalfTag half;
  return {hn::PromoteTo(d, hn::LoadU(half, at)), hn::PromoteTo(d, hn::LoadU(half, at + mean_lanes)),
          hn::PromoteTo(d, hn::LoadU(half, at + 2 * mean_lanes)), hn::PromoteTo(d, hn::LoadU(half, at + 3 * mean_lanes))};
}

HWY_INLINE FourVectors plus(FourVectors x, FourVectors y) {
  return {hn::Add(x.a, y.a), hn::Add(x.b, y.b), hn::Add(x.c, y.c), hn::Add(x.d, y.d)};
}
HWY_INLINE FourVectors times(FourVectors x, Vec<double> y) {
  return {hn::Mul(x.a, y), hn::Mul(x.b, y), hn::Mul(x.c, y), hn::Mul(x.d, y)};
}
HWY_INLINE FourVectors over(FourVectors x, Vec<double> y) {
  return {hn::Div(x.a, y), hn::Div(x.b, y), hn::Div(x.c, y), hn::Div(x.d, y)};
}

// Rounds the values to fp32, stores them, and returns what was stored.
HWY_INLINE Vec<double> store_mean(Vec<double> value, float* at) {
  const HalfTag half;
  const auto narrow = hn::DemoteTo(half, value);
  const auto mean = hn::IfThenElse(hn::IsNaN(narrow), hn::Set(half, std::numeric_limits<float>::quiet_NaN()), narrow);
  hn::StoreU(mean, half, at);
  return hn::PromoteTo(Tag<double>(), mean);
}

HWY_INLINE FourVectors sums_at(const WeightedMeanTask& task, size_t at) {
  auto total = four_of(-0.0), position = total;
  for (const auto& source : task.sources) {
    // The product is computed separately from the sum, because a fused multiply-add would not round it.
    const auto product = times(four_at(source.values + at), hn::Set(Tag<double>(), source.weight));
    if (source.beside_previous) {
      position = plus(position, product);
    } else {
      total = plus(total, position);
      position = product;
    }
  }
  return plus(total, position);
}

HWY_INLINE Vec<double> add_square(Vec<double> x, Vec<double> mean, Vec<double> weight, Vec<double> squares) {
  const auto apart = hn::Sub(x, mean);
  return hn::MulAdd(hn::Mul(apart, apart), weight, squares);
}

template <bool variance>
double weighted_mean_blocks(const WeightedMeanTask& task) {
  const Tag<double> d;
  const auto divisor = hn::Set(d, task.total_weight);
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  size_t i = 0;
  for (; i + 4 * mean_lanes <= task.count; i += 4 * mean_lanes) {
    const auto quotient = over(sums_at(task, i), divisor);
    float* const out = task.mean + i;
    const FourVectors mean = {store_mean(quotient.a, out), store_mean(quotient.b, out + mean_lanes),
                              store_mean(quotient.c, out + 2 * mean_lanes), store_mean(quotient.d, out + 3 * mean_lanes)};
    if constexpr (variance) {
      for (const auto& source : task.sources) {
        const auto x = four_at(source.values + i);
        const auto weight = hn::Set(d, source.weight);
        s0 = add_square(x.a, mean.a, weight, s0), s1 = add_square(x.b, mean.b, weight, s1);
        s2 = add_square(x.c, mean.c, weight, s2), s3 = add_square(x.d, mean.d, weight, s3);
      }
    }
  }
  const auto rest = weighted_mean_range(task, i, task.count);
  if constexpr (!variance) return 0;
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)))) / task.total_weight + rest;
}

inline double weighted_mean_simd(const WeightedMeanTask& task) {
  return task.variance ? weighted_mean_blocks<true>(task) : weighted_mean_blocks<false>(task);
}

}  // namespace HWY_NAMESPACE
}  // namespace unisono::kernels
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET
#endif  // UNISONO_KERNELS_WEIGHTED_MEAN_INL_H
