#include <fmt/format.h>

#include <cstdio>

#include "cli/common/command_line.h"
#include "cli/common/commands.h"
#include "cli/common/result_writer.h"
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
  unisono metrics -o new.prom && mv new.prom /var/lib/node_exporter/unisono.prom
                                                          for the textfile collector, by cron

Labels: run (the same on all ranks of a job), group, epoch, rank, host, pid; collective or peer and transport.
Counters start from 0 when a group is re-formed, under a new epoch.

Exit code: 0, also if no group runs here; 1 if a named process or file could not be read, or the output cannot be
written; 2 for a wrong command line.)"};

struct MetricsOptions {
  RecordSources sources;
  std::string output;
};

void add_metrics_options(CLI::App& app, MetricsOptions& options) {
  add_record_sources(app, options.sources);
  add_output_file(app, options.output, "the counters");
}

}  // namespace

CommandSyntax metrics_syntax() { return syntax_of(metrics_command_text, add_metrics_options); }

int run_metrics(const Arguments& arguments) {
  MetricsOptions options;
  const auto app = make_app(metrics_command_text);
  add_metrics_options(*app, options);
  if (const auto code = parse_arguments(*app, arguments)) return *code;
  const auto scan_entries = scan_records(options.sources);
  if (!scan_entries.ok()) return usage_error(metrics_command_text.name, scan_entries.status().message());
  for (const auto& error : scan_entries->read_errors) fmt::print(stderr, "unisono metrics: {}\n", error);
  const auto written = write_result(options.output, metrics_text(scan_entries->all));
  if (!written.ok()) return failed(metrics_command_text, written);
  const bool asked = !options.sources.paths.empty() || !options.sources.pids.empty();
  return asked && !scan_entries->read_errors.empty() ? 1 : 0;
}

}  // namespace unisono::cli
