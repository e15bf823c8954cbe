// Computes the weighted mean of several fp32 vectors; the sums are in double. A Moshpit group uses it to average one chunk.
//
// First, the sources at the same position are added to each other. Then the sums of all positions are added. Each product is
// rounded before it is added, so the bits of the mean depend only on the order of the sources. A source may be split into two
// sources at the same position, each with half the weight. This does not change the mean.
#pragma once

#include <cstddef>
#include <span>

namespace unisono::kernels {

struct WeightedSource {
  const float* values = nullptr;  // `count` values
  double weight = 0;              // finite and above 0
  bool beside_previous = false;   // the source has the same position as the previous one; ignored for the first source
};

struct WeightedMeanTask {
  std::span<const WeightedSource> sources;  // at least one source; they are added in this order
  double total_weight = 0;                  // the sum is divided by this; must be above 0
  // `count` values. Without `variance`, these may be the values of one source. Apart from this, they must not overlap the
  // sources.
  float* mean = nullptr;
  size_t count = 0;
  bool variance = false;
};

// mean[i] = float(sum / total_weight), rounded to nearest even. A NaN is always the positive quiet NaN without payload. The
// mean is the same on every target, bit for bit. Buffers may have any alignment of floats.
//
// With `variance`, returns the sum over i and sources of weight · (values[i] - mean[i])² / total_weight. Its last bits differ
// between targets. Without `variance`, returns 0.
double weighted_mean(const WeightedMeanTask& task);
double weighted_mean_reference(const WeightedMeanTask& task);  // scalar; defines the mean
// Does the same as weighted_mean_reference(), but only for the elements [first, end).
double weighted_mean_range(const WeightedMeanTask& task, size_t first, size_t end);

}  // namespace unisono::kernels
