// Turns the options of `unisono-lab drop-compute simulate` into settings. Performs no I/O.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/common/result_writer.h"
#include "lab/common/option_words.h"
#include "lab/drop_compute/straggler_run.h"

namespace unisono::lab {

extern const cli::CommandLineText drop_simulate_text;

// Option values as the user typed them; make_drop_simulation() parses them.
struct DropSimulateOptions {
  std::string model = "L:mu=1", slow;
  std::string workers = "16", micro_batches = "12", other = "500ms", steps = "2000", seed = "0";
  std::string rule = "all", threshold = "auto";
  DropChoiceOptions choice;
  std::string trace, plot;
  cli::OutputOptions results = {};
  std::string jobs = "1", progress = "auto";
};

void add_drop_simulate_options(CLI::App& app, DropSimulateOptions& options);

struct DropSimulation {
  // If a threshold is automatic, the first steps are for warm-up and recording. Measuring begins after them, with step
  // measured_from.
  sim::StragglerSettings settings;
  uint64_t measured_from = 1;
  std::vector<DropRule> rules;
  DropOptions choice;           // options of an automatic threshold
  bool drops = true;            // false if the option is --tau off; then no threshold is measured
  std::optional<double> fixed;  // a fixed threshold in seconds; it is measured together with automatic ones
  uint32_t jobs = 1;

  // Returns the recorded steps. An automatic threshold is chosen from them.
  ComputeTrace recorded() const;
  uint64_t measured_steps() const { return settings.steps + 1 - measured_from; }
};

// Fails with Code::invalid if an option has a value that is not allowed. The message names the option and the allowed values.
Result<DropSimulation> make_drop_simulation(const DropSimulateOptions& options);

// Formats a trace in the format that `unisono-lab drop-compute search` reads. first_step: the number of the first step.
std::string trace_text(const ComputeTrace& trace, uint64_t first_step);

}  // namespace unisono::lab
