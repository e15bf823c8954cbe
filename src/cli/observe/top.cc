#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>

#include "cli/common/command_line.h"
#include "cli/common/commands.h"
#include "cli/common/result_writer.h"
#include "cli/common/text.h"
#include "cli/observe/top_frame.h"

namespace unisono::cli {
namespace {

const CommandLineText top_text{
    .name = "unisono top",
    .usage = "unisono top [FILE...] [OPTIONS]",
    .description =
        "Shows what the ranks on this host do: in which operation and phase each is, which rank it waits "
        "for and since when, and how fast it goes.",
    .footer = R"(Examples:
  unisono top                          every group on this host, twice a second, until Ctrl-C
  unisono top --once                   one frame as plain text
  unisono top --json --once            one frame as one line of JSON
  unisono top --output frames.json     frames here, and a line of JSON for each in a file
  unisono top --pid 4711               the groups of one process
  unisono top /var/run/unisono         records in a folder (UNISONO_RECORD_DIR), also of processes that are gone

No preparation is needed: each group keeps a record in memory that the same user's programs may read
(docs/guides/troubleshooting.md). A rank for which others have waited more than 100 ms is marked with '!'. Rates are
over the time between two frames; p50 and p99 are of the operations in the record, at least the last 64. 'out' and
'in' are bytes to and from the other ranks.

Exit code: 0 if a group was seen in the last frame; 1 if none, or if the output cannot be written; 2 for a wrong
command line.)"};

struct TopOptions {
  RecordSources sources;
  std::string interval = "500ms";
  bool once = false;
  OutputOptions results;
};

void add_top_options(CLI::App& app, TopOptions& options) {
  add_record_sources(app, options.sources);
  app.add_option("--interval", options.interval, "time between two frames [500ms]")->type_name("TIME");
  app.add_flag("--once", options.once, "one frame, after one interval, and end");
  add_output_options(app, options.results);
}

size_t terminal_width() {
  winsize size{};
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 0;
}

Nanos wall_now() {
  timespec time{};
  ::clock_gettime(CLOCK_REALTIME, &time);
  return time.tv_sec * second + time.tv_nsec;
}

void pause_for(Nanos time) {
  timespec left{.tv_sec = time / second, .tv_nsec = time % second};
  while (::nanosleep(&left, &left) != 0) {}
}

// Writes one frame, as text and as JSON.
Status show(const TopOptions& options, const TopFrame& frame, Sink& sink) {
  const bool terminal = ::isatty(STDOUT_FILENO) != 0 && !options.once;
  const bool colours = ::isatty(STDOUT_FILENO) != 0 && std::getenv("NO_COLOR") == nullptr;
  const std::string clear_screen = terminal ? "\033[H\033[J" : "";
  sink.table(clear_screen + text_of(frame, colours, terminal ? terminal_width() : 0));
  sink.json(json_of(frame, wall_now()));
  return sink.finish();
}

}  // namespace

CommandSyntax top_syntax() { return syntax_of(top_text, add_top_options); }

int run_top(const Arguments& arguments) {
  TopOptions options;
  const auto app = make_app(top_text);
  add_top_options(*app, options);
  if (const auto code = parse_arguments(*app, arguments)) return *code;
  const auto interval = parse_duration(options.interval);
  if (!interval.ok()) return usage_error(top_text.name, "--interval: " + interval.status().message());
  if (*interval < 10 * millisecond) return usage_error(top_text.name, "--interval: at least 10ms");
  Sink sink(options.results);
  if (auto opened = sink.open(true); !opened.ok()) return failed(top_text, opened);
  Readings readings;
  // The first frame cannot show rates, because they are computed from two frames. With --once, only the second frame is shown.
  for (bool first = true;; first = false) {
    const auto scan_entries = scan_records(options.sources);
    if (!scan_entries.ok()) return first ? usage_error(top_text.name, scan_entries.status().message()) : 1;
    const auto frame = frame_of(*scan_entries, readings);
    const bool shown = !options.once || !first;
    if (shown) {
      if (auto written = show(options, frame, sink); !written.ok()) return failed(top_text, written);
    }
    if (shown && options.once) return frame.groups.empty() ? 1 : 0;
    pause_for(*interval);
  }
}

}  // namespace unisono::cli
