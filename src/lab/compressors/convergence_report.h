// The output of `unisono-lab simulate arc`: tables that compare with docs/design/methods/arc_top_k.md, JSON
// lines, a picture. Pure.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/common/plot.h"
#include "lab/compressors/convergence_plan.h"

namespace unisono::cli {

struct ConvergenceResult {
  ConvergenceCase what;
  std::vector<sim::TrainingOutcome> outcomes;  // of its seeds, in their order
};

struct Spread {
  double mean = 0, deviation = 0;  // of a sample: squares by one less than how many there are; no number if there are none
  size_t diverged = 0;             // these are not in it
};
Spread spread_of(const ConvergenceResult& result);

// Only a case of that page's one seed can be compared.
std::optional<sim::SpecifiedValue> specified_of(const ConvergenceCase& one);
struct Verdicts {
  size_t compared = 0, off = 0;
};
Verdicts verdicts_of(std::span<const ConvergenceResult> results);

// One per problem, and the verdict.
std::string table_of(std::span<const ConvergenceResult> results);
// A line for each result and one for the verdict. A value that is no number is null.
std::string json_of(std::span<const ConvergenceResult> results);
// A panel for each problem and feedback, a line for each method: the mean of the seeds, shaded from the smallest to the
// largest.
std::vector<Panel> panels_of(std::span<const ConvergenceResult> results);

}  // namespace unisono::cli
