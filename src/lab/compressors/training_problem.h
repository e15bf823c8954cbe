// Small problems that show whether training with compressed gradients converges. They are the problems of checks 25 and 26 of
// docs/design/methods/arc_top_k.md, for any number of ranks and any seed.
//
// A problem holds only its data. The caller holds the weights and gradients, and makes the steps. All arithmetic is in double.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "compressors/row_rule.h"

namespace unisono::sim {

enum class ProblemKind : uint8_t {
  quadratic,  // each rank has its own minimum, and the goal W* is the mean of these minima; |W - W*| / |W*| is measured
  // Softmax regression with 64 classes. Each rank has samples of few classes. The measured value is the mean loss over all
  // samples, plus regularisation.
  softmax
};

// The settings of check 25 or 26, which use 8 ranks.
struct ProblemFacts {
  const char* name;     // such as "quadratic"
  const char* measure;  // name of the measured value; training makes this value small
  Matrix matrix;        // shape of the weights
  uint64_t seed;
  uint64_t steps;
  double step_size;
  // The result is the mean of this many measurements. The last one is made after the last step, and there are `averaged_every`
  // steps from one to the next.
  uint32_t averaged;
};
constexpr uint64_t averaged_every = 10;
const ProblemFacts& facts_of(ProblemKind kind);

class TrainingProblem {
 public:
  virtual ~TrainingProblem() = default;
  // Computes the gradient of the loss of `rank` in this step, and writes it to `out`.
  virtual void gradient(std::span<const double> weights, uint64_t step, uint32_t rank, std::span<double> out) const = 0;
  virtual double measure(std::span<const double> weights) const = 0;
};
std::unique_ptr<TrainingProblem> make_problem(ProblemKind kind, uint32_t ranks, uint64_t seed);

}  // namespace unisono::sim
