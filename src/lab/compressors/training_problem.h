// Small problems on which training with compressed gradients is seen to converge, or not: those of checks 25 and 26 of
// docs/design/methods/arc_top_k.md, for any number of ranks and any seed.
//
// A problem holds its data and nothing else: weights, gradients and steps are the caller's. All arithmetic is in double.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "compressors/row_rule.h"

namespace unisono::sim {

enum class ProblemKind : uint8_t {
  quadratic,  // the ranks' minima lie apart, their mean is the goal. Measured: |W - W*| / |W*|
  softmax     // regression of 64 classes, each rank has samples of its own few. Measured: the mean loss of all samples,
              // regularised
};

// Settings of those checks, on 8 ranks.
struct ProblemFacts {
  const char* name;     // "quadratic"
  const char* measure;  // in words, what is to become small
  Matrix matrix;        // of the weights
  uint64_t seed;
  uint64_t steps;
  double step_size;
  uint32_t
      averaged;  // the result is the mean of so many measurements, `averaged_every` steps apart, the last one after all steps
};
constexpr uint64_t averaged_every = 10;
const ProblemFacts& facts_of(ProblemKind kind);

class TrainingProblem {
 public:
  virtual ~TrainingProblem() = default;
  // Writes to `out` the gradient of this rank's share of the loss in this step.
  virtual void gradient(std::span<const double> weights, uint64_t step, uint32_t rank, std::span<double> out) const = 0;
  virtual double measure(std::span<const double> weights) const = 0;
};
std::unique_ptr<TrainingProblem> make_problem(ProblemKind kind, uint32_t ranks, uint64_t seed);

}  // namespace unisono::sim
