#include "compressors/mean_feedback.h"

#include <utility>

#include "base/check.h"

namespace unisono {

MeanFeedback::MeanFeedback(std::unique_ptr<Compressor> compressor, bool keeps)
    : compressor_(std::move(compressor)), keeps_(keeps), residuals_(compressor_->decisions().size()) {}

std::span<float> MeanFeedback::begin(uint64_t step, std::span<float* const> gradients) {
  UNISONO_CHECK(gradients.size() == residuals_.size());
  gradients_.assign(gradients.begin(), gradients.end());
  std::vector<CompressorInput> inputs;
  for (size_t i = 0; i < gradients_.size(); ++i)
    inputs.push_back({.values = gradients_[i], .residual = residuals_[i].empty() ? nullptr : residuals_[i].data()});
  return compressor_->begin(step, inputs);
}

std::span<float> MeanFeedback::pack() {
  const std::vector<const float*> values(gradients_.begin(), gradients_.end());
  return compressor_->pack(values);
}

Status MeanFeedback::finish() {
  if (auto status = compressor_->accept(); !status.ok()) return status;
  const auto decisions = compressor_->decisions();
  for (size_t i = 0; keeps_ && i < gradients_.size(); ++i) {
    if (decisions[i].treatment == Treatment::compressed)
      residuals_[i].assign(gradients_[i], gradients_[i] + decisions[i].matrix.elements());
  }
  compressor_->unpack(gradients_);
  for (size_t i = 0; i < gradients_.size(); ++i) {
    for (size_t k = 0; k < residuals_[i].size(); ++k) residuals_[i][k] -= gradients_[i][k];
  }
  return {};
}

}  // namespace unisono
