// The weighted mean of some vectors, elements in fp32, sums in double: what a line of a Moshpit All-Reduce computes of one
// chunk.
//
// Sources at one position are added among themselves first, then the positions; each product is rounded before it is added. So
// the bits of the mean depend on the order of the sources only, and a source equals two with half its weight each at one
// position.
#pragma once

#include <cstddef>
#include <span>

namespace unisono::kernels {

struct WeightedSource {
  const float* values = nullptr;  // `count` of them
  double weight = 0;              // above 0, finite
  bool beside_previous = false;   // at the same position as the source before it; of the first one without meaning
};

struct WeightedMeanTask {
  std::span<const WeightedSource> sources;  // at least one, in the order of addition
  double total_weight = 0;                  // what the sum is divided by; above 0
  float* mean = nullptr;  // `count`; may be the values of a source exactly, if no variance is asked for; no other overlap
  size_t count = 0;
  bool variance = false;
};

// mean[i] = float(sum / total_weight), rounded to nearest even; a NaN is always the positive quiet one without payload.
// Bit for bit the same on every target. Any alignment of floats.
// Returns, if asked for, the sum over i and sources of weight · (values[i] - mean[i])² / total_weight, whose last bits differ
// between targets; otherwise 0.
double weighted_mean(const WeightedMeanTask& task);
double weighted_mean_reference(const WeightedMeanTask& task);  // scalar, the definition
// The same for elements first … end-1 only.
double weighted_mean_range(const WeightedMeanTask& task, size_t first, size_t end);

}  // namespace unisono::kernels
