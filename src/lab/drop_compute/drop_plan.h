// Turns the options of `unisono-lab drop-compute plan` into numbers: the number of workers, and their latencies, which a law or
// a trace describes. Performs no I/O.
#pragma once

#include <optional>
#include <string>

#include "cli/common/result_writer.h"
#include "lab/common/option_words.h"
#include "training/drop_compute/compute_forecast.h"

namespace unisono::lab {

extern const cli::CommandLineText drop_plan_text;

// Option values as the user typed them; make_drop_plan() parses them.
struct DropPlanOptions {
  std::string workers, micro_batches, mean, deviation, other;
  std::string rule = "at", lag;
  std::string threshold, max_drop, trace;
  cli::OutputOptions results = {};
  std::string plot;
};

void add_drop_plan_options(CLI::App& app, DropPlanOptions& options);

struct DropPlan {
  uint64_t workers = 2;
  ComputeModel model;            // the law of the latencies; not used if there is a trace
  std::string trace;             // name of a file with recorded times; "-" is standard input; empty: the model is used
  DropRule rule = DropRule::at;  // the dropped fraction is reported for this stop rule; speed-ups are always for rule `at`
  uint32_t lag = 0;
  double max_drop = 0.10;
  std::optional<double> threshold;  // in seconds; not set: the best threshold is used
};

// Fails with Code::invalid if an option has a value that is not allowed. The message names the option and the allowed values.
Result<DropPlan> make_drop_plan(const DropPlanOptions& options);

}  // namespace unisono::lab
