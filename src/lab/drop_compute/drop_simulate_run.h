// Simulates the remedies that `unisono-lab drop-compute simulate` compares. All of them run under the same delays. Results do
// not depend on the number of threads.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lab/drop_compute/drop_simulate.h"
#include "lab/drop_compute/drop_study.h"

namespace unisono::lab {

struct RemedyResult {
  sim::Remedy remedy;
  sim::StragglerOutcome outcome;
  bool automatic() const {
    return remedy.kind == sim::Remedy::Kind::drop_compute && remedy.drop.threshold == DropOptions::Threshold::automatic;
  }
};

struct DropSimulationResult {
  DropSimulation what;
  TraceStudy study;                    // what was computed from the recorded steps
  std::vector<RemedyResult> remedies;  // the first one is Kind::none
};

// steps: the number of steps simulated so far. all_steps: the number of steps of all remedies together. what: the name of the
// remedy. Several threads call this function, but never at the same time.
using SimulationProgress = std::function<void(uint64_t steps, uint64_t all_steps, const std::string& what)>;
DropSimulationResult simulate_remedies(const DropSimulation& simulation, const SimulationProgress& progress);

}  // namespace unisono::lab
