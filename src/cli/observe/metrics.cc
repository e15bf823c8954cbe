#include <fmt/format.h>

#include <cstdio>

#include "cli/common/command_line.h"
#include "cli/common/commands.h"
#include "cli/observe/metrics_text.h"

namespace unisono::cli {
namespace {

const CommandLineText metrics_command_text{
    .name = "unisono metrics",
    .usage = "unisono metrics [FILE...] [OPTIONS]",
    .description =
        "Prints the counters of all groups on this host as OpenMetrics text, for Prometheus and compatible programs.",
    .footer = R"(Examples:
  unisono metrics                                         all groups on this host
  unisono metrics > unisono.prom.new && mv unisono.prom.new /var/lib/node_exporter/unisono.prom
                                                          for the textfile collector, by cron

Labels: run (the same on all ranks of a job), group, epoch, rank, host, pid; collective or peer and transport. Counters start
from 0 when a group is re-formed, under a new epoch.

Exit code: 0, also if no group runs here; 1 if a named process or file could not be read; 2 for a wrong command line.)"};

struct MetricsOptions {
  Places places;
};

void add_metrics_options(CLI::App& app, MetricsOptions& options) { add_places(app, options.places); }

}  // namespace

CommandSyntax metrics_syntax() { return syntax_of(metrics_command_text, add_metrics_options); }

int run_metrics(const Arguments& arguments) {
  MetricsOptions options;
  const auto app = make_app(metrics_command_text);
  add_metrics_options(*app, options);
  if (const auto code = parse_arguments(*app, arguments)) return *code;
  const auto scan_entries = look_at(options.places);
  if (!scan_entries.ok()) return usage_error(metrics_command_text.name, scan_entries.status().message());
  for (const auto& trouble : scan_entries->troubles) fmt::print(stderr, "unisono metrics: {}\n", trouble);
  const auto text = metrics_text(scan_entries->all);
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  const bool asked = !options.places.paths.empty() || !options.places.pids.empty();
  return written && (!asked || scan_entries->troubles.empty()) ? 0 : 1;
}

}  // namespace unisono::cli
