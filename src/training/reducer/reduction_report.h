// The report of the gradient reducer about a step. It consists of sums over the buckets, norms that the ranks exchange, and
// warnings.
#pragma once

#include <span>
#include <vector>

#include "training/reducer/reduction_pipeline.h"
#include "unisono/training.h"

namespace unisono {

void add(CompressionCosts& to, const CompressionCosts& costs);

struct ExchangedNorms {
  std::vector<double> residual;  // for each rank: the norm of its residuals; empty if no rank reported
  double longest_gradient = 0;   // the largest gradient norm of all ranks; 0: it was not reported in this step
};
ExchangedNorms exchanged_norms(std::span<Bucket* const> buckets, uint32_t world);

// Adds warnings to reports. Each warning is given once.
class ReductionWarnings {
 public:
  void add_warnings(CompressionReport& report, const Compression& compression, double longest_gradient);

 private:
  void warn(CompressionReport& report, bool& given, bool when, const std::string& text);
  bool none_ = false, adaptive_ = false, growth_ = false, memory_ = false;
};

}  // namespace unisono
