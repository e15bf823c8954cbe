#include "lab/drop_compute/drop_simulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "cli/common/option_values.h"
#include "cli/common/progress.h"
#include "cli/common/text.h"
#include "cli/common/threads.h"

namespace unisono::lab {

using cli::add_choice;
using cli::add_output_options;
using cli::check_progress;
using cli::CommandLineText;
using cli::invalid;
using cli::jobs_max;
using cli::parse_between;
using cli::parse_count;
using cli::parse_number;
using cli::progress_names;

const CommandLineText drop_simulate_text{.name = "unisono-lab drop-compute simulate",
                                         .usage = "unisono-lab drop-compute simulate [OPTIONS]",
                                         .description =
                                             "Simulates training steps whose micro-batches take times by chance, and compares "
                                             "under the very same delays: no remedy, compute\n"
                                             "thresholds (chosen as the library chooses them, or given) under each stop rule, "
                                             "backup workers, an oracle, rebalanced counts, and\n"
                                             "dropping as much at random.",
                                         .footer = R"(Examples:
  unisono-lab drop-compute simulate --workers 16                                       model L, 12 micro-batches, comm 500 ms
  unisono-lab drop-compute simulate -n 200 --tau 16s --rule after --plot simulate.svg  one's own threshold beside automatic ones
  unisono-lab drop-compute simulate --model constant:base=1 -n 8 --slow 7x2            one worker twice as slow
  unisono-lab drop-compute simulate --model G:mean=20ms,sd=5ms --comm 10ms             bare numbers are seconds
  unisono-lab drop-compute simulate --trace trace.csv && unisono-lab drop-compute search trace.csv

Models of a micro-batch's latency: L:mu=1,cap=5.5, mu (1 + min(exp(4+Z)/(2 e^4.5), cap)) with Z standard normal;
R:compute=1,factor=1, heavy-tailed, from the authors' code; G:mean=1,sd=0.25, normal; exp:base=1,mean=0.3; gamma,
bernoulli, lognormal and normal0 with base, mean and sd of the noise; constant:base=1. --slow 3x2 has worker 3 take
twice as long.

Columns: p, the share of micro-batches that is dropped; S_step, the mean over steps of how many times as quick each
is; S_total, micro-batches per second in all, of those without a remedy. predicted: what an automatic threshold was
chosen for, from the steps recorded before. step: mean and standard deviation of a step's time. The first 49 steps, 5
to warm up and 44 that are recorded, are not measured. Every line names its rule; delays are never cut short: under
rule at, what is left of a micro-batch is charged to the worker's next step.

backup workers: the gradients of the latest are left out whole (Chen et al. 2016), as many as is best. oracle: knows
before which micro-batches end in time; no method, but a bound. rebalanced: each worker as many micro-batches as its
speed allows. random: drops as many, whoever is late.

Exit code: 0; 1 if a file cannot be written; 2 for a wrong command line.)"};

void add_drop_simulate_options(CLI::App& app, DropSimulateOptions& o) {
  app.add_option("--model", o.model, "law of the latency of a micro-batch, with its parameters [L:mu=1]")->type_name("MODEL");
  app.add_option("--slow", o.slow, "this worker's micro-batches take so many times as long: 3x2")->type_name("RANKxFACTOR");
  app.add_option("-n,--workers", o.workers, "1 to 8192 [16]")->type_name("COUNT");
  app.add_option("-m,--micro-batches", o.micro_batches, "micro-batches of each worker in a step, 1 to 4096 [12]")
      ->type_name("COUNT");
  app.add_option("--comm", o.other, "time of a step outside computing [500ms]")->type_name("TIME");
  add_choice(app, o.rule,
             {.names = "-r,--rule",
              .value = "RULE",
              .meaning = "when a worker stops",
              .words = {"after", "before", "at", "all"},
              .fallback = "all"});
  app.add_option("--tau", o.threshold, "auto; a threshold that is measured beside automatic ones; off: no thresholds [auto]")
      ->type_name("auto|off|TIME");
  add_drop_choice(app, o.choice);
  app.add_option("--steps", o.steps, "that are measured [2000]")->type_name("COUNT");
  app.add_option("--seed", o.seed, "decides all delays [0]")->type_name("N");
  app.add_option("--trace", o.trace, "write the recorded steps there, as search reads them")->type_name("FILE");
  app.add_option("--plot", o.plot, "draw compute times, speed-ups and times of steps there, as SVG")->type_name("FILE");
  add_output_options(app, o.results);
  app.add_option("-j,--jobs", o.jobs, "remedies simulated at the same time [1]")->type_name("N");
  add_choice(
      app, o.progress,
      {.names = "--progress", .value = "STYLE", .meaning = "on standard error", .words = progress_names(), .fallback = "auto"});
}

namespace {

constexpr uint64_t workers_limit = 8192, simulated_micro_batches_limit = 4096, steps_limit = 1'000'000;
// The recorded steps have at most this many end times of micro-batches, because the search sorts all of them.
constexpr uint64_t recorded_limit = 20'000'000;

// Parses the option --slow, which has a rank and a factor, such as "3x2".
Status set_slow(const std::string& text, sim::DelayModel& model) {
  const auto wrong = [&] { return invalid(fmt::format("--slow '{}': expected a rank and a factor, as in 3x2", text)); };
  const auto cross = text.find('x');
  if (cross == std::string::npos) return wrong();
  const auto rank = parse_count(text.substr(0, cross), workers_limit - 1);
  const auto factor = parse_number("--slow", text.substr(cross + 1), 0, 1e6);
  if (!rank.ok() || !factor.ok() || *factor == 0) return wrong();
  if (model.slow_worker >= 0) return invalid("--slow and the model's slow= say the same: give one of them");
  model.slow_worker = static_cast<int64_t>(*rank);
  model.slow_factor = *factor;
  return {};
}

Status set_settings(const DropSimulateOptions& o, sim::StragglerSettings& settings) {
  auto model = sim::DelayModel::parse(o.model);
  if (!model.ok()) return invalid(fmt::format("--model {}: {}", o.model, model.status().message()));
  settings.model = *model;
  if (!o.slow.empty()) {
    if (auto status = set_slow(o.slow, settings.model); !status.ok()) return status;
  }
  const auto workers = parse_between("--workers", o.workers, 1, workers_limit);
  const auto micro_batches = parse_between("--micro-batches", o.micro_batches, 1, simulated_micro_batches_limit);
  const auto other = parse_seconds("--comm", o.other, false);
  const auto steps = parse_between("--steps", o.steps, 1, steps_limit);
  const auto seed = parse_count(o.seed, ~uint64_t{0});
  for (const auto& status : {workers.status(), micro_batches.status(), other.status(), steps.status()}) {
    if (!status.ok()) return status;
  }
  if (!seed.ok()) return invalid(fmt::format("--seed {}", seed.status().message()));
  if (settings.model.slow_worker >= static_cast<int64_t>(*workers))
    return invalid(fmt::format("{}: worker {} cannot be slow: there are {}, from 0", o.slow.empty() ? "--model" : "--slow",
                               settings.model.slow_worker, *workers));
  settings.workers = static_cast<uint32_t>(*workers);
  settings.micro_batches = static_cast<uint32_t>(*micro_batches);
  settings.other = *other;
  settings.steps = *steps;
  settings.seed = *seed;
  return {};
}

Status set_threshold(const DropSimulateOptions& o, DropSimulation& simulation) {
  simulation.drops = o.threshold != "off";
  if (!simulation.drops || o.threshold == "auto") return {};
  const auto seconds = parse_seconds("--tau", o.threshold, true);
  if (!seconds.ok()) return invalid(fmt::format("{}; or auto, off", seconds.status().message()));
  simulation.fixed = *seconds;
  return {};
}

}  // namespace

ComputeTrace DropSimulation::recorded() const {
  return sim::make_trace(settings, uint64_t{1} + choice.warmup_steps, choice.calibration_steps);
}

Result<DropSimulation> make_drop_simulation(const DropSimulateOptions& o) {
  DropSimulation simulation{.settings = {}, .rules = {}, .choice = {}, .fixed = {}};
  const auto rules = parse_rules(o.rule);
  if (!rules.ok()) return rules.status();
  simulation.rules = *rules;
  if (auto status = set_settings(o, simulation.settings); !status.ok()) return status;
  if (auto status = set_threshold(o, simulation); !status.ok()) return status;
  const auto choice = drop_choice_of(o.choice, simulation.settings.micro_batches);
  const auto jobs = parse_between("--jobs", o.jobs, 1, jobs_max);
  for (const auto& status : {choice.status(), jobs.status()}) {
    if (!status.ok()) return status;
  }
  if (auto status = check_progress(o.progress); !status.ok()) return status;
  simulation.choice = *choice;
  simulation.jobs = static_cast<uint32_t>(*jobs);
  const auto& s = simulation.settings;
  if (uint64_t{s.workers} * s.micro_batches * choice->calibration_steps > recorded_limit) {
    return invalid(fmt::format("--workers {} --micro-batches {}: {} recorded steps have more than {} times", s.workers,
                               s.micro_batches, choice->calibration_steps, recorded_limit));
  }
  const uint64_t before = uint64_t{choice->warmup_steps} + choice->calibration_steps;
  simulation.measured_from = before + 1;
  simulation.settings.steps += before;
  return simulation;
}

std::string trace_text(const ComputeTrace& trace, uint64_t first_step) {
  auto text = ComputeTrace::head(trace.micro_batches) + "\n";
  for (size_t step = 0; step < trace.steps(); ++step) {
    for (size_t worker = 0; worker < trace.workers; ++worker) {
      fmt::format_to(std::back_inserter(text), "{},{},{},{}\n", first_step + step, worker,
                     trace.walls[step * trace.workers + worker], fmt::join(trace.ends_of(step, worker), ","));
    }
  }
  return text;
}

}  // namespace unisono::lab
