#include <fmt/format.h>

#include <cstdio>

#include "cli/common/command_line.h"
#include "cli/common/commands.h"
#include "cli/observe/trace_events.h"

namespace unisono::cli {
namespace {

const CommandLineText trace_command_text{.name = "unisono trace",
                                         .usage = "unisono trace [FILE...] [OPTIONS] > trace.json",
                                         .description =
                                             "Writes the last operations of all ranks as a Chrome trace, for "
                                             "ui.perfetto.dev or chrome://tracing.",
                                         .footer = R"(Examples:
  unisono trace > trace.json                          the groups that run on this host
  unisono trace /var/run/unisono > trace.json         records in a folder (UNISONO_RECORD_DIR)
  UNISONO_RECORD=10000 ./train                        keep more operations than the last 256

One process per rank, one track for its operations, their phases inside. Times are those of each host's clock:
across hosts they are as exact as the clocks agree.

Exit code: 0, 1 if there is no record to read, 2 for a wrong command line.)"};

struct TraceOptions {
  Places places;
};

void add_trace_options(CLI::App& app, TraceOptions& options) { add_places(app, options.places); }

}  // namespace

CommandSyntax trace_syntax() { return syntax_of(trace_command_text, add_trace_options); }

int run_trace(const Arguments& arguments) {
  TraceOptions options;
  const auto app = make_app(trace_command_text);
  add_trace_options(*app, options);
  if (const auto code = parse_arguments(*app, arguments)) return *code;
  const auto scan_entries = look_at(options.places);
  if (!scan_entries.ok()) return usage_error(trace_command_text.name, scan_entries.status().message());
  for (const auto& trouble : scan_entries->troubles) fmt::print(stderr, "unisono trace: {}\n", trouble);
  if (scan_entries->all.empty()) {
    fmt::print(stderr, "unisono trace: no record {}\n", options.places.paths.empty() ? "of a process that runs here" : "there");
    return 1;
  }
  const auto text = trace_json(scan_entries->all);
  return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0 ? 0 : 1;
}

}  // namespace unisono::cli
