#include "cli/tune/tune_options.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/common/option_values.h"
#include "cli/common/progress.h"
#include "cli/launch/job_key.h"
#include "cli/launch/launch_links.h"

namespace unisono::cli {

const CommandLineText tune_text{
    .name = "unisono tune",
    .usage = "unisono tune [COLLECTIVE...] -n COUNT [OPTIONS]",
    .description =
        "Finds out which schedule, slices and TCP connections are quickest on these hosts, and writes what beats the cost "
        "model's choice "
        "to a file by which groups choose.\n\n"
        "Collectives: all-reduce, reduce-scatter, all-gather, broadcast, reduce; the first four if none is named.",
    .footer = R"(Examples:
  unisono tune -n 4                                    on this machine; writes unisono.tuning
  unisono tune --hosts a:2,b:2 -o /shared/job.tuning   on two hosts, also how many TCP connections
  UNISONO_TUNING=/shared/job.tuning unisono launch --hosts a:2,b:2 -- ./train

Without a file a group chooses by a cost model, from latencies and rates that it measures when it forms. This command
measures instead: for each collective and size it runs every schedule in turn, then slices with the quickest one. A
schedule that is quicker than the model's choice by more than --gain, in rounds whose middle halves do not overlap,
goes into the file; otherwise the model goes on choosing. Between several hosts it also tries numbers of connections,
by an all-reduce of the largest size, up to 16 MiB: it takes the smallest number that is about as quick as the best.

The file is text; docs/reference/cli.md says what its lines mean. Its entries are for groups of as many ranks, placed
on hosts in the same way, with the same transport; this command keeps entries for other groups. Schedules are taken
from rank 0's file, connections from each process's own.

Exit code: 0; 1 if an operation failed, a result was wrong or the file cannot be written; 2 for a wrong command line;
else as for 'unisono launch'.)"};

namespace {

constexpr size_t usual_collectives = 4;

// Returns the names of the collectives as users type them: with dashes.
std::vector<std::string> tuned_names() {
  std::vector<std::string> names;
  for (const auto collective : tuned_collectives) {
    names.emplace_back(unisono::name(collective));
    std::replace(names.back().begin(), names.back().end(), '_', '-');
  }
  return names;
}

Status set_collectives(const TuneOptions& options, TunePlan& plan) {
  auto names = options.collectives;
  const auto tuned = tuned_names();
  if (names.empty()) names.assign(tuned.begin(), tuned.begin() + usual_collectives);
  for (const auto& name : names) {
    const auto collective = parse_collective(name);
    if (!collective.ok()) return collective.status();
    if (!parse_tuned(facts_of(*collective).name))
      return invalid(fmt::format("{} is not tuned; these are: {}", name, fmt::join(tuned, ", ")));
    if (std::find(plan.collectives.begin(), plan.collectives.end(), *collective) != plan.collectives.end())
      return invalid(name + " is named twice");
    plan.collectives.push_back(*collective);
  }
  return {};
}

Status set_sizes(const TuneOptions& options, TunePlan& plan) {
  auto sizes = parse_sizes(options.sizes);
  if (!sizes.ok()) return sizes.status();
  plan.sizes = *std::move(sizes);
  std::sort(plan.sizes.begin(), plan.sizes.end());
  plan.sizes.erase(std::unique(plan.sizes.begin(), plan.sizes.end()), plan.sizes.end());
  return {};
}

Status set_streams(const TuneOptions& options, TunePlan& plan) {
  if (options.streams == "0") return {};
  for (const auto& word : split_list(options.streams)) {
    const auto count = parse_between("--streams", word, 1, tuned_streams_max);
    if (!count.ok()) return count.status();
    plan.streams.push_back(static_cast<uint32_t>(*count));
  }
  return {};
}

}  // namespace

std::optional<unisono::Collective> parse_tuned(std::string_view name) {
  for (const auto collective : tuned_collectives) {
    if (name == unisono::name(collective)) return collective;
  }
  return std::nullopt;
}

void add_tune_options(CLI::App& app, TuneOptions& options) {
  set_choices(*app.add_option("collective", options.collectives,
                              "what to tune; default: all-reduce, reduce-scatter, all-gather, broadcast")
                   ->type_name(""),
              tuned_names());
  app.add_option("-o,--output", options.output, "tuning file to write; its entries for other groups stay [unisono.tuning]")
      ->type_name("FILE");
  app.add_option("-b,--begin", options.sizes.begin, "smallest size [1K]")->type_name("SIZE");
  app.add_option("-e,--end", options.sizes.end, "largest size; its winner also serves larger ones [16M]")->type_name("SIZE");
  app.add_option("-f,--factor", options.sizes.factor, "factor from one size to the next [4]")->type_name("N");
  app.add_option("--sizes", options.sizes.list, "these sizes instead: 1K,64K,1M")->type_name("LIST");
  app.add_option("--streams", options.streams, "TCP connections per pair of hosts to try; 0: leave them alone [1,2,4]")
      ->type_name("LIST");
  app.add_option("--gain", options.gain, "least time saved for which a schedule replaces the model's choice [5]")
      ->type_name("PERCENT");
  app.add_option("--rounds", options.rounds, "rounds of measurement; each runs every trial once [5]")->type_name("N");
  app.add_option("--round-time", options.round_time, "time of one trial in one round, for at least ten calls [20ms]")
      ->type_name("TIME");
  add_choice(
      app, options.progress,
      {.names = "--progress", .value = "STYLE", .meaning = "on standard error", .words = progress_names(), .fallback = "auto"});
  add_link_options(app, options.launch.links);
  add_launch_options(app, options.launch);
}

Result<TunePlan> make_tune_plan(const TuneOptions& options) {
  TunePlan plan;
  for (const auto set : {set_collectives, set_sizes, set_streams}) {
    if (auto status = set(options, plan); !status.ok()) return status;
  }
  const auto gain = parse_number("--gain", options.gain, 0, 90);
  const auto limits = make_limits(options.launch);
  if (auto wrong =
          first_wrong({gain.status(), set_number(plan.rounds, "--rounds", options.rounds, 1, 1000),
                       set_time(plan.round_time, "--round-time", options.round_time, microsecond, 60 * second),
                       check_progress(options.progress), limits.status(), set_group_security(options.launch, plan.group)});
      !wrong.ok()) {
    return wrong;
  }
  if (options.output.empty() || options.output == "-")
    return invalid("--output: expected the name of a file, which may have entries of other groups already");
  plan.gain = *gain / 100;
  plan.limits = *limits;
  plan.group.transport = options.launch.transport;
  plan.group.interface = options.launch.interface;
  plan.group.timeout = Milliseconds(60'000);
  return plan;
}

}  // namespace unisono::cli
