// `unisono simulate` runs virtual processes over virtual links, once per seed.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <iterator>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>

#include "cli/bench/bench_plan.h"
#include "cli/common/command_line.h"
#include "cli/common/commands.h"
#include "cli/common/monotonic.h"
#include "cli/common/option_values.h"
#include "cli/common/progress.h"
#include "cli/common/result_writer.h"
#include "cli/common/text.h"
#include "cli/common/threads.h"
#include "schedules/make.h"
#include "sim/settings_text.h"

namespace unisono::cli {
namespace {

const CommandLineText simulate_text{
    .name = "unisono simulate",
    .usage = "unisono simulate [SCENARIO] [OPTIONS]",
    .description =
        "Runs the library's own engine in many virtual processes, in virtual time, with faults chosen by seed, and checks\n"
        "every result: values, errors, deadlines, memory. The same seed and build give the same bytes on every wire.\n\n"
        "Scenarios: all-reduce (one over all processes), random (random programs of all collectives), wrong (programs in\n"
        "which one process makes an error), reform (processes die or stop, the others re-form the group and continue).\n"
        "Studies of methods are in the second tool: 'unisono-lab simulate'.",
    .footer = R"(Examples:
  unisono simulate all-reduce --peers 64 --seeds 0-9999         ten thousand clusters with mixed faults
  unisono simulate random --seeds 0-999 --faults kill           processes die while they do anything
  unisono simulate all-reduce --peers 1024 --bytes 1M --faults none --seeds 0
  unisono simulate random --faults stop --seeds 16 --trace run.txt   every frame of one run, a line each

Fault profiles: none; light (slow processes, a little packet loss); heavy (much loss, links that break); kill; stop
(for a while); partition; mixed (any of them, by seed); links (connections that are reset and made anew, hosts that
are cut off for a while).

A failing seed is printed with the command that runs it again. Exit code: 0 if every seed passed; 1 if one failed, or
a file cannot be written; 2 for a wrong command line.)"};

struct SimulateOptions {
  std::string scenario = "all-reduce";
  std::string seeds = "0-99";
  std::string peers = "0";
  std::string bytes = "64K";
  std::string faults = "mixed";
  std::string schedule = "auto";
  std::string order = "auto";
  std::string dtype = "f32";
  std::string op = "sum";
  std::string slice;
  std::string trace;
  std::string progress = "auto";
  uint32_t ranks_per_host = 1;
  uint32_t message_us = 0;
  uint64_t fail_send = 0, fail_receive = 0, fail_credit = 0, fail_acquire = 0;
  uint32_t jobs = 1;
  uint32_t failures_max = 20;
  OutputOptions results;
};

// The same limits as those of sim::parse_settings(), so that the printed command runs a seed again.
constexpr uint64_t peers_max = 8192, bytes_max = uint64_t{1} << 32, slice_bytes_max = 16u << 20;

template <typename E>
std::vector<std::string> names_until(E last) {
  std::vector<std::string> names;
  for (int i = 0; i <= static_cast<int>(last); ++i) names.emplace_back(name(static_cast<E>(i)));
  return names;
}

std::vector<std::string> all_reduce_schedules() {
  std::vector<std::string> names{"auto"};
  for (const auto kind : kinds_of(unisono::Collective::all_reduce)) names.emplace_back(name(kind));
  return names;
}

void add_simulate_options(CLI::App& app, SimulateOptions& o) {
  set_choices(*app.add_option("scenario", o.scenario, "what the processes do [all-reduce]")->type_name(""),
              names_until(sim::ScenarioKind::reform));
  app.add_option("-s,--seeds", o.seeds, "one seed or a range [0-99]")->type_name("N|A-B");
  app.add_option("-n,--peers", o.peers, "virtual processes; 0: by seed, 2 to 9 [0]")->type_name("N");
  add_choice(app, o.faults,
             {.names = "--faults",
              .value = "PROFILE",
              .meaning = "profile of the injected faults",
              .words = names_until(sim::FaultProfile::mixed),
              .fallback = "mixed"});
  app.add_option("-b,--bytes", o.bytes, "all-reduce: size of the tensor [64K]")->type_name("SIZE");
  add_choice(app, o.dtype,
             {.names = "-d,--dtype",
              .value = "TYPE",
              .meaning = "element type of all-reduce",
              .words = dtype_names(),
              .fallback = "f32"});
  add_choice(
      app, o.op,
      {.names = "-o,--op", .value = "OP", .meaning = "operation of all-reduce", .words = reduce_op_names(), .fallback = "sum"});
  add_choice(app, o.order,
             {.names = "--order",
              .value = "ORDER",
              .meaning = "order of the additions of all-reduce; strict: rank order",
              .words = order_names(),
              .fallback = "auto"});
  add_choice(app, o.schedule,
             {.names = "--schedule",
              .value = "NAME",
              .meaning = "schedule of all-reduce",
              .words = all_reduce_schedules(),
              .fallback = "auto"});
  app.add_option("--slice", o.slice, "all-reduce: bytes of one slice [automatic]")->type_name("SIZE");
  app.add_option("--ranks-per-host", o.ranks_per_host, "all-reduce: how many ranks share a host [1]")->type_name("N");
  app.add_option(
         "--message-us", o.message_us,
         "cost of handing over a message, for the choice of schedules; if it is high, short sums relay messages [automatic]")
      ->type_name("N");
  app.add_option("--fail-send", o.fail_send, "the N-th frame sent cuts its link [none]")->type_name("N");
  app.add_option("--fail-receive", o.fail_receive, "the N-th frame that arrives cuts its link [none]")->type_name("N");
  app.add_option("--fail-credit", o.fail_credit, "the N-th request for send credit is refused [none]")->type_name("N");
  app.add_option("--fail-acquire", o.fail_acquire, "the N-th request for a slot is refused [none]")->type_name("N");
  app.add_option("--trace", o.trace, "write every frame to FILE; one seed only")->type_name("FILE");
  app.add_option("-j,--jobs", o.jobs, "seeds run at the same time [1]")->type_name("N");
  app.add_option("--max-failures", o.failures_max, "stop after so many failing seeds [20]")->type_name("N");
  add_choice(
      app, o.progress,
      {.names = "--progress", .value = "STYLE", .meaning = "on standard error", .words = progress_names(), .fallback = "auto"});
  add_output_options(app, o.results, "--output");
}

Result<sim::SettingsLine> make_line(const SimulateOptions& o) {
  sim::SettingsLine line;
  auto& s = line.settings;
  const auto kind = sim::parse_scenario_kind(o.scenario);
  const auto seeds = sim::parse_seeds(o.seeds);
  const auto peers = parse_between("--peers", o.peers, 0, peers_max);
  const auto bytes = parse_bytes_up_to("--bytes", o.bytes, bytes_max);
  const auto slice = parse_bytes_up_to("--slice", o.slice.empty() ? "0" : o.slice, slice_bytes_max);
  const auto faults = of_option("--faults", sim::parse_fault_profile(o.faults));
  const auto schedule = of_option("--schedule", parse_schedule(o.schedule));
  const auto order = of_option("--order", parse_order(o.order));
  const auto dtype = of_option("--dtype", parse_dtype(o.dtype));
  const auto op = of_option("--op", parse_reduce_op(o.op));
  for (const auto& status : {kind.status(), seeds.status(), peers.status(), bytes.status(), slice.status(), faults.status(),
                             schedule.status(), order.status(), dtype.status(), op.status(), check_progress(o.progress)}) {
    if (!status.ok()) return status;
  }
  if (!o.trace.empty() && seeds->first != seeds->last) return Status(Code::invalid, "--trace needs one seed, as in --seeds 17");
  line.seeds = *seeds;
  s.kind = *kind;
  s.peers = static_cast<uint32_t>(*peers);
  s.bytes = *bytes;
  s.slice_bytes = *slice;
  s.faults = *faults;
  s.schedule = *schedule;
  s.order = *order;
  s.dtype = *dtype;
  s.op = *op;
  s.ranks_per_host = std::max(1u, o.ranks_per_host);
  s.message_us = o.message_us;
  s.fail_send = o.fail_send;
  s.fail_receive = o.fail_receive;
  s.fail_credit = o.fail_credit;
  s.fail_acquire = o.fail_acquire;
  return line;
}

std::string replay_command(sim::SettingsLine line, uint64_t seed) {
  line.seeds = {seed, seed};
  return "unisono simulate " + sim::to_text(line);
}

// Sums over the runs with all seeds.
struct Totals {
  uint64_t seeds = 0, failed = 0;
  uint64_t operations_ok = 0, frames = 0, bytes = 0, events = 0;
  std::map<Code, uint64_t> errors;
  std::map<std::string, uint64_t> schedules;
  std::vector<Nanos> virtual_times;
  uint64_t hash = 0;  // the hash of the trace of the run with the last seed

  void add(const sim::Outcome& o) {
    ++seeds;
    failed += !o.problems.empty();
    operations_ok += o.operations_ok;
    frames += o.network.frames;
    bytes += o.network.bytes;
    events += o.events;
    for (const auto& [code, count] : o.errors) errors[code] += count;
    if (!o.schedule.empty()) ++schedules[o.schedule];
    virtual_times.push_back(o.virtual_time);
    hash = o.trace_hash;
  }
  Nanos virtual_time(double part) const {
    return virtual_times.empty() ? 0 : virtual_times[static_cast<size_t>(part * static_cast<double>(virtual_times.size() - 1))];
  }
};

constexpr double shown_parts[] = {0, 0.5, 0.9, 0.99, 1};
constexpr const char* shown_names[] = {"min", "p50", "p90", "p99", "max"};

std::string table(const Totals& t, Nanos elapsed) {
  std::string text = fmt::format("\n{:<22} {} passed, {} failed\n{:<22} {} ok", "seeds", t.seeds - t.failed, t.failed,
                                 "operations", t.operations_ok);
  for (const auto& [code, count] : t.errors) text += fmt::format(", {} {}", count, name(code));
  text += fmt::format("\n{:<22}", "virtual time");
  for (size_t i = 0; i < std::size(shown_parts); ++i)
    text += fmt::format(" {} {}{}", shown_names[i], format_duration(t.virtual_time(shown_parts[i])),
                        i + 1 < std::size(shown_parts) ? "," : "");
  text += fmt::format("\n{:<22} {} ({})\n{:<22} {}\n", "frames", t.frames, format_bytes(t.bytes), "events", t.events);
  if (t.schedules.size() == 1) text += fmt::format("{:<22} {}\n", "schedule", t.schedules.begin()->first);
  if (t.seeds == 1) text += fmt::format("{:<22} {:016x}\n", "trace hash", t.hash);
  return text + fmt::format("{:<22} {}\n", "real time", format_duration(elapsed));
}

std::string json_totals(const Totals& t, Nanos elapsed) {
  nlohmann::json j{{"seeds", t.seeds},   {"failed", t.failed}, {"operations_ok", t.operations_ok},
                   {"frames", t.frames}, {"bytes", t.bytes},   {"events", t.events},
                   {"real_ns", elapsed}};
  for (const auto& [code, count] : t.errors) j["errors"][name(code)] = count;
  for (size_t i = 0; i < std::size(shown_parts); ++i) j["virtual_ns"][shown_names[i]] = t.virtual_time(shown_parts[i]);
  if (t.seeds == 1) j["trace_hash"] = fmt::format("{:016x}", t.hash);
  return j.dump() + "\n";
}

std::string json_failure(const sim::Outcome& o, const std::string& command) {
  return nlohmann::json{{"seed", o.seed}, {"faults", o.plan}, {"problems", o.problems}, {"replay", command}}.dump() + "\n";
}

std::string failure_text(const sim::Outcome& o, const std::string& command) {
  constexpr size_t shown_max = 5;
  std::string text = fmt::format("seed {} failed ({}):\n", o.seed, o.plan);
  for (size_t i = 0; i < std::min(o.problems.size(), shown_max); ++i) text += "  " + o.problems[i] + "\n";
  if (o.problems.size() > shown_max) text += fmt::format("  and {} more\n", o.problems.size() - shown_max);
  return text + "  again: " + command + "\n";
}

ProgressStyle progress_style(const std::string& text) {
  if (text == "bar") return ProgressStyle::bar;
  if (text == "lines") return ProgressStyle::lines;
  return text == "off" ? ProgressStyle::off : progress_style_of(stderr);
}

// Runs the simulation once for each seed, on several threads. Each run uses only one thread, so its outcome does not depend on
// the number of threads.
class Campaign {
 public:
  Campaign(const sim::SettingsLine& line, const SimulateOptions& options, Sink& sink)
      : line_(line),
        options_(options),
        sink_(sink),
        count_(line.seeds.last - line.seeds.first + 1),
        progress_(
            {.label = "simulate", .total = count_, .style = progress_style(options.progress), .width = 80, .stream = stderr},
            monotonic_now()) {}

  Totals run(std::string* trace) {
    // A trace is allowed only if there is a single seed, and a single seed runs on one thread. So two threads never write to
    // `trace`.
    on_threads(std::min<uint64_t>(std::clamp(options_.jobs, 1u, jobs_max), count_), [&] { work(trace); });
    progress_.clear();
    std::sort(totals_.virtual_times.begin(), totals_.virtual_times.end());
    return std::move(totals_);
  }

 private:
  void work(std::string* trace) {
    for (uint64_t at; (at = next_++) < count_;) {
      const auto outcome = sim::run_scenario(line_.settings, line_.seeds.first + at, trace);
      const std::lock_guard lock(mutex_);
      if (totals_.failed >= options_.failures_max) return;
      totals_.add(outcome);
      if (!outcome.problems.empty()) {
        progress_.clear();
        const auto command = replay_command(line_, outcome.seed);
        sink_.table(failure_text(outcome, command));
        sink_.json(json_failure(outcome, command));
      }
      progress_.update(totals_.seeds, fmt::format("{} failed", totals_.failed), monotonic_now());
    }
  }

  const sim::SettingsLine& line_;
  const SimulateOptions& options_;
  Sink& sink_;
  uint64_t count_;
  std::atomic<uint64_t> next_{0};
  std::mutex mutex_;
  Totals totals_;
  Progress progress_;
};

}  // namespace

CommandSyntax simulate_syntax() { return syntax_of(simulate_text, add_simulate_options); }

int run_simulate(const Arguments& arguments) {
  SimulateOptions options;
  const auto app = make_app(simulate_text);
  add_simulate_options(*app, options);
  if (const auto code = parse_arguments(*app, arguments)) return *code;
  const auto line = make_line(options);
  if (!line.ok()) return usage_error(simulate_text.name, line.status().message());
  const OutputFile traced{"--trace", options.trace};
  Sink sink(options.results);
  if (auto status = first_wrong({check_writable(traced), sink.open(true)}); !status.ok()) return failed(simulate_text, status);
  std::string trace;
  const auto started = monotonic_now();
  Campaign campaign(*line, options, sink);
  const auto totals = campaign.run(options.trace.empty() ? nullptr : &trace);
  const auto elapsed = monotonic_now() - started;
  sink.table(table(totals, elapsed));
  sink.json(json_totals(totals, elapsed));
  for (const auto& status : {options.trace.empty() ? Status() : write_output_file(traced, trace), sink.finish()}) {
    if (!status.ok()) return failed(simulate_text, status);
  }
  return totals.failed == 0 ? 0 : 1;
}

}  // namespace unisono::cli
