// Error feedback of compressors that send no rows: what is kept is what went in less what came out of the mean, e = p - out.
//
// Source: PowerSGD (arXiv:1905.13727), algorithm 2. The same moments as ErrorFeedback (training/reducer/error_feedback.h),
// which keeps the rows that were not sent: here all are sent, each in part. N times what comes out, and what all ranks keep,
// are together what they had.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "compressors/compressor.h"

namespace unisono {

class MeanFeedback {
 public:
  // keeps: false: nothing is kept from step to step.
  explicit MeanFeedback(std::unique_ptr<Compressor> compressor, bool keeps = true);

  // Takes this rank's gradients, which belong to the step until it is over; what is kept is added to them. What is to be
  // averaged first.
  std::span<float> begin(uint64_t step, std::span<float* const> gradients);
  // After that was averaged. corrupt (nonfinite): the step is over on all ranks, and what is kept is as before.
  Status choose() { return compressor_->choose(); }
  // What is to be averaged then.
  std::span<float> pack();
  // The averages are where the gradients were. Errors: as choose().
  Status finish();

  const Compressor& compressor() const { return *compressor_; }
  // Of the i-th tensor; empty: nothing is kept.
  std::span<const float> residual(size_t i) const { return residuals_[i]; }

 private:
  const std::unique_ptr<Compressor> compressor_;
  const bool keeps_;
  std::vector<float*> gradients_;
  std::vector<std::vector<float>> residuals_;
};

}  // namespace unisono
