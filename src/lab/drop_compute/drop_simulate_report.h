// The output of `unisono-lab drop-compute simulate`, a row per remedy: a table, JSON lines, pictures.
// Pure.
#pragma once

#include <string>
#include <vector>

#include "lab/drop_compute/drop_simulate_run.h"

namespace unisono::cli {

// "auto, after", "backup workers, 14 of 200".
std::string label_of(const DropSimulationResult& result, const RemedyResult& remedy);

std::string table_of(const DropSimulationResult& result);
// One line for the settings, one for each remedy.
std::string json_of(const DropSimulationResult& result);
// Compute times, speed-up against the threshold, times of steps, speed-up against workers: as many are simulated for it.
std::vector<Panel> panels_of(const DropSimulationResult& result);

}  // namespace unisono::cli
