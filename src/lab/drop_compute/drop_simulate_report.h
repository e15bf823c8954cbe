// Formats the output of `unisono-lab drop-compute simulate`: a table with one row for each remedy, JSON lines, and plots.
// Performs no I/O.
#pragma once

#include <string>
#include <vector>

#include "lab/drop_compute/drop_simulate_run.h"

namespace unisono::lab {

// Returns the name of a remedy, such as "auto, after" or "backup workers, 14 of 200".
std::string label_of(const DropSimulationResult& result, const RemedyResult& remedy);

std::string table_of(const DropSimulationResult& result);
// Returns a JSON line for the settings, then one for each remedy.
std::string json_of(const DropSimulationResult& result);
// Returns four plots: the compute times, the speed-up against the threshold, the step times, and the speed-up against the
// number of workers. For the last plot, other numbers of workers are simulated.
std::vector<cli::Panel> panels_of(const DropSimulationResult& result);

}  // namespace unisono::lab
