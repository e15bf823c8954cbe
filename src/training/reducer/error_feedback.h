// Error feedback: if compression leaves values out of a step, they stay on their rank and are added to a later step. These
// values are called the residual.
//
// EF14 adds the residual to the next gradient. Let p be this sum. If the compressor sends rows, the residual consists of the
// rows of p that were not sent. The average `out` of PowerSGD is an approximation, so its residual is e = p - out. In both
// cases, over N ranks: N out + (sum of the residuals) = (sum of p).
//
// EF21 and EF21M need a compressor that sends rows. They send the difference between a gradient (EF21M: its running mean) and
// the copy of it that the other ranks hold. Sources: PowerSGD (arXiv:1905.13727), algorithm 2; Seide et al., "1-bit stochastic
// gradient descent" (Interspeech 2014); Richtarik, Sokolov, Fatkhullin, "EF21" (arXiv:2106.05203); Fatkhullin, Tyurin,
// Richtarik, "Momentum provably improves error feedback!" (arXiv:2305.15155).
//
// The caller runs the all-reduces, as compressors/compressor.h describes. No values are ever lost:
// - Until finish() returns ok, the residuals are those of the previous step. If the step fails, abandon() keeps p.
// - After finish(), step_skipped() can still take the step back. For this, all of p is kept until settle(), which the next
//   begin() calls.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "compressors/compressor.h"

namespace unisono {

enum class Feedback : uint8_t { none, ef14, ef21m };

enum class Sending : uint8_t {
  compressed,
  whole,  // Nothing is compressed. The residuals are sent, too, so that none remain.
  // The gradients are averaged unchanged, whether finite or not, as in an ordinary all-reduce. The state is not used and not
  // changed.
  plain,
};

struct FeedbackOptions {
  Feedback kind = Feedback::ef14;
  float eta = 0.1f;    // EF21M: the weight of a gradient in the running mean, in (0, 1]. With a weight of 1, EF21M is EF21.
  bool lossy = false;  // True if a lossy codec encodes the values. The caller must then fill encode_errors().
};

// The state that this rank keeps for one tensor. The vectors are fp32. Except for `warm`, each of them is empty or has as many
// elements as the tensor.
struct FeedbackState {
  uint64_t elements = 0;
  std::vector<float> residual{};  // EF14: values that were not sent
  std::vector<float> momentum{};  // EF21M: the running mean of this rank's gradients
  std::vector<float> known{};     // EF21M: the copy of `momentum` that the other ranks hold
  std::vector<float> mean{};      // EF21M: the mean of `known` over all ranks; it is the same on all ranks
  std::vector<float> warm{};      // CompressorInput::warm; it is the same on all ranks
  size_t bytes() const {
    return sizeof(float) * (residual.size() + momentum.size() + known.size() + mean.size() + warm.size());
  }
};
// The key is the name of the tensor. The groups of tensors may change at any time, but the names do not.
using FeedbackStore = std::map<std::string, FeedbackState>;

// Spare memory for residuals, sorted by size. When a tensor has a new residual, it gives the memory of its old one back here.
// Another tensor of the same size can then take it. This class is thread-safe.
class Spares {
 public:
  std::vector<float> take(size_t count);
  // Gives memory back. If take() has given out no memory of this size, the memory is freed. This function does not allocate.
  void give(std::vector<float> memory);
  size_t bytes() const;  // Returns how many bytes are free.

 private:
  struct FreeList {
    std::vector<std::vector<float>> buffers;
    size_t taken = 0;
  };
  mutable std::mutex mutex_;
  std::map<size_t, FreeList> by_size_;
  size_t bytes_ = 0;
};

// The error feedback of one group of tensors, over many steps.
class ErrorFeedback {
 public:
  // `names` holds the names of the compressor's tensors, in the compressor's order. `store` holds the residuals after settle().
  // `spares` may be shared with other groups; if it is null, this object creates its own. `store` and `spares` must outlive
  // this object.
  //
  // Returns invalid (bad_option) if eta is outside (0, 1]. Returns it, too, if the compressor does not send rows but EF21M or
  // lossy values are requested. Returns invalid (state_shape_mismatch) if the store has another number of elements for a
  // tensor.
  static Result<std::unique_ptr<ErrorFeedback>> make(const FeedbackOptions& options, std::unique_ptr<Compressor> compressor,
                                                     std::vector<std::string> names, FeedbackStore& store,
                                                     Spares* spares = nullptr);
  ~ErrorFeedback();

  // Takes the gradients of this rank. They belong to the step until it ends. Returns the buffer of the first all-reduce; if it
  // is empty, there is none. This function, choose(), pack(), encode_errors() and finish() may throw std::bad_alloc. The caller
  // must then call abandon(), which never throws.
  std::span<float> begin(uint64_t step, std::span<float* const> gradients, Sending sending = Sending::compressed);
  // Call this after the first all-reduce. If some rank has a value that is not finite, all ranks get the error corrupt
  // (nonfinite). The step then ends, and no state changes.
  Status choose();
  // Returns the buffer of the second all-reduce. If it is empty, there is none.
  std::span<float> pack();
  Result<std::span<float>> next();  // Calls choose(), then pack().
  // If options.lossy is set, returns a buffer. For each value of pack(), the caller writes the error of its encoding there. If
  // the result is empty, these errors are not needed.
  std::span<float> encode_errors();
  // Overwrites the gradients with the averages. Can return the same errors as choose().
  Status finish();

  // Call this if the step failed on this rank or on another one, so that no rank uses its result. Keeps the sums of gradients
  // and residuals, with two exceptions:
  // - If a step was sent whole and without a residual, nothing is kept, as in an ordinary all-reduce.
  // - If memory runs out, nothing is kept for a tensor that had no residual.
  void abandon();
  // Call this directly after finish() if no rank uses the averages. EF14 then keeps the exact sums of gradients and residuals,
  // as if nothing had been sent. If residuals were sent whole, each rank keeps the mean of the sums.
  void step_skipped();
  // Call this after abandon() or step_skipped() if other ranks use the averages after all. The averages contain what this rank
  // sent, so this rank drops the values that it sent. If it did not get the average of PowerSGD, it subtracts its contribution
  // from its residual.
  void used_by_others();
  // Call this when the last step can no longer be taken back. Afterwards the store holds the residuals.
  void settle();
  // Drops all state. Call this between two steps.
  void forget();

  // Returns true if the current step is not compressed, because the caller requested it or because it is the first step of
  // EF21M.
  bool is_whole() const { return sending_ != Sending::compressed; }
  Compressor& compressor() { return *compressor_; }
  const Compressor& compressor() const { return *compressor_; }
  // Returns the sum of gradient and residual of tensor i. The result is valid from begin() to finish().
  const float* compensated(size_t i) const { return uses_next_residual(i) ? next_residuals_[i].data() : gradients_[i]; }
  // Sums of squares over all tensors. residual_energy() covers the residuals that EF14 had before the current step; it is valid
  // after begin(). output_energy() covers the averages of the last step.
  double residual_energy() const { return compressor_->residual_energy(); }
  double output_energy() const { return output_energy_; }
  // Returns how many bytes of working memory are used. The memory of the compressor counts, but shared spares do not.
  size_t buffer_bytes() const;

 private:
  ErrorFeedback(const FeedbackOptions& options, std::unique_ptr<Compressor> compressor, std::vector<FeedbackState*> states,
                Spares* spares);
  const Decision& decision(size_t i) const { return compressor_->decisions()[i]; }
  size_t elements(size_t i) const { return decision(i).matrix.elements(); }
  bool compressed(size_t i) const { return decision(i).treatment == Treatment::compressed; }
  // Returns true if the rank sends the difference between the tensor and `known`, the copy that the other ranks hold. EF21M
  // does this for compressed tensors. If values are lossy, it does this for dense tensors, too, because they need a residual.
  bool tracked(size_t i) const {
    return options_.kind == Feedback::ef21m && (compressed(i) || (options_.lossy && decision(i).treatment == Treatment::dense));
  }
  // Returns true if the sum of gradient and residual is written to the memory of the next residual.
  bool uses_next_residual(size_t i) const { return options_.kind == Feedback::ef14 && !is_whole() && compressed(i); }
  bool started() const;
  void reserve();
  void apply_momentum();
  template <typename Does>
  void for_each_piece(Does does) const;
  void commit_difference();
  void commit_values();
  void commit_whole();
  std::span<float> pack_whole();

  const FeedbackOptions options_;
  const std::unique_ptr<Compressor> compressor_;
  const std::vector<FeedbackState*> states_;
  Spares own_spares_;
  Spares& spares_;
  // For each tensor, the memory of its next residual. finish() takes this memory. After abandon(), it may stay here for the
  // next step.
  std::vector<std::vector<float>> next_residuals_;
  std::vector<float*> gradients_;
  std::vector<float*> outputs_;  // For each tensor, where unpack() writes its averages. Null for dense tensors.
  std::vector<CompressorInput> inputs_;
  std::span<float> packed_;           // the buffer of the second all-reduce; it belongs to the compressor
  std::vector<float> encode_errors_;  // for each value in packed_: the error of its encoding
  // An uncompressed step copies all tensors to this buffer, one after the other. It is unused if the tensors are averaged in
  // place.
  std::vector<float> copies_;
  std::span<float> whole_;
  Sending sending_ = Sending::compressed;
  // added_ is true if the residuals have been added to the gradients. committed_ is true if finish() of EF14 has run. The
  // sent rows and the encoding errors are known then.
  bool added_ = false, committed_ = false;
  bool finished_ = false;  // True if finish() has overwritten the gradients with the averages.
  bool in_place_ = false, with_residual_ = false;
  bool unsettled_ = false;  // True while EF14 still keeps the values that were sent.
  // Indexed by tensor and row. A nonzero entry means that this row of the residual was sent and counts as zeros.
  std::vector<std::vector<uint8_t>> cleared_;
  double output_energy_ = 0;
};

}  // namespace unisono
