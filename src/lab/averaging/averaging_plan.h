// Turns the options of `unisono-lab simulate averaging` into cases. A case is one algorithm with one number of peers and one
// probability of absence. Performs no I/O.
#pragma once

#include <string>
#include <vector>

#include "cli/common/command_line.h"
#include "cli/common/result_writer.h"
#include "lab/averaging/averaging.h"

namespace unisono::lab {

extern const cli::CommandLineText averaging_text;

// Option values as the user typed them; make_averaging_plan() parses them. An empty value means the default that --help names.
struct AveragingOptions {
  std::string peers = {}, absences = {}, algorithms = {}, targets = {};
  std::string restarts = "10", max_group = "32";
  bool compare = false;
  std::string plot = {};
  cli::OutputOptions results = {};
  std::string jobs = "1", progress = "auto";
};

void add_averaging_options(CLI::App& app, AveragingOptions& options);

struct AveragingPlan {
  std::vector<uint32_t> peers;
  std::vector<double> absences;
  std::vector<sim::AveragingAlgorithm> algorithms;  // if one of them uses a grid, random_groups is included, too
  std::vector<double> targets;                      // variances to reach, in the order in which the table shows them
  uint32_t restarts = 10, max_group = 32, jobs = 1;
  std::string plot, progress;
  cli::OutputOptions results = {};

  // Returns all cases. They are ordered by number of peers, then by absence, then by algorithm.
  std::vector<sim::AveragingSettings> cases() const;
  uint64_t runs() const;
};
// Fails with Code::invalid if an option has a value that is not allowed. The message names the option and the allowed values.
Result<AveragingPlan> make_averaging_plan(const AveragingOptions& options);

// True if this algorithm averages exactly only when there are M^d peers, even if no peer is absent.
bool needs_a_full_grid(sim::AveragingAlgorithm algorithm);
bool is_full_grid(uint32_t peers, uint32_t max_group);

}  // namespace unisono::lab
