#include "lab/compressors/gathered_top_k.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/concat.h"
#include "compressors/finite.h"
#include "compressors/row_selection.h"
#include "kernels/sketch.h"

namespace unisono {

Result<std::unique_ptr<GatheredTopK>> GatheredTopK::make(const GatheredTopKOptions& options,
                                                         std::span<const GroupTensor> tensors) {
  if (auto status = check(options.rule); !status.ok()) return status;
  std::vector<Decision> decisions;
  for (const auto& tensor : tensors) {
    const auto& decision = decisions.emplace_back(decide(options.rule, tensor.shape));
    if (decision.treatment == Treatment::compressed && decision.matrix.elements() > UINT32_MAX) {
      return Status(Code::invalid, concat("bad_option: tensor ", tensor.number, " has ", decision.matrix.elements(),
                                          " elements, more than indices of four bytes"));
    }
  }
  return std::unique_ptr<GatheredTopK>(new GatheredTopK(options, std::move(decisions)));
}

GatheredTopK::GatheredTopK(const GatheredTopKOptions& options, std::vector<Decision> decisions)
    : options_(options), decisions_(std::move(decisions)), residuals_(decisions_.size()) {
  size_t entries = 0, dense = 0;
  for (size_t i = 0; i < decisions_.size(); ++i) {
    entries += kept(i);
    if (decisions_[i].treatment == Treatment::dense) dense += decisions_[i].matrix.elements();
  }
  entries_.resize(entries);
  dense_.resize(dense);
}

std::span<const GatheredEntry> GatheredTopK::begin(std::span<float* const> gradients) {
  UNISONO_CHECK(gradients.size() == decisions_.size());
  gradients_.assign(gradients.begin(), gradients.end());
  auto* out = entries_.data();
  float* dense = dense_.data();
  for (size_t i = 0; i < gradients_.size(); ++i) {
    const auto& matrix = decisions_[i].matrix;
    if (!residuals_[i].empty())
      kernels::sketch({.values = gradients_[i],
                       .residual = residuals_[i].data(),
                       .rows = matrix.rows,
                       // without directions, sketch() does nothing but add the residual to the values
                       .columns = matrix.columns});
    const std::span<const float> values(gradients_[i], matrix.elements());
    if (decisions_[i].treatment == Treatment::dense) dense = std::copy(values.begin(), values.end(), dense);
    if (!compressed(i)) continue;
    if (!all_finite(values)) {
      out = std::fill_n(out, kept(i), GatheredEntry{.value = std::numeric_limits<float>::quiet_NaN()});
      continue;
    }
    select_entries(values, kept(i), chosen_);
    for (const uint32_t index : chosen_) *out++ = {.value = values[index], .index = index};
  }
  return entries_;
}

// Checks the averages and the gathered entries. finish() calls this before it changes anything.
Status GatheredTopK::check_entries(std::span<const GatheredEntry> gathered) const {
  if (!all_finite(dense_)) return not_finite("the average");
  for (size_t at = 0; at < gathered.size();) {
    for (size_t i = 0; i < decisions_.size(); ++i) {
      for (const size_t end = at + kept(i); at < end; ++at) {
        if (!all_finite({&gathered[at].value, 1})) return not_finite("what was gathered");
        if (gathered[at].index >= decisions_[i].matrix.elements()) {
          return {Code::corrupt, concat("entry ", at, " of what was gathered is for element ", gathered[at].index,
                                        " of a tensor of ", decisions_[i].matrix.elements())};
        }
      }
    }
  }
  return {};
}

void GatheredTopK::keep_residual(size_t i, std::span<const GatheredEntry> sent) {
  residuals_[i].assign(gradients_[i], gradients_[i] + decisions_[i].matrix.elements());
  for (const auto& entry : sent) residuals_[i][entry.index] = 0;
}

Status GatheredTopK::finish(std::span<const GatheredEntry> gathered) {
  UNISONO_CHECK(entries_.empty() ? gathered.empty() : !gathered.empty() && gathered.size() % entries_.size() == 0);
  if (auto status = check_entries(gathered); !status.ok()) return status;
  const float* dense = dense_.data();
  for (size_t i = 0, first = 0; i < decisions_.size(); first += kept(i), ++i) {
    float* const out = gradients_[i];
    const size_t elements = decisions_[i].matrix.elements();
    if (decisions_[i].treatment == Treatment::dense) {
      std::copy_n(dense, elements, out);
      dense += elements;
    }
    if (!compressed(i)) continue;
    if (options_.feedback) keep_residual(i, std::span(entries_).subspan(first, kept(i)));
    std::fill_n(out, elements, 0.0f);
    for (size_t at = first; at < gathered.size(); at += entries_.size()) {
      for (const auto& entry : gathered.subspan(at, kept(i))) out[entry.index] += entry.value;
    }
    const auto ranks = static_cast<float>(gathered.size() / entries_.size());
    for (size_t k = 0; k < elements; ++k) out[k] /= ranks;
  }
  return {};
}

}  // namespace unisono
