// The output of `unisono-lab simulate elastic`: a table, JSON lines, a picture. Pure.
#pragma once

#include <string>
#include <vector>

#include "cli/common/plot.h"
#include "lab/elastic/elastic_plan.h"

namespace unisono::cli {

struct ElasticResult {
  ElasticPlan plan;
  std::vector<sim::ElasticStudyResult> runs;  // of plan.seeds, in their order
};

// It came to its end, all could join, and every round was what it should be.
bool is_right(const sim::ElasticStudyResult& run);
bool is_right(const ElasticResult& result);

// A line for each seed if there are several, then their sums. Problems follow, with the command that reproduces them.
std::string table_of(const ElasticResult& result);
// A line for the settings, one for each run, one with the verdict. The same plan and build give the same bytes.
std::string json_of(const ElasticResult& result);
// Plots over virtual time: times of averaging steps, how many were exact, how many peers took part, how far apart values were.
// With several seeds, only the first ten are plotted.
std::vector<Panel> panels_of(const ElasticResult& result);

}  // namespace unisono::cli
