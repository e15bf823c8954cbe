// Formats the output of `unisono-lab simulate loss`: a table, JSON lines, plots. Performs no I/O.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "cli/common/plot.h"
#include "lab/loss/loss_checks.h"

namespace unisono::lab {

std::string table_of(const LossResult& result, std::span<const LossCheck> checks);
// Returns JSON lines: the settings, each check, the drift curve, and the verdicts. NaN and infinity are written as null.
std::string json_of(const LossResult& result, std::span<const LossCheck> checks);
// Returns plots of what was measured: the drift over the steps, and how much each estimator deviates from the true mean.
std::vector<cli::Panel> panels_of(const LossResult& result);

}  // namespace unisono::lab
