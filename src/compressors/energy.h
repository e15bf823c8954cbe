// Computes the sum of squares, for reports. The order of the additions is not specified, so that they are fast.
#pragma once

#include <algorithm>
#include <numeric>
#include <span>

namespace unisono {

inline double energy(std::span<const float> values) {
  double all = 0;
  for (size_t i = 0; i < values.size();) {
    float sum[8] = {};
    const size_t end = std::min(values.size(), i + 1024);
    for (; i + 8 <= end; i += 8) {
      for (size_t lane = 0; lane < 8; ++lane) sum[lane] += values[i + lane] * values[i + lane];
    }
    for (; i < end; ++i) sum[0] += values[i] * values[i];
    all += std::accumulate(std::begin(sum), std::end(sum), 0.0);
  }
  return all;
}

}  // namespace unisono
