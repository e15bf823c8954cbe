// The remedies that `unisono-lab drop-compute simulate` compares, each simulated under the same delays. Results do not
// depend on the number of threads.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lab/drop_compute/drop_simulate.h"
#include "lab/drop_compute/drop_study.h"

namespace unisono::cli {

struct RemedyResult {
  sim::Remedy remedy;
  sim::StragglerOutcome outcome;
  bool automatic() const {
    return remedy.kind == sim::Remedy::Kind::drop_compute && remedy.drop.threshold == DropOptions::Threshold::automatic;
  }
};

struct DropSimulationResult {
  DropSimulation what;
  TraceStudy study;                    // of the recorded steps
  std::vector<RemedyResult> remedies;  // none comes first
};

// How many steps of all remedies have been simulated, and what is; called on several threads, one at a time.
using SimulationProgress = std::function<void(uint64_t steps, uint64_t all_steps, const std::string& what)>;
DropSimulationResult simulate_remedies(const DropSimulation& simulation, const SimulationProgress& progress);

}  // namespace unisono::cli
