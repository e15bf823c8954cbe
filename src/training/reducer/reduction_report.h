// The gradient reducer's report of a step: sums over its buckets, what ranks told each other, and warnings.
#pragma once

#include <span>
#include <vector>

#include "training/reducer/reduction_pipeline.h"
#include "unisono/training.h"

namespace unisono {

void add(CompressionCosts& to, const CompressionCosts& costs);

struct NotedNorms {
  std::vector<double> kept;     // by rank; empty: nobody told
  double longest_gradient = 0;  // of any rank; 0: not told in this step
};
NotedNorms noted_norms(std::span<Bucket* const> buckets, uint32_t world);

// Each is given once.
class ReductionWarnings {
 public:
  void look(CompressionReport& report, const Compression& compression, double longest_gradient);

 private:
  void warn(CompressionReport& report, bool& given, bool when, const std::string& text);
  bool none_ = false, adaptive_ = false, growth_ = false, memory_ = false;
};

}  // namespace unisono
