#include <fmt/format.h>

#include <optional>

#include "cli/bench/bench_fault_run.h"
#include "cli/bench/bench_options.h"
#include "cli/bench/bench_ranks.h"
#include "cli/bench/bench_results.h"
#include "cli/bench/bench_table.h"
#include "cli/common/commands.h"
#include "cli/common/monotonic.h"
#include "cli/common/option_values.h"
#include "cli/common/progress.h"
#include "cli/common/result_writer.h"
#include "cli/common/text.h"
#include "cli/launch/link_emulator.h"

namespace unisono::cli {
namespace {

int failed(const Group& group, const std::string& what, const Status& status) {
  return bench_failed(bench_text.name, group, what, status);
}
int failed(const Status& status) { return bench_failed(bench_text.name, status); }

BenchFacts gather_facts(const Group& group, const BenchPlan& plan, Collective collective) {
  BenchFacts facts{.host = read_host_facts(),
                   .data = plan.run.data,
                   .call = plan.run.call,
                   .barrier = plan.run.barrier,
                   .across = plan.run.across,
                   .members = group.members(),
                   .impairment = plan.limits.to_string(),
                   .speeds = group.link_speeds()};
  facts.data.collective = collective;
  facts.data.world_size = group.world_size();
  return facts;
}

struct Session {
  Group& group;
  const BenchPlan& plan;
  const BenchOptions& options;
  std::optional<EmulatedRank>& emulated_rank;
  Sink& sink;
  Progress& progress;
  Nanos zero = 0;  // monotonic time at which the group was formed; set only if there is a link emulator
  size_t rows_done = 0;
  std::string lines = {};  // all JSON lines of rows so far; the plot is drawn from them

  void json(const std::string& text) {
    sink.json(text);
    if (sink.is_open() && !options.plot.empty()) lines += text;
  }
};

Result<Row> measure_row(Session& session, const BenchFacts& facts, uint64_t bytes) {
  Row row;
  const auto& collective = facts_of(facts.data.collective);
  auto run = session.plan.run;
  run.data = facts.data;
  const auto label = fmt::format("{} {}", collective.name, format_bytes(bytes));
  run.on_progress = [&](uint32_t, uint32_t, Nanos now) { session.progress.update(session.rows_done, label, now); };
  for (const bool in_place : {false, true}) {
    if (!(in_place ? collective.in_place : collective.out_of_place)) continue;
    if (!in_place && session.options.only_in_place && collective.in_place) continue;
    auto measured = measure(session.group, run, bytes, in_place);
    if (!measured.ok()) return Status(measured.status().code(), fmt::format("{}: {}", label, measured.status().message()));
    session.json(json_row(facts, *measured, in_place));
    (in_place ? row.in_place : row.out_of_place) = *std::move(measured);
  }
  return row;
}

int run_collective(Session& session, Collective collective) {
  const auto facts = gather_facts(session.group, session.plan, collective);
  session.sink.table(table_head(facts) + row_head(facts));
  if (session.rows_done == 0) session.json(json_facts(facts));
  std::vector<Row> rows;
  auto sizes = session.plan.sizes;
  if (collective == Collective::barrier) sizes = {0};
  for (const auto bytes : sizes) {
    auto row = measure_row(session, facts, bytes);
    session.progress.clear();
    if (!row.ok()) return failed(session.group, std::string(facts_of(collective).name), row.status());
    session.sink.table(table_row(facts, *row));
    rows.push_back(*std::move(row));
    ++session.rows_done;
  }
  session.sink.table(table_foot(facts, rows));
  if (auto shown = show_links(session.plan.limits, session.emulated_rank, session.sink); !shown.ok())
    return failed(session.group, "links", shown);
  return wrong_values(rows) == 0 ? 0 : 1;
}

int run_collectives(Session& session) {
  for (const auto collective : session.plan.collectives) {
    if (const int code = run_collective(session, collective); code != 0) return code;
  }
  if (!session.options.plot.empty() && session.group.rank() == 0) {
    const auto results = parse_results("this run", session.lines);
    const auto drawn = results.ok() ? plot_results(session.options.plot, *results, nullptr) : results.status();
    if (!drawn.ok()) return failed(session.group, "results", of_option("--plot", drawn));
  }
  return leave_bench(bench_text.name, session.group, session.sink);
}

// Runs the collective again and again while faults are injected. Rank 0 writes the table and the file. If rank 0 dies, the
// process that becomes the new rank 0 continues both.
int run_fault_run(Session& session) {
  const auto facts = gather_facts(session.group, session.plan, session.plan.collectives.front());
  const auto faults = arrange_faults(session.plan.faults, session.group.world_size());
  if (!faults.ok()) return usage_error(bench_text.name, faults.status().message());
  const bool in_place = session.options.only_in_place && facts_of(facts.data.collective).in_place;
  const FaultRunOptions options{.data = facts.data,
                                .call = session.plan.run.call,
                                .bytes = session.plan.sizes.front(),
                                .in_place = in_place,
                                .check = session.plan.run.checks > 0,
                                .reform = !session.options.no_reform,
                                .zero = session.zero,
                                .until = faults->back().at + session.plan.run.row_time,
                                .faults = faults->size(),
                                .failures_max = static_cast<uint32_t>(2 * faults->size() + 2)};
  session.sink.table(table_head(facts) + fault_run_head(options, *faults));
  session.sink.json(json_facts(facts));
  const auto show = [&](const std::string& line, const std::string& json) {
    if (!session.sink.is_open()) {
      if (auto opened = session.sink.open(false); !opened.ok()) failed(session.group, "results", opened);
    }
    session.sink.table(line);
    session.sink.json(json);
  };
  const FaultRunListener listener{
      .on_stretch = [&](const Stretch& stretch) { show(to_line(stretch), to_json(stretch)); },
      .on_fault = [&](const InjectedFault& injected, Nanos at) { show(to_line(injected, at), to_json(injected, at)); },
      .on_failure = [&](const Failure& failure) { show(to_line(failure), to_json(failure)); },
      .on_outcome = [&](const FaultRunOutcome& outcome) { show(to_line(outcome), to_json(outcome)); }};
  const auto self = session.group.rank();
  const auto end = run_with_faults(session.group, *session.emulated_rank, options, listener);
  if (!end.ok()) return failed(session.group, std::string(facts_of(facts.data.collective).name), end.status());
  if (*end == FaultRunEnd::excluded)
    fmt::print(stderr, "unisono bench: rank {} was stopped, and the others continued without it\n", self);
  if (*end != FaultRunEnd::continued) return *end == FaultRunEnd::excluded ? 0 : 1;
  if (auto shown = show_links(session.plan.limits, session.emulated_rank, session.sink); !shown.ok())
    return failed(session.group, "links", shown);
  return leave_bench(bench_text.name, session.group, session.sink);
}

int run_part(const BenchOptions& options, const BenchPlan& plan, Group& group, std::optional<EmulatedRank>& emulated_rank) {
  if (options.root >= group.world_size())
    return usage_error(bench_text.name, fmt::format("-r {}: there are {} ranks", options.root, group.world_size()));
  Sink sink(options.results);
  if (group.rank() == 0) {
    if (auto status = sink.open(true); !status.ok()) return failed(group, "results", status);
  }
  const auto style = group.rank() == 0 ? options.progress : "off";
  Progress progress(progress_options("bench", plan.collectives.size() * plan.sizes.size(), style), monotonic_now());
  Session session{group, plan, options, emulated_rank, sink, progress};
  if (emulated_rank) {
    const auto zero = emulated_rank->announce_formed();
    if (!zero.ok()) return failed(group, "start", zero.status());
    session.zero = *zero;
  }
  return plan.faults.empty() ? run_collectives(session) : run_fault_run(session);
}

int run_comparison(const BenchOptions& options) {
  const auto before = of_option("--compare", read_results(options.compare[0]));
  if (!before.ok()) return failed(before.status());
  const auto now = of_option("--compare", read_results(options.compare[1]));
  if (!now.ok()) return failed(now.status());
  const auto rows = compare_rows(*before, *now);
  fmt::print("{}", comparison_table(*before, *now, rows));
  if (rows.empty()) return failed(Status(Code::invalid, "the two files have no row in common"));
  if (!options.plot.empty()) {
    if (auto drawn = of_option("--plot", plot_results(options.plot, *before, &*now)); !drawn.ok()) return failed(drawn);
  }
  return fails(rows, options.fail_above) ? 1 : 0;
}

}  // namespace

CommandSyntax bench_syntax() { return syntax_of(bench_text, add_bench_options); }

int run_bench(const Arguments& arguments) {
  BenchOptions options;
  const auto app = make_app(bench_text);
  add_bench_options(*app, options);
  if (const auto code = parse_arguments(*app, arguments)) return *code;
  if (options.fail_above < 0 || (options.fail_above > 0 && options.compare.empty())) {
    return usage_error(bench_text.name,
                       options.fail_above < 0 ? "--fail-above is a ratio, such as 1.05" : "--fail-above needs --compare");
  }
  BenchRanks ranks{.name = bench_text.name,
                   .command = {"bench"},
                   .launch = options.launch,
                   .limits = {},
                   .faults = {},
                   .group = {},
                   .progress = options.progress,
                   .outputs = {{"--output", options.results.output}, {"--plot", options.plot}}};
  if (!options.compare.empty()) {
    const bool measures = ranks.asked() || !options.collectives.empty() || options.results != OutputOptions{};
    return measures ? usage_error(bench_text.name,
                                  "--compare measures nothing: omit the collective, -n, --hosts, --json and --output")
                    : run_comparison(options);
  }
  auto plan = make_bench_plan(options);
  if (!plan.ok()) return usage_error(bench_text.name, plan.status().message());
  ranks.limits = plan->limits;
  ranks.faults = plan->faults;
  ranks.group = plan->group;
  return run_bench_ranks(ranks, arguments, [&](Group& group, std::optional<EmulatedRank>& emulated_rank) {
    return run_part(options, *plan, group, emulated_rank);
  });
}

}  // namespace unisono::cli
