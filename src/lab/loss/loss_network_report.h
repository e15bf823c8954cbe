// The output of `unisono-lab simulate loss --network`: a table, JSON lines, pictures. Pure.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "cli/common/plot.h"
#include "lab/loss/loss_network.h"

namespace unisono::cli {

std::string table_of(const NetworkResult& result, std::span<const LossCheck> checks);
// A line for the settings, one for each check, one for each fault, one for the curve, one for the run, one for the verdict. A
// value that is no number is null.
std::string json_of(const NetworkResult& result, std::span<const LossCheck> checks);
// Durations, and what was missing and dropped, over the operations of the first seed.
std::vector<Panel> panels_of(const NetworkResult& result);

}  // namespace unisono::cli
