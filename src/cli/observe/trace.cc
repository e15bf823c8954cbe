#include <fmt/format.h>

#include <cstdio>

#include "cli/common/command_line.h"
#include "cli/common/commands.h"
#include "cli/common/result_writer.h"
#include "cli/observe/trace_events.h"

namespace unisono::cli {
namespace {

const CommandLineText trace_command_text{.name = "unisono trace",
                                         .usage = "unisono trace [FILE...] [OPTIONS]",
                                         .description =
                                             "Writes the last operations of all ranks as a Chrome trace, for "
                                             "ui.perfetto.dev or chrome://tracing.",
                                         .footer = R"(Examples:
  unisono trace -o trace.json                         the groups that run on this host
  unisono trace /var/run/unisono -o trace.json        records in a folder (UNISONO_RECORD_DIR)
  UNISONO_RECORD=10000 ./train                        keep more operations than the last 256

One process per rank, one track for its operations, their phases inside. Times are those of each host's clock:
across hosts they are as exact as the clocks agree.

Exit code: 0; 1 if there is no record to read, or the trace cannot be written; 2 for a wrong command line.)"};

struct TraceOptions {
  RecordSources sources;
  std::string output;
};

void add_trace_options(CLI::App& app, TraceOptions& options) {
  add_record_sources(app, options.sources);
  add_output_file(app, options.output, "the trace");
}

}  // namespace

CommandSyntax trace_syntax() { return syntax_of(trace_command_text, add_trace_options); }

int run_trace(const Arguments& arguments) {
  TraceOptions options;
  const auto app = make_app(trace_command_text);
  add_trace_options(*app, options);
  if (const auto code = parse_arguments(*app, arguments)) return *code;
  const auto scan_entries = scan_records(options.sources);
  if (!scan_entries.ok()) return usage_error(trace_command_text.name, scan_entries.status().message());
  for (const auto& error : scan_entries->read_errors) fmt::print(stderr, "unisono trace: {}\n", error);
  if (scan_entries->all.empty()) {
    fmt::print(stderr, "unisono trace: no record {}\n",
               options.sources.paths.empty() ? "of a process that runs here" : "there");
    return 1;
  }
  const auto written = write_result(options.output, trace_json(scan_entries->all));
  return written.ok() ? 0 : failed(trace_command_text, written);
}

}  // namespace unisono::cli
