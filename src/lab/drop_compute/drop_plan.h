// Turns the options of `unisono-lab drop-compute plan` into numbers: a law of latencies, or a trace, and how many workers.
// Pure.
#pragma once

#include <optional>
#include <string>

#include "lab/common/option_words.h"
#include "training/drop_compute/compute_forecast.h"

namespace unisono::cli {

extern const CommandLineText drop_plan_text;

// As typed; parsed by make_drop_plan.
struct DropPlanOptions {
  std::string workers, micro_batches, mean, deviation, other;
  std::string rule = "at", lag;
  std::string threshold, max_drop, trace;
  std::string json, plot;
};

void add_drop_plan_options(CLI::App& app, DropPlanOptions& options);

struct DropPlan {
  uint64_t workers = 2;
  ComputeModel model;            // unless a trace is read
  std::string trace;             // file; "-": standard input; empty: the model
  DropRule rule = DropRule::at;  // the rule for the dropped share; speed-ups are those of `at`
  uint32_t lag = 0;
  double max_drop = 0.10;
  std::optional<double> threshold;  // seconds; none: the best one
};

// invalid: which option is wrong and what it takes.
Result<DropPlan> make_drop_plan(const DropPlanOptions& options);

}  // namespace unisono::cli
