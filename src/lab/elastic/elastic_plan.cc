#include "lab/elastic/elastic_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <vector>

#include "base/option_text.h"
#include "cli/common/option_values.h"
#include "cli/common/progress.h"
#include "cli/common/text.h"
#include "cli/common/threads.h"
#include "cli/launch/thin_links.h"
#include "lab/common/option_words.h"

namespace unisono::lab {

using cli::add_choice;
using cli::add_output_options;
using cli::check_progress;
using cli::check_word;
using cli::CommandLineText;
using cli::first_wrong;
using cli::invalid;
using cli::jobs_max;
using cli::parse_duration;
using cli::parse_number;
using cli::parse_rate;
using cli::progress_names;
using cli::set_number;
using cli::set_time;
using cli::shell_quote;

const CommandLineText elastic_text{.name = "unisono-lab simulate elastic",
                                   .usage = "unisono-lab simulate elastic [OPTIONS]",
                                   .description =
                                       "Runs elastic runs in virtual time: whole peers, with the code that ships, average by "
                                       "Moshpit All-Reduce over virtual links "
                                       "while some are absent, or come\n"
                                       "and go. Every round of every group is computed again from what its members "
                                       "contributed, and compared with what each of them holds "
                                       "afterwards. Prints how long averaging steps\n"
                                       "took, how many were exact, the outcomes of rounds, what was sent, and what was wrong.",
                                   .footer = R"(Examples:
  unisono-lab simulate elastic                                        64 peers, 20 averaging steps, no peer absent
  unisono-lab simulate elastic --peers 256 --absence 0.01 --plot elastic.svg
  unisono-lab simulate elastic --churn period=5s,kill=1 --seeds 0-9   ten runs; an event every 5 s; peers are killed
  unisono-lab simulate churn-trace --stop 0.2 | unisono-lab simulate elastic --trace -
  unisono-lab simulate elastic --peers 16 --elements 1000000 --rate 100M --delay 20ms --times wan

--trace: a line for each event, with seconds, number of the peer, and join, leave, kill, stop or continue. --churn
draws such a trace for each seed, by period=20s,min=N,duration=10m,law=regular|poisson,kill=0.5,stop=0, which mean
what they do for 'unisono-lab simulate churn-trace'. With either, a run goes on to the end of its trace, unless
--averaging-steps says how many it makes.

An averaging step is exact if its mean has the values of every peer. All times but that of --progress are virtual. The
same seed and build give the same run.

Exit code: 0; 1 if a round was wrong, a peer could not join, a run did not come to its end within --limit, or a file
cannot be read or written; 2 for a wrong command line or trace.)"};

namespace {

constexpr uint32_t usual_peers = 64;
constexpr uint64_t usual_steps = 20, steps_limit = 10'000'000, elements_limit = 16'777'216, seeds_limit = 10'000;
constexpr uint64_t max_group_least = 4, max_group_limit = 128, rounds_limit = 64;

const std::vector<std::string> grid_words{"fitted", "published", "chunk_keys"}, times_words{"lan", "wan"};

Status set_churn(const std::string& text, sim::ChurnPlan& churn) {
  using option_text::set_number;
  using Plan = sim::ChurnPlan;
  using View = std::string_view;
  const auto time = [](Nanos Plan::*field) {
    return [field](Plan& plan, View key, View value) {
      const auto parsed = parse_duration(value);
      if (!parsed.ok()) return option_text::wrong(fmt::format("{}={}: {}", key, value, parsed.status().message()));
      plan.*field = *parsed;
      return Status();
    };
  };
  const auto share = [](double Plan::*field) {
    return [field](Plan& plan, View key, View value) { return set_number(plan.*field, key, value); };
  };
  const std::vector<option_text::Option<Plan>> all{
      {"period", time(&Plan::period)},
      {"duration", time(&Plan::duration)},
      {"kill", share(&Plan::kill_share)},
      {"stop", share(&Plan::stop_share)},
      {"min", [](Plan& plan, View key, View value) { return set_number(plan.peers_min, key, value); }},
      {"law", [](Plan& plan, View key, View value) {
         return option_text::set_choice(plan.law, key, value, std::array{"regular", "poisson"});
       }}};
  auto status = option_text::set_options(churn, text, all, "period=5s");
  if (status.ok()) status = churn.check();
  return status.ok() ? status : invalid(fmt::format("--churn {}: {}", text, status.message()));
}

// Returns the smallest number of peers that are at work at any time after the joins at time 0. The result is at least 1.
uint32_t fewest_running(const sim::ChurnTrace& trace) {
  size_t at = 0;
  while (at < trace.events.size() && trace.events[at].at == 0 && trace.events[at].action == sim::ChurnAction::join) ++at;
  std::set<uint32_t> stopped;
  uint64_t there = at, fewest = at;
  for (; at < trace.events.size(); ++at) {
    const auto& event = trace.events[at];
    if (event.action == sim::ChurnAction::join) ++there;
    else if (event.action == sim::ChurnAction::stop) stopped.insert(event.peer);
    else stopped.erase(event.peer), there -= event.action == sim::ChurnAction::resume ? 0 : 1;
    fewest = std::min(fewest, there - stopped.size());
  }
  return static_cast<uint32_t>(std::max<uint64_t>(1, fewest));
}

// peers: how many different peers the run has. start_peers: the first averaging step begins when this many peers have joined.
struct PeerCounts {
  uint32_t peers = 0, start_peers = 0;
};
Status set_peers(const ElasticOptionTexts& words, std::string_view trace, ElasticPlan& plan, PeerCounts& counts) {
  if (!words.trace.empty() && !words.churn.empty())
    return invalid("--trace and --churn both set which peers come and go: give one of them");
  if (!words.trace.empty()) {
    if (!words.peers.empty()) return invalid("--peers cannot be set with --trace, which lists the peers");
    auto parsed = sim::ChurnTrace::parse(trace);
    if (!parsed.ok()) return invalid(fmt::format("--trace {}, {}", words.trace, parsed.status().message()));
    if (parsed->events.empty()) return invalid(fmt::format("--trace {}: no peer joins", words.trace));
    plan.study.trace = *std::move(parsed);
    std::set<uint32_t> names;
    for (const auto& event : plan.study.trace.events) names.insert(event.peer);
    counts = {.peers = static_cast<uint32_t>(names.size()), .start_peers = fewest_running(plan.study.trace)};
    plan.study.until = plan.study.trace.events.back().at;
    return {};
  }
  counts.peers = usual_peers;
  if (auto status = words.peers.empty() ? Status() : set_number(counts.peers, "--peers", words.peers, 1, sim::churn_peers_max);
      !status.ok())
    return status;
  plan.study.peers = counts.start_peers = counts.peers;
  if (words.churn.empty()) return {};
  sim::ChurnPlan churn{.peers = counts.peers, .peers_min = (counts.peers + 1) / 2};
  if (auto status = set_churn(words.churn, churn); !status.ok()) return status;
  counts.start_peers = churn.peers_min;
  plan.churn = churn;
  plan.study.until = churn.duration;
  return {};
}

Status set_links(const ElasticOptionTexts& words, sim::ElasticClusterOptions& cluster) {
  if (!words.rate.empty()) {
    const auto rate = parse_rate(words.rate);
    if (!rate.ok()) return rate.status();
    cluster.links.bytes_per_second = static_cast<double>(*rate) / 8;
  }
  return first_wrong({set_time(cluster.links.delay, "--delay", words.delay, 0, 60 * second),
                      set_time(cluster.links.jitter, "--jitter", words.jitter, 0, 60 * second)});
}

Status set_settings(const ElasticOptionTexts& words, const PeerCounts& counts, MoshpitSettings& settings) {
  settings.run_id = "simulated";
  settings.times = words.times == "wan" ? ElasticTimes::wan() : ElasticTimes::lan();
  settings.grid = static_cast<GridKind>(std::ranges::find(grid_words, words.grid) - grid_words.begin());
  settings.min_peers = counts.start_peers;
  const bool begins_with_all = words.trace.empty() && words.churn.empty();
  if (auto status = first_wrong(
          {check_word("--grid", words.grid, grid_words), check_word("--times", words.times, times_words),
           set_number(settings.max_group, "--max-group", words.max_group, max_group_least, max_group_limit),
           set_number(settings.rounds, "--rounds", words.rounds, 0, rounds_limit),
           set_number(settings.elements, "--elements", words.elements, 1, elements_limit),
           set_number(settings.max_peers, "--max-peers", words.max_peers, 1, sim::churn_peers_max),
           words.min_peers.empty() ? Status()
                                   : set_number(settings.min_peers, "--min-peers", words.min_peers, 1, counts.peers)});
      !status.ok())
    return status;
  if (begins_with_all && counts.peers > settings.max_peers)
    return invalid(fmt::format("--peers {} are more than --max-peers {}", counts.peers, settings.max_peers));
  if (settings.min_peers > settings.max_peers)
    return invalid(fmt::format("the run waits for {} before it begins, which is more than --max-peers {}",
                               plural(settings.min_peers, "peer"), settings.max_peers));
  return {};
}

Status set_seeds(const std::string& typed, sim::SeedRange& seeds) {
  const auto parsed = sim::parse_seeds(typed);
  if (!parsed.ok() || parsed->last - parsed->first >= seeds_limit)
    return invalid(fmt::format("--seeds '{}': expected one, or a range as in 0-9, of at most {}", typed, seeds_limit));
  seeds = *parsed;
  return {};
}

// Returns the command that repeats a run. It contains all options that differ from their defaults, except seeds, output files,
// and options that do not influence a run.
std::string command_of(const ElasticOptionTexts& words) {
  struct Given {
    const char* name;
    std::string ElasticOptionTexts::*value;
  };
  constexpr Given all[] = {{"--peers", &ElasticOptionTexts::peers},
                           {"--averaging-steps", &ElasticOptionTexts::steps},
                           {"--absence", &ElasticOptionTexts::absence},
                           {"--away", &ElasticOptionTexts::away},
                           {"--trace", &ElasticOptionTexts::trace},
                           {"--churn", &ElasticOptionTexts::churn},
                           {"--max-group", &ElasticOptionTexts::max_group},
                           {"--rounds", &ElasticOptionTexts::rounds},
                           {"--grid", &ElasticOptionTexts::grid},
                           {"--times", &ElasticOptionTexts::times},
                           {"--min-peers", &ElasticOptionTexts::min_peers},
                           {"--max-peers", &ElasticOptionTexts::max_peers},
                           {"--elements", &ElasticOptionTexts::elements},
                           {"--compute", &ElasticOptionTexts::compute},
                           {"--compute-jitter", &ElasticOptionTexts::compute_jitter},
                           {"--delay", &ElasticOptionTexts::delay},
                           {"--jitter", &ElasticOptionTexts::jitter},
                           {"--rate", &ElasticOptionTexts::rate},
                           {"--limit", &ElasticOptionTexts::limit}};
  const ElasticOptionTexts usual;
  std::string text = elastic_text.name;
  for (const auto& each : all) {
    if (words.*each.value != usual.*each.value) text += fmt::format(" {} {}", each.name, shell_quote(words.*each.value));
  }
  return text;
}

}  // namespace

void add_elastic_options(CLI::App& app, ElasticOptionTexts& o) {
  app.add_option("-n,--peers", o.peers, "peers at the beginning, 1 to 4096 [64]")->type_name("N");
  app.add_option("--averaging-steps", o.steps, "averaging steps of the run [20; with a trace: until its end]")->type_name("N");
  app.add_option("-p,--absence", o.absence, "chance that a peer stops in a round, at a random moment of it [0]")
      ->type_name("SHARE");
  app.add_option("--away", o.away, "how long an absent peer stops [3s]")->type_name("TIME");
  app.add_option("-t,--trace", o.trace, "file that says which peers come and go, and when; - reads standard input")
      ->type_name("FILE");
  app.add_option("-c,--churn", o.churn, "draw such a trace for each seed, as by period=20s,min=32,duration=10m,kill=0.5")
      ->type_name("SETTINGS");
  app.add_option("-m,--max-group", o.max_group, "peers of a group, 4 to 128 [32]")->type_name("N");
  app.add_option("--rounds", o.rounds, "rounds of an averaging step; 0: one along each axis of the grid [0]")->type_name("N");
  add_choice(
      app, o.grid,
      {.names = "--grid", .value = "KIND", .meaning = "which peers form a group", .words = grid_words, .fallback = "fitted"});
  add_choice(app, o.times,
             {.names = "--times",
              .value = "PROFILE",
              .meaning = "how long peers wait for each other",
              .words = times_words,
              .fallback = "lan"});
  app.add_option("--min-peers", o.min_peers,
                 "peers that join before the first averaging step [all; with a trace: as many as run at any time]")
      ->type_name("N");
  app.add_option("--max-peers", o.max_peers, "most peers that the run takes [4096]")->type_name("N");
  app.add_option("-e,--elements", o.elements, "fp32 numbers of each peer, up to 16777216 [1024]")->type_name("N");
  app.add_option("--compute", o.compute, "a peer's time between two averaging steps [100ms]")->type_name("TIME");
  app.add_option("--compute-jitter", o.compute_jitter, "largest random addition to --compute [0]")->type_name("TIME");
  app.add_option("--delay", o.delay, "delay of a link, one way [100us]")->type_name("TIME");
  app.add_option("--jitter", o.jitter, "largest random addition to --delay [0]")->type_name("TIME");
  app.add_option("--rate", o.rate, "rate of each peer's line, each way, in bits/s, as 100M or 1G [unlimited]")
      ->type_name("RATE");
  app.add_option("--limit", o.limit, "most virtual time for the run, counted from the end of its trace if there is one [1h]")
      ->type_name("TIME");
  app.add_option("-s,--seeds", o.seeds, "one seed or a range [0]")->type_name("N|A-B");
  app.add_option("--plot", o.plot, "draw averaging steps and peers over virtual time there, as SVG")->type_name("FILE");
  add_output_options(app, o.results);
  app.add_option("-j,--jobs", o.jobs, "number of seeds run at the same time [1]")->type_name("N");
  add_choice(
      app, o.progress,
      {.names = "--progress", .value = "STYLE", .meaning = "on standard error", .words = progress_names(), .fallback = "auto"});
}

sim::ElasticStudyOptions ElasticPlan::study_of(uint64_t seed) const {
  auto options = study;
  options.cluster.seed = seed;
  if (churn) {
    auto drawn = *churn;
    drawn.seed = seed;
    options.trace = *sim::make_churn(drawn);  // cannot fail, because make_elastic_plan() has checked `churn`
  }
  return options;
}

Result<ElasticPlan> make_elastic_plan(const ElasticOptionTexts& words, std::string_view trace) {
  ElasticPlan plan;
  auto& study = plan.study;
  PeerCounts counts;
  if (auto status = set_peers(words, trace, plan, counts); !status.ok()) return status;
  auto absence = parse_number("--absence", words.absence, 0, 1);
  if (absence.ok() && *absence == 1) absence = invalid("--absence 1: then no peer is ever there; expected a share below 1");
  if (auto status =
          first_wrong({set_settings(words, counts, study.cluster.settings), set_links(words, study.cluster), absence.status(),
                       set_time(study.away, "--away", words.away, millisecond, timeout_max),
                       set_time(study.cluster.compute, "--compute", words.compute, microsecond, timeout_max),
                       set_time(study.cluster.compute_jitter, "--compute-jitter", words.compute_jitter, 0, timeout_max),
                       set_time(study.limit, "--limit", words.limit, second, timeout_max), set_seeds(words.seeds, plan.seeds),
                       set_number(plan.jobs, "--jobs", words.jobs, 1, jobs_max), check_progress(words.progress)});
      !status.ok())
    return status;
  study.absence = *absence;
  study.steps = usual_steps;
  plan.whole_trace = words.steps.empty() && study.until > 0;
  if (plan.whole_trace) study.steps = 1, study.limit += study.until;
  else study.until = 0;
  if (auto status = words.steps.empty() ? Status() : set_number(study.steps, "--averaging-steps", words.steps, 1, steps_limit);
      !status.ok())
    return status;
  if (auto status = sim::check(study); !status.ok()) return invalid(status.message());
  plan.grid = words.grid;
  plan.times = words.times;
  plan.repeat_command = command_of(words);
  plan.plot = words.plot;
  plan.results = words.results;
  plan.progress = words.progress;
  return plan;
}

}  // namespace unisono::lab
