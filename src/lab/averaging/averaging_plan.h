// Turns the options of `unisono-lab simulate averaging` into settings: every algorithm, for every number of peers, under every
// absence. Pure.
#pragma once

#include <string>
#include <vector>

#include "cli/common/command_line.h"
#include "lab/averaging/averaging.h"

namespace unisono::cli {

extern const CommandLineText averaging_text;

// As typed; parsed by make_averaging_plan. Empty: as --help says.
struct AveragingOptions {
  std::string peers = {}, absences = {}, algorithms = {}, targets = {};
  std::string restarts = "10", max_group = "32";
  bool compare = false;
  std::string plot = {}, json = {};
  std::string jobs = "1", progress = "auto";
};

void add_averaging_options(CLI::App& app, AveragingOptions& options);

struct AveragingPlan {
  std::vector<uint32_t> peers;
  std::vector<double> absences;
  std::vector<sim::AveragingAlgorithm> algorithms;  // random groups among them if a grid is
  std::vector<double> targets;                      // the table shows them in this order
  uint32_t restarts = 10, max_group = 32, jobs = 1;
  std::string plot, json, progress;

  // By peers, then absence, then algorithm.
  std::vector<sim::AveragingSettings> cases() const;
  uint64_t runs() const;
};
// invalid: which option is wrong and what it takes.
Result<AveragingPlan> make_averaging_plan(const AveragingOptions& options);

// No number of peers but M^d is averaged exactly by it, even without absences.
bool needs_a_full_grid(sim::AveragingAlgorithm algorithm);
bool is_full_grid(uint32_t peers, uint32_t max_group);

}  // namespace unisono::cli
