#include "lab/averaging/averaging_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "cli/common/option_values.h"
#include "cli/common/progress.h"
#include "cli/common/text.h"
#include "cli/common/threads.h"
#include "lab/common/option_words.h"

namespace unisono::lab {

using cli::add_choice;
using cli::add_output_options;
using cli::check_progress;
using cli::CommandLineText;
using cli::first_wrong;
using cli::invalid;
using cli::jobs_max;
using cli::parse_between;
using cli::parse_number;
using cli::parse_word;
using cli::progress_names;
using cli::set_choices;
using cli::set_number;
using cli::split_list;

const CommandLineText averaging_text{.name = "unisono-lab simulate averaging",
                                     .usage = "unisono-lab simulate averaging [OPTIONS]",
                                     .description =
                                         "How many rounds do peers need until all hold the mean, if some are absent in each "
                                         "round? The averaging simulation of the authors of\n"
                                         "Moshpit SGD, with their random numbers: each peer holds a normal number, and the "
                                         "variance over all peers says how far they are from the mean.\n"
                                         "Prints rounds, what was sent until then, and the values of the formulae.",
                                     .footer = R"(Examples:
  unisono-lab simulate averaging                                      512 peers, four absences, seven algorithms
  unisono-lab simulate averaging --compare                            the authors' table, and 768 and 1024 peers
  unisono-lab simulate averaging --peers 600 --absence 0.002 --algorithm fitted,random --restarts 2000
  unisono-lab simulate averaging --absence 0,0.002,0.004,0.006,0.008,0.01 --plot averaging

Algorithms: all-reduce, of all peers at once, without effect if one is absent; gossip, with both neighbours on a ring;
sgp, stochastic gradient push as the authors coded it; random, groups drawn anew; published, their grid of M^d cells;
chunk-keys, the published rule of regrouping; fitted, Unisono's grid, fitted to the number of peers; fitted-mid-round,
the same if peers disappear after their group has formed. A grid is always shown beside random.

Seeds are 0, 1, …; one seed has the same inputs and absences for all algorithms. --plot PREFIX writes
PREFIX-variance.svg, the mean variance round by round, and PREFIX-absence.svg, the rounds over the absence.

Exit code: 0; 1 if a file cannot be written; 2 for a wrong command line.)"};

namespace {

using sim::AveragingAlgorithm;

constexpr uint64_t restarts_limit = 100'000, max_group_least = 4, max_group_limit = 128;
constexpr size_t list_limit = 64;
constexpr std::string_view usual_absences = "0,0.001,0.005,0.01", usual_targets = "1e-9,1e-4";
constexpr uint32_t usual_peers = 512, compared_peers[] = {512, 768, 900, 1024};

std::vector<std::string> algorithm_names() {
  std::vector<std::string> names;
  for (const auto each : sim::averaging_algorithms) names.emplace_back(sim::name(each));
  return names;
}

template <typename T>
void add_once(std::vector<T>& all, const T& value) {
  if (std::find(all.begin(), all.end(), value) == all.end()) all.push_back(value);
}

// Parses a comma-separated list and adds the value of each word to `values`, unless the value is already there. `parse` returns
// the value of a word, or an error.
template <typename T, typename Parse>
Status parse_list(std::vector<T>& values, std::string_view option, std::string_view list, const Parse& parse) {
  for (const auto& word : split_list(list)) {
    const auto value = parse(word);
    if (!value.ok()) return value.status();
    add_once(values, static_cast<T>(*value));
  }
  return values.size() <= list_limit ? Status()
                                     : invalid(fmt::format("{}: {} values; at most {}", option, values.size(), list_limit));
}

Result<AveragingAlgorithm> parse_algorithm(const std::string& typed) {
  const auto known = algorithm_names();
  auto word = typed;
  std::replace(word.begin(), word.end(), '_', '-');
  const auto index = parse_word("--algorithm", word, known);
  if (!index.ok()) return index.status();
  return sim::averaging_algorithms[*index];
}

Status set_algorithms(const AveragingOptions& o, std::vector<AveragingAlgorithm>& algorithms) {
  if (o.algorithms.empty()) {
    for (const auto each : sim::averaging_algorithms) {
      if (each != AveragingAlgorithm::fitted_mid_round) algorithms.push_back(each);
    }
    return {};
  }
  if (auto status = parse_list(algorithms, "--algorithm", o.algorithms, parse_algorithm); !status.ok()) return status;
  const bool has_grid =
      std::any_of(algorithms.begin(), algorithms.end(), [](auto each) { return each >= AveragingAlgorithm::published_grid; });
  if (has_grid) add_once(algorithms, AveragingAlgorithm::random_groups);
  std::sort(algorithms.begin(), algorithms.end());
  return {};
}

Status refuse_beside_compare(const AveragingOptions& o) {
  for (const auto& [name, text] :
       {std::pair{"--absence", &o.absences}, {"--algorithm", &o.algorithms}, {"--target", &o.targets}}) {
    if (o.compare && !text->empty())
      return invalid(fmt::format("{} cannot be set beside --compare, which takes the settings of the authors' table", name));
  }
  return {};
}

}  // namespace

void add_averaging_options(CLI::App& app, AveragingOptions& o) {
  app.add_option("-n,--peers", o.peers, "N, 3 to 4096, or several between commas [512]")->type_name("LIST");
  app.add_option("-p,--absence", o.absences,
                 fmt::format("chance that a peer is absent in a round, or several [{}]", usual_absences))
      ->type_name("LIST");
  set_choices(
      *app.add_option("-a,--algorithm", o.algorithms,
                      fmt::format("{}, or several between commas [all but the last]", fmt::join(algorithm_names(), " ")))
           ->type_name("LIST"),
      algorithm_names());
  app.add_option("-r,--restarts", o.restarts, "runs of each, with seeds of their own [10]")->type_name("N");
  app.add_option("-t,--target", o.targets, fmt::format("variance that is to be reached, or several [{}]", usual_targets))
      ->type_name("LIST");
  app.add_option("-m,--max-group", o.max_group, "M, 4 to 128 [32]")->type_name("N");
  app.add_flag("-c,--compare", o.compare, "the authors' table: 512, 768, 900 and 1024 peers beside yours");
  app.add_option("--plot", o.plot, "draw PREFIX-variance.svg and PREFIX-absence.svg")->type_name("PREFIX");
  add_output_options(app, o.results);
  app.add_option("-j,--jobs", o.jobs, "algorithms run at the same time [1]")->type_name("N");
  add_choice(
      app, o.progress,
      {.names = "--progress", .value = "STYLE", .meaning = "on standard error", .words = progress_names(), .fallback = "auto"});
}

std::vector<sim::AveragingSettings> AveragingPlan::cases() const {
  std::vector<sim::AveragingSettings> all;
  for (const uint32_t count : peers) {
    for (const double absence : absences) {
      for (const auto algorithm : algorithms)
        all.push_back({.algorithm = algorithm, .peers = count, .absence = absence, .max_group = max_group});
    }
  }
  return all;
}

uint64_t AveragingPlan::runs() const { return uint64_t{restarts} * peers.size() * absences.size() * algorithms.size(); }

Result<AveragingPlan> make_averaging_plan(const AveragingOptions& o) {
  AveragingPlan plan;
  plan.plot = o.plot;
  plan.results = o.results;
  plan.progress = o.progress;
  const auto parse_peers = [](const std::string& word) {
    return parse_between("--peers", word, sim::averaging_peers_least, sim::averaging_peers_limit);
  };
  const auto parse_absence = [](const std::string& word) { return parse_number("--absence", word, 0, 1); };
  const auto parse_target = [](const std::string& word) { return parse_number("--target", word, 1e-30, 1); };
  if (o.compare) plan.peers.assign(std::begin(compared_peers), std::end(compared_peers));
  else if (o.peers.empty()) plan.peers = {usual_peers};
  if (auto status = first_wrong(
          {refuse_beside_compare(o), o.peers.empty() ? Status() : parse_list(plan.peers, "--peers", o.peers, parse_peers),
           parse_list(plan.absences, "--absence", o.absences.empty() ? usual_absences : o.absences, parse_absence),
           parse_list(plan.targets, "--target", o.targets.empty() ? usual_targets : o.targets, parse_target),
           set_algorithms(o, plan.algorithms), set_number(plan.restarts, "--restarts", o.restarts, 1, restarts_limit),
           set_number(plan.max_group, "--max-group", o.max_group, max_group_least, max_group_limit),
           set_number(plan.jobs, "--jobs", o.jobs, 1, jobs_max), check_progress(o.progress)});
      !status.ok())
    return status;
  if (o.compare) std::sort(plan.peers.begin(), plan.peers.end());
  return plan;
}

bool needs_a_full_grid(AveragingAlgorithm algorithm) {
  return algorithm == AveragingAlgorithm::published_grid || algorithm == AveragingAlgorithm::chunk_keys;
}

bool is_full_grid(uint32_t peers, uint32_t max_group) {
  uint64_t cells = max_group;
  while (cells < peers) cells *= max_group;
  return cells == peers;
}

}  // namespace unisono::lab
