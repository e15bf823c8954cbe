// Element-wise Top-K, with which ARC-Top-K is compared. Each rank sends its largest elements together with their indices, and
// all ranks gather these entries.
//
// The caller runs two collectives: an all-gather of the entries that begin() returns, and an all-reduce (mean) of the dense
// tensors. Every rank sends the same number of entries. Entries are summed in rank order, so all ranks get the same bits. If a
// rank does not send an element, it adds this element to its next gradient (EF14; Seide et al., Interspeech 2014).
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "compressors/compressor.h"

namespace unisono {

struct GatheredTopKOptions {
  // Decides, as in ARC-Top-K, which tensors are sent whole. The same fraction of the elements of all other tensors is sent.
  RowRule rule;
  bool feedback = true;  // false: elements that are not sent are lost
};

// An element in the format in which it is sent (eight bytes). index: the position of the element in its tensor.
struct GatheredEntry {
  float value = 0;
  uint32_t index = 0;
};
static_assert(sizeof(GatheredEntry) == 8);

class GatheredTopK {
 public:
  // Fails with Code::invalid if check() rejects the options, or if a tensor has 2^32 elements or more.
  static Result<std::unique_ptr<GatheredTopK>> make(const GatheredTopKOptions& options, std::span<const GroupTensor> tensors);

  // Takes this rank's gradients, and uses their memory until finish(). Returns this rank's entries, ordered by tensor, then by
  // index. If two elements have equal magnitude, the one with the lower index is sent first. If an element of a tensor is not
  // finite, all entries of this tensor are NaN, so that every rank notices.
  std::span<const GatheredEntry> begin(std::span<float* const> gradients);
  // Returns the tensors that are sent whole, one after another (empty if there are none). The caller averages them over the
  // ranks. Valid after begin().
  std::span<float> dense() { return dense_; }
  // Takes the entries of all ranks in rank order, and replaces the gradients by their means. If a number is not finite or an
  // index is out of range, all ranks fail alike with Code::corrupt, and the residuals stay unchanged.
  Status finish(std::span<const GatheredEntry> gathered);

  // Returns the number of entries that each rank sends.
  size_t entries() const { return entries_.size(); }
  std::span<const Decision> decisions() const { return decisions_; }
  // Returns the residual of the i-th tensor (the elements that were not sent). Empty if the tensor has no residual.
  std::span<const float> residual(size_t i) const { return residuals_[i]; }

 private:
  GatheredTopK(const GatheredTopKOptions& options, std::vector<Decision> decisions);
  bool compressed(size_t i) const { return decisions_[i].treatment == Treatment::compressed; }
  size_t kept(size_t i) const { return compressed(i) ? kept_rows(options_.rule, decisions_[i].matrix.elements()) : 0; }
  Status check_entries(std::span<const GatheredEntry> gathered) const;
  void keep_residual(size_t i, std::span<const GatheredEntry> sent);

  const GatheredTopKOptions options_;
  const std::vector<Decision> decisions_;
  std::vector<float*> gradients_;
  std::vector<GatheredEntry> entries_;
  std::vector<float> dense_;
  std::vector<std::vector<float>> residuals_;
  std::vector<uint32_t> chosen_;
};

}  // namespace unisono
