// What compression leaves out of a step is kept on the rank that had it, and takes part in a later one.
//
// EF14 adds what was left out to the next gradient. EF21 and EF21M send how a gradient, or its running mean, differs from what the others
// hold of it. Sources: Seide et al., "1-bit stochastic gradient descent" (Interspeech 2014); Richtarik, Sokolov, Fatkhullin, "EF21"
// (arXiv:2106.05203); Fatkhullin, Tyurin, Richtarik, "Momentum provably improves error feedback!" (arXiv:2305.15155).
//
// The caller runs the all-reduces, as compressors/compressor.h says. Nothing is lost by an outcome: until finish() says ok, what is kept is
// what was kept before, and what had been added up is kept by abandon() or sent by begin_again().
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "compressors/compressor.h"

namespace unisono {

enum class Feedback : uint8_t { none, ef14, ef21m };

struct FeedbackOptions {
  Feedback kind = Feedback::ef14;
  float eta = 0.1f;  // of EF21M: a gradient's weight in the running mean, in (0, 1]; 1 is EF21
};

// What this rank keeps of one tensor: fp32, as many as the tensor has elements, or none.
struct FeedbackState {
  uint64_t elements = 0;
  std::vector<float> residual{};  // EF14: what was not sent
  std::vector<float> momentum{};  // EF21M: running mean of this rank's gradients
  std::vector<float> known{};     // EF21M: what the others hold of it
  std::vector<float> mean{};      // EF21M: the mean of what all hold, the same on all ranks
};
// By the name of the tensor, whatever group it is in: groups may be made anew at any time.
using FeedbackStore = std::map<std::string, FeedbackState>;

// One group of tensors, from step to step.
class ErrorFeedback {
 public:
  // The store outlives this object. names: of the compressor's tensors, in its order. invalid: eta outside (0, 1] (bad_option), or a
  // tensor that is known with another number of elements (state_shape_mismatch).
  static Result<std::unique_ptr<ErrorFeedback>> make(const FeedbackOptions& options, std::unique_ptr<Compressor> compressor, std::vector<std::string> names, FeedbackStore& store);

  // Takes this rank's gradients, which belong to the step until it is over. What is to be averaged first; empty: nothing.
  // whole: nothing is compressed in this step, and nothing is left over after it.
  std::span<float> begin(uint64_t step, std::span<float* const> gradients, bool whole = false);
  // What is to be averaged then; empty: nothing. corrupt (nonfinite): the step is over on all ranks, and as if it had not been.
  Result<std::span<float>> next();
  // The averages are where the gradients were. Errors: as next().
  Status finish();

  // An all-reduce failed on all ranks: the same once more, whole. What is to be averaged; then next(), which gives nothing, and finish().
  std::span<float> begin_again();
  // Instead: the step is over without a result, and what had been added up is kept.
  void abandon();
  // After finish(): the averages were not used by any rank, because another group's were no numbers.
  void step_skipped();

  const Compressor& compressor() const { return *compressor_; }

 private:
  ErrorFeedback(const FeedbackOptions& options, std::unique_ptr<Compressor> compressor, std::vector<FeedbackState*> states);
  bool compressed(size_t i) const { return compressor_->decisions()[i].treatment == Treatment::compressed; }
  size_t elements(size_t i) const { return compressor_->decisions()[i].matrix.elements(); }
  bool started() const;
  void add_up();
  void commit();
  void commit_whole();
  std::span<float> pack_whole();

  const FeedbackOptions options_;
  const std::unique_ptr<Compressor> compressor_;
  const std::vector<FeedbackState*> states_;
  std::vector<float*> gradients_;
  std::vector<float> whole_;  // all tensors, one after the other
  bool is_whole_ = false;
};

}  // namespace unisono
