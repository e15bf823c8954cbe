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

namespace unisono::cli {

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
  unisono-lab simulate elastic --churn period=5s,kill=1 --seeds 0-9   ten runs of 10 minutes, an event every 5 s; all that go are killed
  unisono-lab simulate churn-trace --stop 0.2 | unisono-lab simulate elastic --trace -
  unisono-lab simulate elastic --peers 16 --elements 1000000 --rate 100M --delay 20ms --times wan

--trace: a line for each event, with seconds, number of the peer, and join, leave, kill, stop or continue. --churn draws such a trace for each seed, by
period=20s,min=N,duration=10m,law=regular|poisson,kill=0.5,stop=0, which mean what they do for 'unisono-lab simulate churn-trace'. With either, a run goes on
to the end of its trace, unless --averaging-steps says how many it makes.

An averaging step is exact if its mean has the values of every peer. All times but that of --progress are virtual. The same seed and build give the same run.

Exit code: 0; 1 if a round was wrong, a peer could not join, a run did not come to its end within --limit, or a file cannot be read or written; 2 for a
wrong command line or trace.)"};

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

// At the least, from when those that begin the trace are there.
uint32_t fewest_at_work(const sim::ChurnTrace& trace) {
  size_t at = 0;
  while (at < trace.events.size() && trace.events[at].at == 0 && trace.events[at].action == sim::ChurnAction::join) ++at;
  std::set<uint32_t> stopped;
  uint64_t there = at, fewest = at;
  for (; at < trace.events.size(); ++at) {
    const auto& event = trace.events[at];
    if (event.action == sim::ChurnAction::join) ++there;
    else if (event.action == sim::ChurnAction::stop) stopped.insert(event.peer);
    else stopped.erase(event.peer), there -= event.action == sim::ChurnAction::go_on ? 0 : 1;
    fewest = std::min(fewest, there - stopped.size());
  }
  return static_cast<uint32_t>(std::max<uint64_t>(1, fewest));
}

// Which peers come and go, if any; how many there may be at once, and how many the run waits for before it begins.
struct Company {
  uint32_t peers = 0, waited_for = 0;
};
Status set_company(const ElasticWords& words, std::string_view trace, ElasticPlan& plan, Company& company) {
  if (!words.trace.empty() && !words.churn.empty()) return invalid("--trace and --churn both say who comes and goes");
  if (!words.trace.empty()) {
    if (!words.peers.empty()) return invalid("--peers cannot be set beside --trace, which names them");
    auto parsed = sim::ChurnTrace::parse(trace);
    if (!parsed.ok()) return invalid(fmt::format("--trace {}, {}", words.trace, parsed.status().message()));
    if (parsed->events.empty()) return invalid(fmt::format("--trace {}: no peer joins", words.trace));
    plan.study.trace = *std::move(parsed);
    std::set<uint32_t> names;
    for (const auto& event : plan.study.trace.events) names.insert(event.peer);
    company = {.peers = static_cast<uint32_t>(names.size()), .waited_for = fewest_at_work(plan.study.trace)};
    plan.study.until = plan.study.trace.events.back().at;
    return {};
  }
  company.peers = usual_peers;
  if (auto status = words.peers.empty() ? Status() : set_number(company.peers, "--peers", words.peers, 1, sim::churn_peers_max);
      !status.ok())
    return status;
  plan.study.peers = company.waited_for = company.peers;
  if (words.churn.empty()) return {};
  sim::ChurnPlan churn{.peers = company.peers, .peers_min = (company.peers + 1) / 2};
  if (auto status = set_churn(words.churn, churn); !status.ok()) return status;
  company.waited_for = churn.peers_min;
  plan.churn = churn;
  plan.study.until = churn.duration;
  return {};
}

Status set_links(const ElasticWords& words, sim::ElasticClusterOptions& cluster) {
  if (!words.rate.empty()) {
    const auto rate = parse_rate(words.rate);
    if (!rate.ok()) return rate.status();
    cluster.links.bytes_per_second = static_cast<double>(*rate) / 8;
  }
  return first_wrong({set_time(cluster.links.delay, "--delay", words.delay, 0, 60 * second),
                      set_time(cluster.links.jitter, "--jitter", words.jitter, 0, 60 * second)});
}

Status set_settings(const ElasticWords& words, const Company& company, MoshpitSettings& settings) {
  settings.run_id = "simulated";
  settings.times = words.times == "wan" ? ElasticTimes::wan() : ElasticTimes::lan();
  settings.grid = static_cast<GridKind>(std::ranges::find(grid_words, words.grid) - grid_words.begin());
  settings.min_peers = company.waited_for;
  const bool begins_with_all = words.trace.empty() && words.churn.empty();
  if (auto status = first_wrong(
          {check_word("--grid", words.grid, grid_words), check_word("--times", words.times, times_words),
           set_number(settings.max_group, "--max-group", words.max_group, max_group_least, max_group_limit),
           set_number(settings.rounds, "--rounds", words.rounds, 0, rounds_limit),
           set_number(settings.elements, "--elements", words.elements, 1, elements_limit),
           set_number(settings.max_peers, "--max-peers", words.max_peers, 1, sim::churn_peers_max),
           words.min_peers.empty() ? Status()
                                   : set_number(settings.min_peers, "--min-peers", words.min_peers, 1, company.peers)});
      !status.ok())
    return status;
  if (begins_with_all && company.peers > settings.max_peers)
    return invalid(fmt::format("--peers {} are more than --max-peers {}", company.peers, settings.max_peers));
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

// The command that repeats a run: the options that differ from their defaults. It omits seeds, output files, and options that
// change no run.
std::string command_of(const ElasticWords& words) {
  struct Given {
    const char* name;
    std::string ElasticWords::*value;
  };
  constexpr Given all[] = {{"--peers", &ElasticWords::peers},
                           {"--averaging-steps", &ElasticWords::steps},
                           {"--absence", &ElasticWords::absence},
                           {"--away", &ElasticWords::away},
                           {"--trace", &ElasticWords::trace},
                           {"--churn", &ElasticWords::churn},
                           {"--max-group", &ElasticWords::max_group},
                           {"--rounds", &ElasticWords::rounds},
                           {"--grid", &ElasticWords::grid},
                           {"--times", &ElasticWords::times},
                           {"--min-peers", &ElasticWords::min_peers},
                           {"--max-peers", &ElasticWords::max_peers},
                           {"--elements", &ElasticWords::elements},
                           {"--compute", &ElasticWords::compute},
                           {"--compute-jitter", &ElasticWords::compute_jitter},
                           {"--delay", &ElasticWords::delay},
                           {"--jitter", &ElasticWords::jitter},
                           {"--rate", &ElasticWords::rate},
                           {"--limit", &ElasticWords::limit}};
  const ElasticWords usual;
  std::string text = elastic_text.name;
  for (const auto& each : all) {
    if (words.*each.value != usual.*each.value) text += fmt::format(" {} {}", each.name, shell_quote(words.*each.value));
  }
  return text;
}

}  // namespace

void add_elastic_options(CLI::App& app, ElasticWords& o) {
  app.add_option("-n,--peers", o.peers, "peers at the beginning, 1 to 4096 [64]")->type_name("N");
  app.add_option("--averaging-steps", o.steps, "averaging steps of the run [20; with a trace: until its end]")->type_name("N");
  app.add_option("-p,--absence", o.absence, "chance that a peer stops in a round, at a random moment of it [0]")
      ->type_name("SHARE");
  app.add_option("--away", o.away, "how long it stops [3s]")->type_name("TIME");
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
                 "there before the first averaging step [all; with a trace: as many as are at work at any time]")
      ->type_name("N");
  app.add_option("--max-peers", o.max_peers, "most peers that the run takes [4096]")->type_name("N");
  app.add_option("-e,--elements", o.elements, "fp32 numbers of each peer, up to 16777216 [1024]")->type_name("N");
  app.add_option("--compute", o.compute, "a peer's time between two averaging steps [100ms]")->type_name("TIME");
  app.add_option("--compute-jitter", o.compute_jitter, "and as much more by chance [0]")->type_name("TIME");
  app.add_option("--delay", o.delay, "of links, one way [100us]")->type_name("TIME");
  app.add_option("--jitter", o.jitter, "and as much more by chance [0]")->type_name("TIME");
  app.add_option("--rate", o.rate, "of each peer's line, each way, in bits/s, as 100M or 1G [unlimited]")->type_name("RATE");
  app.add_option("--limit", o.limit, "most virtual time for the run, counted from the end of its trace if there is one [1h]")
      ->type_name("TIME");
  app.add_option("-s,--seeds", o.seeds, "one seed or a range [0]")->type_name("N|A-B");
  app.add_option("--plot", o.plot, "draw averaging steps and peers over virtual time there, as SVG")->type_name("FILE");
  app.add_option("-J,--json", o.json, "write JSON lines there; - writes them instead of the table")->type_name("FILE");
  app.add_option("-j,--jobs", o.jobs, "seeds run at the same time [1]")->type_name("N");
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
    options.trace = *sim::make_churn(drawn);  // make_elastic_plan has checked it
  }
  return options;
}

Result<ElasticPlan> make_elastic_plan(const ElasticWords& words, std::string_view trace) {
  ElasticPlan plan;
  auto& study = plan.study;
  Company company;
  if (auto status = set_company(words, trace, plan, company); !status.ok()) return status;
  const auto absence = parse_number("--absence", words.absence, 0, 1);
  if (auto status =
          first_wrong({set_settings(words, company, study.cluster.settings), set_links(words, study.cluster), absence.status(),
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
  plan.again = command_of(words);
  plan.plot = words.plot;
  plan.json = words.json;
  plan.progress = words.progress;
  return plan;
}

}  // namespace unisono::cli
