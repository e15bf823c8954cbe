// `unisono-lab drop-compute`: computes what a compute threshold gains. `plan` uses closed forms, `search` uses recorded times,
// and `simulate` uses simulated delays.
#include <fmt/format.h>

#include <optional>

#include "cli/common/text.h"
#include "lab/common/commands.h"
#include "lab/common/simulation.h"
#include "lab/drop_compute/drop_plan_report.h"
#include "lab/drop_compute/drop_search_report.h"
#include "lab/drop_compute/drop_simulate_report.h"

namespace unisono::lab {

using cli::CommandLineText;
using cli::write_output_file;

namespace {

// Writes a result as a table, JSON lines and plots.
template <typename Found>
int report(const CommandLineText& text, Sink& sink, const std::string& plot, const Found& result) {
  sink.table(table_of(result));
  sink.json(json_of(result));
  const auto drawn = plot.empty() ? Status() : of_option("--plot", write_svg(plot, panels_of(result)));
  for (const auto& status : {sink.finish(), drawn}) {
    if (!status.ok()) return failed(text, status);
  }
  return 0;
}

// Opens the outputs before anything is computed, so that no result is lost.
Status open_outputs(Sink& sink, const std::string& plot) {
  return first_wrong({check_writable({"--plot", plot}), sink.open(true)});
}

}  // namespace

CommandSyntax drop_plan_syntax() { return syntax_of(drop_plan_text, add_drop_plan_options); }
CommandSyntax drop_search_syntax() { return syntax_of(drop_search_text, add_drop_search_options); }
CommandSyntax drop_simulate_syntax() { return syntax_of(drop_simulate_text, add_drop_simulate_options); }

int run_drop_plan(const Arguments& arguments) {
  DropPlanOptions options;
  const auto app = make_app(drop_plan_text);
  add_drop_plan_options(*app, options);
  if (const auto code = parse_arguments(*app, arguments)) return *code;
  const auto plan = make_drop_plan(options);
  if (!plan.ok()) return usage_error(drop_plan_text.name, plan.status().message());
  DropForecast forecast;
  if (plan->trace.empty()) {
    forecast = forecast_of(*plan);
  } else {
    const auto named = of_option("--from-trace", read_trace(plan->trace));
    if (!named.ok()) return failed(drop_plan_text, named.status());
    forecast = forecast_of(*plan, named->trace);
  }
  Sink sink(options.results);
  if (auto status = open_outputs(sink, options.plot); !status.ok()) return failed(drop_plan_text, status);
  return report(drop_plan_text, sink, options.plot, forecast);
}

int run_drop_search(const Arguments& arguments) {
  DropSearchOptions options;
  const auto app = make_app(drop_search_text);
  add_drop_search_options(*app, options);
  if (const auto code = parse_arguments(*app, arguments)) return *code;
  const auto what = make_drop_search(options);
  if (!what.ok()) return usage_error(drop_search_text.name, what.status().message());
  auto named = read_trace(what->trace);
  if (!named.ok()) return failed(drop_search_text, named.status());
  Sink sink(options.results);
  if (auto status = open_outputs(sink, options.plot); !status.ok()) return failed(drop_search_text, status);
  return report(drop_search_text, sink, options.plot, search_result(*what, *std::move(named)));
}

int run_drop_simulate(const Arguments& arguments) {
  DropSimulateOptions options;
  const auto app = make_app(drop_simulate_text);
  add_drop_simulate_options(*app, options);
  if (const auto code = parse_arguments(*app, arguments)) return *code;
  const auto simulation = make_drop_simulation(options);
  if (!simulation.ok()) return usage_error(drop_simulate_text.name, simulation.status().message());
  Sink sink(options.results);
  if (auto status = open_outputs(sink, options.plot); !status.ok()) return failed(drop_simulate_text, status);
  const OutputFile trace{"--trace", options.trace};
  if (!options.trace.empty()) {
    const auto text = trace_text(simulation->recorded(), uint64_t{1} + simulation->choice.warmup_steps);
    if (auto written = write_output_file(trace, text); !written.ok()) return failed(drop_simulate_text, written);
  }
  std::optional<Progress> progress;
  const auto result = simulate_remedies(*simulation, [&](uint64_t steps, uint64_t all_steps, const std::string& what) {
    if (!progress) progress.emplace(progress_options("simulate", all_steps, options.progress), monotonic_now());
    progress->update(steps, what, monotonic_now());
  });
  if (progress) progress->clear();
  return report(drop_simulate_text, sink, options.plot, result);
}

}  // namespace unisono::lab
