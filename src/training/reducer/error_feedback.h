// What compression leaves out of a step is kept on the rank that had it, and takes part in a later one.
//
// EF14 adds what was left out to the next gradient. Of a compressor that sends rows these are the other rows. Of one whose
// average is an approximation (PowerSGD) it is what this rank's values differ from that average: e = p - out. N times the
// output and what all ranks keep are together what they had, in either case. EF21 and EF21M, which need rows, send how a
// gradient, or its running mean, differs from what the others hold of it. Sources: PowerSGD (arXiv:1905.13727), algorithm 2;
// Seide et al., "1-bit stochastic gradient descent" (Interspeech 2014); Richtarik, Sokolov, Fatkhullin, "EF21"
// (arXiv:2106.05203); Fatkhullin, Tyurin, Richtarik, "Momentum provably improves error feedback!" (arXiv:2305.15155).
//
// The caller runs the all-reduces, as compressors/compressor.h says. No outcome loses anything: until finish() says ok, what is
// kept is what was kept before, and abandon() keeps what had been added up. After finish(), step_skipped() takes the step back.
// For that all of p is kept until settle(), also what was sent; the next step's begin() settles.
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
  bool lossy = false;  // values are encoded on their way, and the caller tells what that lost
};

// What this rank keeps of one tensor: fp32, as many as the tensor has elements, or none.
struct FeedbackState {
  uint64_t elements = 0;
  std::vector<float> residual{};  // EF14: what was not sent
  std::vector<float> momentum{};  // EF21M: running mean of this rank's gradients
  std::vector<float> known{};     // EF21M: what the others hold of it
  std::vector<float> mean{};      // EF21M: the mean of what all hold, the same on all ranks
  std::vector<float> warm{};      // what the compressor begins its next step with, the same on all ranks; of another size
  size_t bytes() const {
    return sizeof(float) * (residual.size() + momentum.size() + known.size() + mean.size() + warm.size());
  }
};
// By the name of the tensor, whatever group it is in: groups may be made anew at any time.
using FeedbackStore = std::map<std::string, FeedbackState>;

// Spare memory for residuals. The memory of a tensor's old residual is given back when the next one is there, and serves
// another tensor of the same size. Threads may use it at once.
class Spares {
 public:
  std::vector<float> take(size_t count);
  // For one that was taken, one as large, perhaps another; allocates nothing. Others are thrown away.
  void give(std::vector<float> memory);
  size_t bytes() const;  // of what is not taken

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
  // The store outlives this object, and says what is kept after settle(). names: of the compressor's tensors, in its order.
  // invalid: eta outside (0, 1], EF21M or lossy values with a compressor that sends no rows (bad_option), or a tensor that is
  // known with another number of elements (state_shape_mismatch).
  // spares: shared with other groups, and outlives them; null: this one has its own.
  static Result<std::unique_ptr<ErrorFeedback>> make(const FeedbackOptions& options, std::unique_ptr<Compressor> compressor,
                                                     std::vector<std::string> names, FeedbackStore& store,
                                                     Spares* spares = nullptr);
  ~ErrorFeedback();

  // Takes this rank's gradients, which belong to the step until it is over. What is to be averaged first; empty: nothing. This
  // and all up to finish() may throw std::bad_alloc: then abandon() is to follow, which does not.
  std::span<float> begin(uint64_t step, std::span<float* const> gradients, Sending sending = Sending::compressed);
  // After that was averaged. corrupt (nonfinite): the step is over on all ranks, and as if it had not been.
  Status choose();
  // What is to be averaged then; empty: nothing.
  std::span<float> pack();
  Result<std::span<float>> next();  // both
  // Of options.lossy: where the caller puts what encoding lost of that, one by one; empty: it is not to be encoded.
  std::span<float> lost();
  // The averages are where the gradients were. Errors: as choose().
  Status finish();

  // The step is over without a result, or nobody uses it because it failed elsewhere, and what had been added up is kept. (Of
  // one that was sent whole while nothing was left over from before, nothing is: as without compression. Nor of a tensor of
  // which nothing was kept before, if there is no memory for it.)
  void abandon();
  // After finish() and before anything else: the averages are not used by any rank. EF14: what had been added up is kept, as if
  // nothing had been sent, to the bit; of a step that was sent whole each rank keeps the mean of it.
  void step_skipped();
  // After either: other ranks have all averages, which took all that this one had to send, and they use them. What was sent is
  // not kept. If the average was an approximation, and this rank has not got it, what this rank gave to it is taken away
  // instead.
  void delivered();
  // The last step will not be taken back: what the store says is what is kept.
  void settle();
  // Between two steps: nothing is kept any more.
  void forget();

  // Whether the present step is not compressed, because it was not to be, or because EF21M begins so.
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
