// One training of a small problem with compressed gradients, by plain gradient descent from zero: what it comes to, and what
// docs/design/methods/arc_top_k.md says it comes to.
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
  uint32_t sketch_rank = 4;  // of Method::arc
  uint64_t seed = 0;         // of the data, the sketches and the drawn rows
  uint64_t steps = 0;
  double step_size = 0;
};
// The settings of checks 25 and 26 of docs/design/methods/arc_top_k.md.
TrainingSettings specified_settings(ProblemKind problem);
TrainingRanksOptions ranks_options(const TrainingSettings& settings);

struct TrainingPoint {
  uint64_t step = 0;  // after so many
  double value = 0;   // what the problem measures
};
struct TrainingOutcome {
  double value = 0;                     // as the facts of the problem say; no number if it diverged
  std::optional<uint64_t> diverged_in;  // the step in which something was no number any more
  std::vector<TrainingPoint> curve;     // what was measured on the way: at steps that do not depend on the seed
};
struct TrainingWatch {
  uint64_t curve_points = 0;  // about so many are measured on the way; 0: only what the result needs
  std::function<void(uint64_t steps)> progress = nullptr;  // called now and then with the steps done since the last call
};
// invalid: settings that the compressor or the feedback refuses.
Result<TrainingOutcome> run_training(const TrainingSettings& settings, const TrainingWatch& watch = {});

// A value of docs/design/methods/arc_top_k.md, and how far off it may be.
struct SpecifiedValue {
  double value = 0;
  double tolerance = 0;                                                                                 // absolute
  bool allows(double other) const { return other >= value - tolerance && other <= value + tolerance; }  // no number is refused
};
// The value of check 25 or 26 there; none if they say nothing about these settings.
std::optional<SpecifiedValue> specified_value(const TrainingSettings& settings);

}  // namespace unisono::sim
