// Turns the options of `unisono-lab drop-compute simulate` into settings. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lab/common/option_words.h"
#include "lab/drop_compute/straggler_run.h"

namespace unisono::cli {

extern const CommandLineText drop_simulate_text;

// As typed; parsed by make_drop_simulation.
struct DropSimulateOptions {
  std::string model = "L:mu=1", slow;
  std::string workers = "16", micro_batches = "12", other = "500ms", steps = "2000", seed = "0";
  std::string rule = "all", threshold = "auto";
  DropChoiceOptions choice;
  std::string trace, json, plot;
  std::string jobs = "1", progress = "auto";
};

void add_drop_simulate_options(CLI::App& app, DropSimulateOptions& options);

struct DropSimulation {
  sim::StragglerSettings settings;  // its steps begin with those that an automatic threshold needs, which are not measured
  uint64_t measured_from = 1;
  std::vector<DropRule> rules;
  DropOptions choice;           // of an automatic threshold
  bool drops = true;            // not --tau off
  std::optional<double> fixed;  // seconds: measured beside the automatic ones
  uint32_t jobs = 1;

  // The steps in which an automatic threshold is searched.
  ComputeTrace recorded() const;
  uint64_t measured_steps() const { return settings.steps + 1 - measured_from; }
};

// invalid: which option is wrong and what it takes.
Result<DropSimulation> make_drop_simulation(const DropSimulateOptions& options);

// As `unisono-lab drop-compute search` reads it; its first step has this number.
std::string trace_text(const ComputeTrace& trace, uint64_t first_step);

}  // namespace unisono::cli
