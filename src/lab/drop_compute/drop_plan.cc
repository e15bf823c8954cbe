#include "lab/drop_compute/drop_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/common/option_values.h"
#include "cli/common/text.h"

namespace unisono::lab {

using cli::add_choice;
using cli::add_output_options;
using cli::CommandLineText;
using cli::invalid;
using cli::parse_between;
using cli::parse_number;

const CommandLineText drop_plan_text{
    .name = "unisono-lab drop-compute plan",
    .usage = "unisono-lab drop-compute plan --workers N [OPTIONS]",
    .description =
        "Says before anything has run what a compute threshold is worth, and which: by closed forms for micro-batches whose "
        "latencies are\n"
        "independent, with a mean and a standard deviation; or for more workers than a trace was recorded with.\n\n"
        "Speed-ups are those of rule at, for which closed forms exist: at the threshold a worker contributes what is complete. "
        "The rule\n"
        "that runs by default is after, and gains less: 'unisono-lab drop-compute simulate' and 'search' tell how much.",
    .footer = R"(Examples:
  unisono-lab drop-compute plan --workers 200 --micro-batches 12 --mean 1s --sd 250ms --comm 500ms
  unisono-lab drop-compute plan -n 200 -m 12 --mean 1s --sd 250ms --comm 500ms --rule after     what rule after drops there
  unisono-lab drop-compute plan -n 200 -m 12 --mean 1s --sd 250ms --comm 500ms --threshold 12s  one's own threshold
  unisono-lab drop-compute plan --from-trace trace.csv --workers 1000 --plot plan.svg           from recorded times

Times have units (ns, us, ms, s, m, h); bare numbers are seconds. --comm is all of a step beside computing:
all-reduce, optimizer.

With N workers a step lasts as long as the slowest computes, E[T] = M mu + sigma sqrt(M) z, and --comm. z is the
expected maximum of N standard normals; z(N), the published approximation of it, stands beside. The best threshold
tau* is where most micro-batches come out of a second of a step, E[B] / (tau + comm); it does not depend on N, which
scales the gain alone. Where the gain S_eff is not above 1, the answer is 'off'. p is the share of micro-batches that
is dropped, at most --max-drop.

--from-trace reads what 'unisono-lab drop-compute search' reads, takes its times as their law, and workers as
independent of each other. With few records the tail that decides has hardly been seen, and a warning says so.

Exit code: 0; 1 if the trace cannot be read or a file cannot be written; 2 for a wrong command line.)"};

void add_drop_plan_options(CLI::App& app, DropPlanOptions& o) {
  app.add_option("-n,--workers", o.workers, "workers that a step waits for, 1 to 1000000; from a trace, to 10000")
      ->type_name("COUNT");
  app.add_option("-m,--micro-batches", o.micro_batches, "micro-batches of each worker in a step, 1 to 65536")
      ->type_name("COUNT");
  app.add_option("--mean", o.mean, "mean latency of a micro-batch")->type_name("TIME");
  app.add_option("--sd", o.deviation, "standard deviation of that latency")->type_name("TIME");
  app.add_option("--comm", o.other, "time of a step outside computing")->type_name("TIME");
  add_choice(app, o.rule,
             {.names = "-r,--rule",
              .value = "RULE",
              .meaning = "rule whose dropped share is printed; speed-ups are those of rule at",
              .words = {"at", "after", "before"},
              .fallback = "at"});
  app.add_option("--lag", o.lag, "rule after: looks at the micro-batch that many before the last one [0]")->type_name("COUNT");
  app.add_option("--threshold", o.threshold, "threshold to evaluate [the best one]")->type_name("TIME");
  app.add_option("--max-drop", o.max_drop, "no threshold is chosen that would drop a larger share [0.1]")->type_name("SHARE");
  app.add_option("--from-trace", o.trace, "recorded times instead of mean, deviation and --comm; - for standard input")
      ->type_name("FILE");
  app.add_option("--plot", o.plot, "draw speed-up against workers, and against the threshold, there, as SVG")
      ->type_name("FILE");
  add_output_options(app, o.results);
}

namespace {

// M mu / sigma may not exceed this, because the threshold search takes time in proportion to it
constexpr double spread_limit = 1e7;
constexpr uint64_t workers_limit = 1'000'000, traced_workers_limit = 10'000, micro_batches_limit = 65'536;

Status set_model(const DropPlanOptions& o, ComputeModel& model) {
  const auto micro_batches = parse_between("--micro-batches", o.micro_batches, 1, micro_batches_limit);
  const auto mean = parse_seconds("--mean", o.mean, true);
  const auto deviation = parse_seconds("--sd", o.deviation, true);
  const auto other = parse_seconds("--comm", o.other, false);
  for (const auto& status : {micro_batches.status(), mean.status(), deviation.status(), other.status()}) {
    if (!status.ok()) return status;
  }
  if (static_cast<double>(*micro_batches) * *mean / *deviation > spread_limit) {
    return invalid(fmt::format(
        "--sd {} is too small for {} micro-batches of {}: all workers would take the same time, so a threshold would "
        "gain nothing",
        o.deviation, o.micro_batches, o.mean));
  }
  model = {.micro_batches = static_cast<uint32_t>(*micro_batches), .mean = *mean, .deviation = *deviation, .other = *other};
  return {};
}

// Fails with Code::invalid if a required option is missing. If there is a trace, the rule must be `at`, and options for values
// that the trace contains are not allowed.
Status check_sources(const DropPlanOptions& o) {
  if (o.workers.empty()) return invalid("--workers is missing: how many a step waits for");
  for (const auto& [name, text, meaning] : {std::tuple{"--micro-batches", &o.micro_batches, "of each worker in a step"},
                                            {"--mean", &o.mean, "of the latency of a micro-batch"},
                                            {"--sd", &o.deviation, "the standard deviation of that latency"},
                                            {"--comm", &o.other, "what a step takes beside computing"}}) {
    if (o.trace.empty() && text->empty()) return invalid(fmt::format("{} is missing: {}; or --from-trace FILE", name, meaning));
    if (!o.trace.empty() && !text->empty()) return invalid(fmt::format("{} comes from the trace: leave it out", name));
  }
  if (!o.trace.empty() && o.rule != "at")
    return invalid(
        fmt::format("--from-trace forecasts rule at; for rule {} of the recorded workers: unisono-lab drop-compute search {}",
                    o.rule, o.trace));
  return {};
}

}  // namespace

Result<DropPlan> make_drop_plan(const DropPlanOptions& o) {
  if (auto status = check_sources(o); !status.ok()) return status;
  DropPlan plan{.model = {}, .trace = o.trace, .threshold = {}};
  const auto workers = parse_between("--workers", o.workers, 1, o.trace.empty() ? workers_limit : traced_workers_limit);
  if (!workers.ok()) return workers.status();
  plan.workers = *workers;
  if (o.trace.empty()) {
    if (auto status = set_model(o, plan.model); !status.ok()) return status;
  }
  const auto names = rule_names();
  if (std::find(names.begin(), names.end(), o.rule) == names.end())
    return invalid(fmt::format("--rule '{}' is none of at, after, before", o.rule));
  plan.rule = parse_rules(o.rule)->front();
  if (!o.lag.empty()) {
    if (plan.rule != DropRule::after) return invalid("--lag needs --rule after");
    const auto lag = parse_between("--lag", o.lag, 0, plan.model.micro_batches - 1);
    if (!lag.ok()) return lag.status();
    plan.lag = static_cast<uint32_t>(*lag);
  }
  if (!o.max_drop.empty()) {
    const auto share = parse_number("--max-drop", o.max_drop, 0, 1);
    if (!share.ok()) return share.status();
    plan.max_drop = *share;
  }
  if (!o.threshold.empty()) {
    const auto threshold = parse_seconds("--threshold", o.threshold, true);
    if (!threshold.ok()) return threshold.status();
    plan.threshold = *threshold;
  }
  return plan;
}

}  // namespace unisono::lab
