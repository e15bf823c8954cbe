// The output of `unisono-lab simulate averaging`: tables, JSON lines, pictures. Pure.
#pragma once

#include <string>
#include <vector>

#include "cli/common/plot.h"
#include "lab/averaging/averaging_plan.h"

namespace unisono::cli {

struct AveragingResult {
  AveragingPlan plan;
  std::vector<sim::AveragingMeans> means;  // of plan.cases(), in their order
  const sim::AveragingMeans& at(size_t peers, size_t absence, size_t algorithm) const {
    return means[(peers * plan.absences.size() + absence) * plan.algorithms.size() + algorithm];
  }
};

// A table of the rounds, of the amounts sent, and of the formulae. It names the algorithms that cannot be exact.
std::string table_of(const AveragingResult& result);
// JSON lines: one for the settings, one for each case, and one with the formulae for each pair of peers and absence.
std::string json_of(const AveragingResult& result);
// The mean variance over the rounds: a row for each number of peers, a panel for each absence. Needs curves.
std::vector<Panel> variance_panels_of(const AveragingResult& result);
// Rounds to the first target over the absence: a panel for each number of peers.
std::vector<Panel> absence_panels_of(const AveragingResult& result);

}  // namespace unisono::cli
