// Turns the options of `unisono-lab simulate arc` into cases. Each problem is run with each method. Methods that compress are
// run with each feedback. Performs no I/O.
#pragma once

#include <string>
#include <vector>

#include "cli/common/command_line.h"
#include "cli/common/result_writer.h"
#include "lab/compressors/training_run.h"

namespace unisono::lab {

extern const cli::CommandLineText convergence_text;

// Option values as the user typed them; make_convergence_plan() parses them. If a value is empty, its default is the setting of
// checks 25 and 26 of docs/design/methods/arc_top_k.md.
struct ConvergenceOptions {
  std::string problems, methods, feedbacks, sketch_ranks;
  std::string ranks, ratio, kept, eta, seeds, steps, step_size;
  std::string plot;
  cli::OutputOptions results = {};
  std::string jobs = "1", progress = "auto";
};

void add_convergence_options(CLI::App& app, ConvergenceOptions& options);

// One row of the table. The case is run once with each of the `seeds`, and settings.seed is not used.
struct ConvergenceCase {
  sim::TrainingSettings settings;
  std::vector<uint64_t> seeds;
};

struct ConvergencePlan {
  std::vector<ConvergenceCase> cases;  // they are ordered by problem, then by feedback
  uint32_t jobs = 1;
  std::string plot, progress;
  cli::OutputOptions results = {};

  uint64_t steps() const;  // returns the number of training steps of all runs together
};
// Fails with Code::invalid if an option has a value that is not allowed. The message names the option and the allowed values.
Result<ConvergencePlan> make_convergence_plan(const ConvergenceOptions& options);

// Returns the name of the method as users type it, such as "random-k".
std::string_view method_name(sim::Method method);
// Returns the name of the feedback as users type it, such as "ef14". The name of ef21m with eta = 1 is "ef21".
std::string_view feedback_name(const FeedbackOptions& feedback);

}  // namespace unisono::lab
