// Ranks that train one tensor in one process: gradients go in, what all ranks get comes out. Their all-reduces are sums here;
// compressors and error feedback are those that ship.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "training/reducer/error_feedback.h"

namespace unisono::sim {

enum class Method : uint8_t {
  dense,     // whole gradients; feedback means nothing then
  arc,       // ARC-Top-K
  exact,     // rows by their true lengths, which only a simulation knows
  random_k,  // rows drawn at random, the same on all ranks
  top_k      // each rank's own largest entries
};

struct TrainingRanksOptions {
  Method method = Method::arc;
  FeedbackOptions feedback = {};
  uint32_t ranks = 8;
  Matrix matrix;
  uint32_t ratio_ppm = 100'000;  // of the rows
  uint32_t sketch_rank = 4;      // numbers in the sketch of a row
  uint64_t seed = 0;             // of sketches and drawn rows
};

class TrainingRanks {
 public:
  virtual ~TrainingRanks() = default;
  // Each rank in turn, from 0 on, before each step.
  virtual void set_gradient(uint32_t rank, std::span<const double> gradient) = 0;
  // Steps are numbered from 0. Returns the vector that every rank gets, valid until the next set_gradient(). corrupt: some
  // gradient or sum is not finite.
  virtual Result<std::span<const float>> step(uint64_t number) = 0;
  // The residual that this rank has not sent yet; empty if none is kept. With exact rows, rank 0 has the residual of the mean
  // and the others have none.
  virtual std::span<const float> residual(uint32_t rank) const = 0;
};
// invalid: options that the compressor or the feedback refuses.
Result<std::unique_ptr<TrainingRanks>> make_training_ranks(const TrainingRanksOptions& options);

// Elements that each rank sends in one step, sketches included; the dense first step of EF21M and the indices of top_k are not
// counted.
uint64_t sent_elements(const TrainingRanksOptions& options);

}  // namespace unisono::sim
