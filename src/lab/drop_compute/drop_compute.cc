// `unisono-lab drop-compute`: what a compute threshold is worth, by closed forms (plan), by recorded times (search), by
// simulated delays (simulate).
#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>

#include "cli/common/monotonic.h"
#include "cli/common/progress.h"
#include "cli/common/result_writer.h"
#include "cli/common/text.h"
#include "lab/common/commands.h"
#include "lab/drop_compute/drop_plan_report.h"
#include "lab/drop_compute/drop_search_report.h"
#include "lab/drop_compute/drop_simulate_report.h"

namespace unisono::cli {
namespace {

// Table, JSON lines and pictures of what was found.
template <typename Found>
int report(const CommandLineText& text, Sink& sink, const std::string& plot, const Found& result) {
  sink.table(table_of(result));
  sink.json(json_of(result));
  const auto drawn = plot.empty() ? Status() : write_svg(plot, panels_of(result));
  for (const auto& status : {sink.finish(), drawn}) {
    if (!status.ok()) return failed(text, status);
  }
  return 0;
}

Status write_file(const std::string& path, const std::string& text) {
  errno = 0;
  std::ofstream file(path);
  file << text;
  file.close();
  return file ? Status()
              : Status(Code::unavailable, fmt::format("cannot write the trace {}: {}", path, strerrordesc_np(errno)));
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
    const auto named = read_trace(plan->trace);
    if (!named.ok()) return failed(drop_plan_text, named.status());
    forecast = forecast_of(*plan, named->trace);
  }
  Sink sink(options.json);
  if (auto status = sink.open(true); !status.ok()) return failed(drop_plan_text, status);
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
  Sink sink(options.json);
  if (auto status = sink.open(true); !status.ok()) return failed(drop_search_text, status);
  return report(drop_search_text, sink, options.plot, search_result(*what, *std::move(named)));
}

int run_drop_simulate(const Arguments& arguments) {
  DropSimulateOptions options;
  const auto app = make_app(drop_simulate_text);
  add_drop_simulate_options(*app, options);
  if (const auto code = parse_arguments(*app, arguments)) return *code;
  const auto simulation = make_drop_simulation(options);
  if (!simulation.ok()) return usage_error(drop_simulate_text.name, simulation.status().message());
  Sink sink(options.json);
  if (auto status = sink.open(true); !status.ok()) return failed(drop_simulate_text, status);
  const auto written =
      options.trace.empty()
          ? Status()
          : write_file(options.trace, trace_text(simulation->recorded(), uint64_t{1} + simulation->choice.warmup_steps));
  if (!written.ok()) return failed(drop_simulate_text, written);
  std::optional<Progress> progress;
  const auto result = simulate_remedies(*simulation, [&](uint64_t steps, uint64_t all_steps, const std::string& what) {
    if (!progress) progress.emplace(progress_options("simulate", all_steps, options.progress), monotonic_now());
    progress->update(steps, what, monotonic_now());
  });
  if (progress) progress->clear();
  return report(drop_simulate_text, sink, options.plot, result);
}

}  // namespace unisono::cli
