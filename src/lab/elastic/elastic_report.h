// Formats the output of `unisono-lab simulate elastic`: a table, JSON lines, plots. Performs no I/O.
#pragma once

#include <string>
#include <vector>

#include "cli/common/plot.h"
#include "lab/elastic/elastic_plan.h"

namespace unisono::lab {

struct ElasticResult {
  ElasticPlan plan;
  std::vector<sim::ElasticStudyResult> runs;  // one result for each seed, in the order of plan.seeds
};

// True if the run ended in time, all peers could join, and the replay did not find a wrong round.
bool is_correct(const sim::ElasticStudyResult& run);
bool is_correct(const ElasticResult& result);

// Returns the sums over all seeds. If there are several seeds, a row for each of them comes first. The problems come last, each
// with the command that reproduces it.
std::string table_of(const ElasticResult& result);
// Returns JSON lines: one for the settings, one for each run, and one with the number of correct runs. The same plan and the
// same build give the same bytes.
std::string json_of(const ElasticResult& result);
// Plots four values against virtual time: the durations of averaging steps, the fraction of exact results, the number of peers,
// and the spread of the values. Shows at most ten seeds.
std::vector<cli::Panel> panels_of(const ElasticResult& result);

}  // namespace unisono::lab
