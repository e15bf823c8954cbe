// Trains one small problem with compressed gradients, by plain gradient descent that begins at zero. Also contains the results
// that docs/design/methods/arc_top_k.md specifies.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "lab/compressors/training_problem.h"
#include "lab/compressors/training_ranks.h"

namespace unisono::sim {

struct TrainingSettings {
  ProblemKind problem = ProblemKind::quadratic;
  Method method = Method::arc;
  FeedbackOptions feedback = {};
  uint32_t ranks = 8;
  uint32_t ratio_ppm = 100'000;
  uint32_t sketch_rank = 4;  // only for Method::arc: how many numbers the sketch of a row has
  uint64_t seed = 0;         // seed of the data, of the sketches, and of the rows that random_k draws
  uint64_t steps = 0;
  double step_size = 0;
};
// Returns the settings of check 25 or 26 of docs/design/methods/arc_top_k.md.
TrainingSettings specified_settings(ProblemKind problem);
TrainingRanksOptions ranks_options(const TrainingSettings& settings);

struct TrainingPoint {
  uint64_t step = 0;  // how many steps were made before the measurement
  double value = 0;   // what TrainingProblem::measure() returned
};
struct TrainingOutcome {
  double value = 0;  // mean of the last measurements (see ProblemFacts::averaged); NaN if the training diverged
  std::optional<uint64_t> diverged_in;  // the step in which a value was found not to be finite
  std::vector<TrainingPoint> curve;     // measurements during the training; their steps do not depend on the seed
};
struct TrainingWatch {
  uint64_t curve_points = 0;  // approximate number of points in TrainingOutcome::curve; 0: no curve
  // called from time to time with the number of steps made since the last call
  std::function<void(uint64_t steps)> progress = nullptr;
};
// Fails with Code::invalid if the compressor or the feedback rejects the settings.
Result<TrainingOutcome> run_training(const TrainingSettings& settings, const TrainingWatch& watch = {});

// A value that docs/design/methods/arc_top_k.md specifies, with its tolerance.
struct SpecifiedValue {
  double value = 0;
  double tolerance = 0;  // absolute, not relative to value
  bool allows(double other) const { return other >= value - tolerance && other <= value + tolerance; }  // false for NaN
};
// If check 25 or 26 of docs/design/methods/arc_top_k.md specifies a value for these settings, returns it.
std::optional<SpecifiedValue> specified_value(const TrainingSettings& settings);

}  // namespace unisono::sim
