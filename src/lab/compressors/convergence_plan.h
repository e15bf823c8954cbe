// Turns the options of `unisono-lab simulate arc` into settings: each problem with each method, and each method that compresses
// with each feedback. Pure.
#pragma once

#include <string>
#include <vector>

#include "cli/common/command_line.h"
#include "lab/compressors/training_run.h"

namespace unisono::cli {

extern const CommandLineText convergence_text;

// As typed; parsed by make_convergence_plan. Empty: as docs/design/methods/arc_top_k.md has it.
struct ConvergenceOptions {
  std::string problems, methods, feedbacks, sketch_ranks;
  std::string ranks, ratio, kept, eta, seeds, steps, step_size;
  std::string plot, json;
  std::string jobs = "1", progress = "auto";
};

void add_convergence_options(CLI::App& app, ConvergenceOptions& options);

// One line of the table. The seed of the settings is that of the first run.
struct ConvergenceCase {
  sim::TrainingSettings settings;
  std::vector<uint64_t> seeds;
};

struct ConvergencePlan {
  std::vector<ConvergenceCase> cases;  // by problem, then by feedback
  uint32_t jobs = 1;
  std::string plot, json, progress;

  uint64_t steps() const;  // of all runs
};
// invalid: which option is wrong and what it takes.
Result<ConvergencePlan> make_convergence_plan(const ConvergenceOptions& options);

// "random-k".
std::string_view method_name(sim::Method method);
// "ef21m"; with the weight 1 "ef21".
std::string_view feedback_name(const FeedbackOptions& feedback);

}  // namespace unisono::cli
