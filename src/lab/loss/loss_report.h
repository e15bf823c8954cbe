// The output of `unisono-lab simulate loss`: a table, JSON lines, pictures. Pure.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "cli/common/plot.h"
#include "lab/loss/loss_checks.h"

namespace unisono::cli {

std::string table_of(const LossResult& result, std::span<const LossCheck> checks);
// A line for the settings, one for each check, one for the curve of drift, one for the verdict. A value that is no number is
// null.
std::string json_of(const LossResult& result, std::span<const LossCheck> checks);
// Drift over the steps, and how far each estimator is from the true mean: as many as were run.
std::vector<Panel> panels_of(const LossResult& result);

}  // namespace unisono::cli
