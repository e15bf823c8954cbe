// Computes the weighted mean, one element at a time. This function defines the results of the SIMD kernel. It also computes the
// last elements, which do not fill a block of the SIMD kernel.
#include <cmath>
#include <limits>

#include "base/check.h"
#include "kernels/weighted_mean.h"

namespace unisono::kernels {

double weighted_mean_range(const WeightedMeanTask& task, size_t first, size_t end) {
  double squares = 0;
  for (size_t i = first; i < end; ++i) {
    double total = -0.0, position = -0.0;  // -0.0 + x is x, even for a zero of either sign
    for (const auto& source : task.sources) {
      const double product = source.weight * double{source.values[i]};
      if (source.beside_previous) {
        position += product;
      } else {
        total += position;
        position = product;
      }
    }
    auto mean = static_cast<float>((total + position) / task.total_weight);
    if (std::isnan(mean)) mean = std::numeric_limits<float>::quiet_NaN();
    task.mean[i] = mean;
    if (!task.variance) continue;
    for (const auto& source : task.sources) {
      const double apart = double{source.values[i]} - double{mean};
      squares += source.weight * (apart * apart);
    }
  }
  return task.variance ? squares / task.total_weight : 0;
}

double weighted_mean_reference(const WeightedMeanTask& task) {
  UNISONO_CHECK(!task.sources.empty());
  return weighted_mean_range(task, 0, task.count);
}

}  // namespace unisono::kernels
