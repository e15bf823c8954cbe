// Error feedback: values that compression leaves out of a step stay on their rank, and take part in a later step.
//
// EF14 adds the residual to the next gradient. With a compressor that sends rows, the residual is the other rows. With one
// whose average is an approximation (PowerSGD) it is the difference between this rank's values and that average: e = p - out.
// In either case N times the output plus all ranks' residuals is the sum of the ranks' values. EF21 and EF21M need rows. They
// send the difference between a gradient, or its running mean, and the copy of it that the others hold. Sources: PowerSGD
// (arXiv:1905.13727), algorithm 2; Seide et al., "1-bit stochastic gradient descent" (Interspeech 2014); Richtarik, Sokolov,
// Fatkhullin, "EF21" (arXiv:2106.05203); Fatkhullin, Tyurin, Richtarik, "Momentum provably improves error feedback!"
// (arXiv:2305.15155).
//
// The caller runs the all-reduces, as compressors/compressor.h says. No outcome loses values. Until finish() returns ok, the
// residuals are those of the step before. abandon() keeps the whole sum p of gradient and residual. After finish(),
// step_skipped() takes the step back. For that all of p, sent values included, is kept until settle(); the next step's begin()
// settles.
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
  whole,  // nothing is compressed in this step, and nothing is left over after it
  plain,  // as without compression: the gradients are averaged as they are, finite or not, and nothing that is kept has to do
          // with it
};

struct FeedbackOptions {
  Feedback kind = Feedback::ef14;
  float eta = 0.1f;    // of EF21M: a gradient's weight in the running mean, in (0, 1]; 1 is EF21
  bool lossy = false;  // values are encoded on their way, and the caller reports the encoding error
};

// This rank's state of one tensor. Each vector is fp32, and is empty or has as many elements as the tensor.
struct FeedbackState {
  uint64_t elements = 0;
  std::vector<float> residual{};  // EF14: values that were not sent
  std::vector<float> momentum{};  // EF21M: running mean of this rank's gradients
  std::vector<float> known{};     // EF21M: the others' copy of it
  std::vector<float> mean{};      // EF21M: the mean of all ranks' `known`, the same on all ranks
  std::vector<float> warm{};      // the compressor's start for its next step, the same on all ranks; its size differs
  size_t bytes() const {
    return sizeof(float) * (residual.size() + momentum.size() + known.size() + mean.size() + warm.size());
  }
};
// Keyed by the tensor's name, not by its group, because groups may be made anew at any time.
using FeedbackStore = std::map<std::string, FeedbackState>;

// Spare memory for residuals. A tensor gives back its old residual's memory when it has the next one, and another tensor of the
// same size takes it. Thread-safe.
class Spares {
 public:
  std::vector<float> take(size_t count);
  // Returns memory of the size of one that was taken, not necessarily the same one. Allocates nothing. Frees memory of other
  // sizes.
  void give(std::vector<float> memory);
  size_t bytes() const;  // bytes that are free

 private:
  struct Shelf {
    std::vector<std::vector<float>> free;
    size_t taken = 0;
  };
  mutable std::mutex mutex_;
  std::map<size_t, Shelf> by_size_;
  size_t bytes_ = 0;
};

// One group of tensors, from step to step.
class ErrorFeedback {
 public:
  // The store outlives this object, and holds the residuals after settle(). names: those of the compressor's tensors, in its
  // order. invalid: eta outside (0, 1], EF21M or lossy values with a compressor that sends no rows (bad_option), or a tensor
  // that is known with another number of elements (state_shape_mismatch). spares: shared with other groups, and outlives them;
  // null: this one has its own.
  static Result<std::unique_ptr<ErrorFeedback>> make(const FeedbackOptions& options, std::unique_ptr<Compressor> compressor,
                                                     std::vector<std::string> names, FeedbackStore& store,
                                                     Spares* spares = nullptr);
  ~ErrorFeedback();

  // Takes this rank's gradients, which belong to the step until it is over. Returns the values to average first; empty: none.
  // This call and those up to finish() may throw std::bad_alloc. The caller then calls abandon(), which does not throw.
  std::span<float> begin(uint64_t step, std::span<float* const> gradients, Sending sending = Sending::compressed);
  // Call after that average. corrupt (nonfinite): the step is over on all ranks, and changes nothing.
  Status choose();
  // Returns the values to average next; empty: none.
  std::span<float> pack();
  Result<std::span<float>> next();  // both
  // With options.lossy: the buffer for the encoding errors of these values, one per value; the caller fills it. Empty: these
  // values must not be encoded.
  std::span<float> lost();
  // Writes the averages over the gradients. Errors: as choose().
  Status finish();

  // The step is over without a result, or no rank uses it because it failed elsewhere. Keeps the sum of gradients and
  // residuals. Exceptions: a step that was sent whole while there was no residual (it keeps nothing, as without compression),
  // and a tensor without a residual for which there is no memory.
  void abandon();
  // Call directly after finish() if no rank uses the averages. EF14: keeps the sum of gradients and residuals to the bit, as if
  // nothing had been sent. If the step was sent whole, each rank keeps its mean.
  void step_skipped();
  // Call after either if other ranks have all averages, with all values that this rank had to send, and use them. The sent
  // values are then not kept. If the average was an approximation and this rank has not received it, this rank's contribution
  // is subtracted instead.
  void delivered();
  // The last step will not be taken back; the store holds the residuals from now on.
  void settle();
  // Call between two steps. Drops all residuals.
  void forget();

  // Whether the present step is not compressed, either on request or because EF21M begins with such a step.
  bool is_whole() const { return sending_ != Sending::compressed; }
  Compressor& compressor() { return *compressor_; }
  const Compressor& compressor() const { return *compressor_; }
  // From begin() to finish(): the gradient of the i-th tensor with what was left over from before.
  const float* compensated(size_t i) const { return moves(i) ? next_[i].data() : gradients_[i]; }
  // Sums of squares over all tensors: of what EF14 had kept before the present step, from begin() on, and of the averages that
  // the last one gave.
  double kept_energy() const { return compressor_->residual_energy(); }
  double output_energy() const { return output_energy_; }
  // Allocated to work in, with the compressor's memory, without shared spares.
  size_t buffer_bytes() const;

 private:
  ErrorFeedback(const FeedbackOptions& options, std::unique_ptr<Compressor> compressor, std::vector<FeedbackState*> states,
                Spares* spares);
  const Decision& decision(size_t i) const { return compressor_->decisions()[i]; }
  size_t elements(size_t i) const { return decision(i).matrix.elements(); }
  bool compressed(size_t i) const { return decision(i).treatment == Treatment::compressed; }
  // Whether the tensor is sent as its difference from what others hold of it: with EF21M each compressed tensor is, and where
  // values are encoded each dense one, too, for it has no other residual.
  bool tracked(size_t i) const {
    return options_.kind == Feedback::ef21m && (compressed(i) || (options_.lossy && decision(i).treatment == Treatment::dense));
  }
  // Whether what is compressed of the tensor is written to the memory of its next residual.
  bool moves(size_t i) const { return options_.kind == Feedback::ef14 && !is_whole() && compressed(i); }
  bool started() const;
  void reserve();
  void add_up();
  template <typename Does>
  void each_piece(Does does) const;
  void commit_difference();
  void commit_values();
  void commit_whole();
  std::span<float> pack_whole();

  const FeedbackOptions options_;
  const std::unique_ptr<Compressor> compressor_;
  const std::vector<FeedbackState*> states_;
  Spares own_spares_;
  Spares& spares_;
  std::vector<std::vector<float>> next_;  // by tensor: what will be its residual; empty between steps for most
  std::vector<float*> gradients_;
  std::vector<float*> outputs_;  // where averages go that are not exchanged for what was sent
  std::vector<CompressorInput> inputs_;
  std::span<float> packed_;    // what is averaged last, of the compressor
  std::vector<float> lost_;    // of it, one by one
  std::vector<float> copies_;  // of a whole step: all tensors, one after the other, unless they are so anyway
  std::span<float> whole_;
  Sending sending_ = Sending::compressed;
  bool added_ = false,
       committed_ = false;  // the residuals are in the gradients; rows that were sent are known, and what encoding lost of them
  bool finished_ = false;   // the averages are where the gradients were
  bool in_place_ = false, with_residual_ = false;
  bool unsettled_ = false;                     // EF14 has kept also the rows that were sent
  std::vector<std::vector<uint8_t>> cleared_;  // then: which these are, by tensor and row
  double output_energy_ = 0;
};

}  // namespace unisono
