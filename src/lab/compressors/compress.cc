// `unisono-lab bench compress`: compares gradient compression methods on a group of ranks.
#include <fmt/format.h>

#include <algorithm>

#include "cli/bench/bench_table.h"
#include "cli/common/monotonic.h"
#include "cli/common/option_values.h"
#include "cli/common/progress.h"
#include "cli/common/result_writer.h"
#include "cli/common/version.h"
#include "lab/common/commands.h"
#include "lab/compressors/compress_run.h"

namespace unisono::lab {

using cli::Across;
using cli::Arguments;
using cli::bench_failed;
using cli::BenchFacts;
using cli::BenchRanks;
using cli::Collective;
using cli::CommandSyntax;
using cli::commit_text;
using cli::EmulatedRank;
using cli::json_facts;
using cli::leave_bench;
using cli::make_app;
using cli::monotonic_now;
using cli::of_option;
using cli::parse_arguments;
using cli::Progress;
using cli::progress_options;
using cli::read_host_facts;
using cli::run_bench_ranks;
using cli::show_links;
using cli::Sink;
using cli::syntax_of;
using cli::table_surroundings;
using cli::usage_error;
using cli::version_text;
using cli::write_svg;

namespace {

int failed(const Group& group, const std::string& what, const Status& status) {
  return bench_failed(compress_text.name, group, what, status);
}

BenchFacts facts_for(const Group& group, const CompressPlan& plan) {
  BenchFacts facts{.host = read_host_facts(),
                   .data = {.collective = Collective::all_reduce,
                            .dtype = DType::f32,
                            .op = ReduceOp::avg,
                            .world_size = group.world_size()},
                   .call = {.op = ReduceOp::avg},
                   .barrier = true,
                   .across = Across::mean,
                   .members = group.members(),
                   .impairment = plan.limits.to_string(),
                   .speeds = group.link_speeds()};
  return facts;
}

int run_rank(const CompressOptions& options, const CompressPlan& plan, Group& group,
             std::optional<EmulatedRank>& emulated_rank) {
  Sink sink(options.results);
  if (group.rank() == 0) {
    if (auto status = sink.open(true); !status.ok()) return failed(group, "results", status);
  }
  if (emulated_rank) {
    if (const auto zero = emulated_rank->announce_formed(); !zero.ok()) return failed(group, "start", zero.status());
  }
  Progress progress(progress_options("compress", turns_of(plan), group.rank() == 0 ? options.progress : "off"),
                    monotonic_now());
  const auto rows = measure_methods(
      group, plan, [&](uint64_t done, const std::string& what) { progress.update(done, what, monotonic_now()); });
  progress.clear();
  if (!rows.ok()) return failed(group, "measurement", rows.status());
  const auto facts = facts_for(group, plan);
  sink.json(json_facts(facts));
  sink.table(fmt::format("# unisono {} ({}): compress, world size {}\n", version_text, commit_text(), group.world_size()) +
             table_surroundings(facts) + compress_head(plan, *rows));
  for (const auto& row : *rows) {
    sink.table(compress_row(row, *rows));
    sink.json(compress_json(plan, row, *rows));
  }
  if (auto shown = show_links(plan.limits, emulated_rank, sink); !shown.ok()) return failed(group, "links", shown);
  if (!options.plot.empty() && group.rank() == 0) {
    if (auto drawn = of_option("--plot", write_svg(options.plot, compress_panels(*rows))); !drawn.ok())
      return failed(group, "results", drawn);
  }
  const bool alike = std::all_of(rows->begin(), rows->end(), [](const CompressRow& row) { return row.alike; });
  const int left = leave_bench(compress_text.name, group, sink);
  return alike ? left : 1;
}

}  // namespace

CommandSyntax compress_syntax() { return syntax_of(compress_text, add_compress_options); }

int run_compress(const Arguments& arguments) {
  CompressOptions options;
  const auto app = make_app(compress_text);
  add_compress_options(*app, options);
  if (const auto code = parse_arguments(*app, arguments)) return *code;
  const auto plan = make_compress_plan(options);
  if (!plan.ok()) return usage_error(compress_text.name, plan.status().message());
  BenchRanks ranks{.name = compress_text.name,
                   .command = {"bench", "compress"},
                   .launch = options.launch,
                   .limits = plan->limits,
                   .faults = {},
                   .group = {},
                   .progress = options.progress,
                   .outputs = {{"--output", options.results.output}, {"--plot", options.plot}}};
  ranks.group.timeout = plan->timeout;
  return run_bench_ranks(ranks, arguments, [&](Group& group, std::optional<EmulatedRank>& emulated_rank) {
    return run_rank(options, *plan, group, emulated_rank);
  });
}

}  // namespace unisono::lab
