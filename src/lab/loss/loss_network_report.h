// Formats the output of `unisono-lab simulate loss --network`: a table, JSON lines, plots. Performs no I/O.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "cli/common/plot.h"
#include "lab/loss/loss_network.h"

namespace unisono::lab {

std::string table_of(const NetworkResult& result, std::span<const LossCheck> checks);
// Returns JSON lines: the settings, each check, each fault, the curve, the run, and the verdicts. NaN and infinity are written
// as null.
std::string json_of(const NetworkResult& result, std::span<const LossCheck> checks);
// Plots the operations of the first seed: how long each took, and which fractions of its data were missing or dropped.
std::vector<cli::Panel> panels_of(const NetworkResult& result);

}  // namespace unisono::lab
