// Element-wise Top-K: each rank sends its own largest elements with their indices, and all gather them. ARC-Top-K is
// compared with it.
//
// The caller runs an all-gather of the entries that begin() gives, as many on each rank, and an all-reduce (mean) of the dense
// tensors. Sums are in rank order: the same bits on every rank. Each rank adds the elements that it did not send to its next
// gradient (EF14; Seide et al., Interspeech 2014).
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "compressors/compressor.h"

namespace unisono {

struct GatheredTopKOptions {
  RowRule rule;          // which tensors are sent whole, as of ARC-Top-K; and the share of elements that is kept of the others
  bool feedback = true;  // false: what is not sent is lost
};

// As it is sent: eight bytes. The index is that of the element in its tensor.
struct GatheredEntry {
  float value = 0;
  uint32_t index = 0;
};
static_assert(sizeof(GatheredEntry) == 8);

class GatheredTopK {
 public:
  // invalid: options that check() refuses, or a tensor of 2^32 elements or more.
  static Result<std::unique_ptr<GatheredTopK>> make(const GatheredTopKOptions& options, std::span<const GroupTensor> tensors);

  // Takes this rank's gradients, which belong to the step until it is over. Returns its entries, tensor after tensor, by
  // ascending index in each. The element with the lower index goes first if two are equal. If an element is not finite, the
  // entries say so to all ranks.
  std::span<const GatheredEntry> begin(std::span<float* const> gradients);
  // The dense tensors that the caller averages beside the entries, after begin(). Empty: there are none.
  std::span<float> dense() { return dense_; }
  // The entries of all ranks, in rank order. The means are where the gradients were. corrupt: a number that is not finite or an
  // index that is none, the same on all ranks; what is kept is as before.
  Status finish(std::span<const GatheredEntry> gathered);

  // Entries that each rank sends.
  size_t entries() const { return entries_.size(); }
  std::span<const Decision> decisions() const { return decisions_; }
  // The residual of the i-th tensor. Empty: none is kept.
  std::span<const float> residual(size_t i) const { return residuals_[i]; }

 private:
  GatheredTopK(const GatheredTopKOptions& options, std::vector<Decision> decisions);
  bool compressed(size_t i) const { return decisions_[i].treatment == Treatment::compressed; }
  size_t kept(size_t i) const { return compressed(i) ? kept_rows(options_.rule, decisions_[i].matrix.elements()) : 0; }
  Status examine(std::span<const GatheredEntry> gathered) const;
  void keep_rest(size_t i, std::span<const GatheredEntry> sent);

  const GatheredTopKOptions options_;
  const std::vector<Decision> decisions_;
  std::vector<float*> gradients_;
  std::vector<GatheredEntry> entries_;
  std::vector<float> dense_;
  std::vector<std::vector<float>> residuals_;
  std::vector<uint32_t> chosen_;
};

}  // namespace unisono
