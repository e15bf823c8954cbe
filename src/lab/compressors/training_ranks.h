// Simulates, in one process, ranks that train one tensor. The caller passes the gradient of each rank, and all ranks get the
// same result. Here all-reduces are plain sums, but the compressors and the error feedback are the production code.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "training/reducer/error_feedback.h"

namespace unisono::sim {

enum class Method : uint8_t {
  dense,     // gradients are not compressed, so feedback has no effect
  arc,       // ARC-Top-K
  exact,     // sends the rows that are longest in the mean gradient, which only a simulation can know
  random_k,  // sends rows that are drawn at random; all ranks draw the same rows
  top_k      // each rank sends the largest entries of its own gradient
};

struct TrainingRanksOptions {
  Method method = Method::arc;
  FeedbackOptions feedback = {};
  uint32_t ranks = 8;
  Matrix matrix;
  uint32_t ratio_ppm = 100'000;  // which fraction of the rows is sent, in millionths
  uint32_t sketch_rank = 4;      // how many numbers the sketch of a row has
  uint64_t seed = 0;             // seed of the sketches, and of the rows that random_k draws
};

class TrainingRanks {
 public:
  virtual ~TrainingRanks() = default;
  // Sets the gradient of one rank. Before each step(), call this for each rank, from rank 0 on.
  virtual void set_gradient(uint32_t rank, std::span<const double> gradient) = 0;
  // Makes one step; steps are counted from 0. Returns the vector that every rank gets, which is valid until the next
  // set_gradient(). Fails with Code::corrupt if a gradient or a sum is not finite.
  virtual Result<std::span<const float>> step(uint64_t number) = 0;
  // Returns what this rank has not sent yet. Empty if the feedback keeps no residual. With Method::exact, only rank 0 has a
  // residual, which is that of the mean gradient.
  virtual std::span<const float> residual(uint32_t rank) const = 0;
};
// Fails with Code::invalid if the compressor or the feedback rejects the options.
Result<std::unique_ptr<TrainingRanks>> make_training_ranks(const TrainingRanksOptions& options);

// Returns how many elements a rank sends in one step. This includes sketches, but neither the first step of EF21M, which sends
// all elements, nor the indices that top_k sends.
uint64_t sent_elements(const TrainingRanksOptions& options);

}  // namespace unisono::sim
