// Formats the output of `unisono-lab simulate averaging`: tables, JSON lines, plots. Performs no I/O.
#pragma once

#include <string>
#include <vector>

#include "cli/common/plot.h"
#include "lab/averaging/averaging_plan.h"

namespace unisono::lab {

struct AveragingResult {
  AveragingPlan plan;
  std::vector<sim::AveragingMeans> means;  // results of plan.cases(), in the same order
  const sim::AveragingMeans& at(size_t peers, size_t absence, size_t algorithm) const {
    return means[(peers * plan.absences.size() + absence) * plan.algorithms.size() + algorithm];
  }
};

// Returns tables that show the rounds, how much was sent, and what the formulae give. Also names the algorithms that cannot
// average exactly.
std::string table_of(const AveragingResult& result);
// Returns JSON lines: one line for the settings, one for each case, and one with the formulae for each number of peers and
// probability of absence.
std::string json_of(const AveragingResult& result);
// Plots the mean variance against the number of rounds. Each row of panels is for one number of peers, and each panel in it is
// for one probability of absence. The results must contain AveragingMeans::variances.
std::vector<cli::Panel> variance_panels_of(const AveragingResult& result);
// Plots how many rounds it takes to reach the first target against the probability of absence. Each panel is for one number of
// peers.
std::vector<cli::Panel> absence_panels_of(const AveragingResult& result);

}  // namespace unisono::lab
