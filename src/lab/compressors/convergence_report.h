// Formats the output of `unisono-lab simulate arc`: tables that compare the results with docs/design/methods/arc_top_k.md, JSON
// lines, and plots. Performs no I/O.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/common/plot.h"
#include "lab/compressors/convergence_plan.h"

namespace unisono::lab {

struct ConvergenceResult {
  ConvergenceCase what;
  std::vector<sim::TrainingOutcome> outcomes;  // one outcome for each seed, in the order of what.seeds
};

struct Spread {
  // The mean and the sample standard deviation over the seeds that did not diverge. Both are NaN if all seeds diverged.
  double mean = 0, deviation = 0;
  size_t diverged = 0;  // number of seeds that diverged
};
Spread spread_of(const ConvergenceResult& result);

// If the case has exactly one seed, and docs/design/methods/arc_top_k.md specifies a value for the case, returns this value.
std::optional<sim::SpecifiedValue> specified_of(const ConvergenceCase& one);
struct Verdicts {
  size_t compared = 0, off = 0;
};
Verdicts verdicts_of(std::span<const ConvergenceResult> results);

// Returns a table for each problem, and a line that says how many values agree with the specified ones.
std::string table_of(std::span<const ConvergenceResult> results);
// Returns a JSON line for each result, and a last line that says how many values agree with the specified ones. NaN and
// infinity are written as null.
std::string json_of(std::span<const ConvergenceResult> results);
// Returns a panel for each problem and feedback. Each method is a line that shows the mean over the seeds. The area from the
// smallest to the largest value is shaded.
std::vector<cli::Panel> panels_of(std::span<const ConvergenceResult> results);

}  // namespace unisono::lab
