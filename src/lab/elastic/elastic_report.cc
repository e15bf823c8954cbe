#include "lab/elastic/elastic_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/common/text.h"
#include "elastic/layout/moshpit_grid.h"
#include "lab/common/option_words.h"

namespace unisono::lab {

using cli::Axis;
using cli::Corner;
using cli::format_bytes;
using cli::line_colour;
using cli::Panel;
using cli::Point;
using cli::Series;

namespace {

using Json = nlohmann::ordered_json;
using Run = sim::ElasticStudyResult;

// Plots show at most this many runs, and this many points for each; more would not be legible.
constexpr size_t drawn_runs = 10, drawn_points = 400;
constexpr size_t shown_problems = 10;

double in_seconds(Nanos time) { return static_cast<double>(time) / static_cast<double>(second); }
double share(uint64_t part, uint64_t whole) { return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole); }
double quantile(const std::vector<double>& sorted, double part) {
  return sorted.empty() ? 0 : sorted[static_cast<size_t>(part * static_cast<double>(sorted.size() - 1))];
}

// Formats a time with three digits. From 100 s on, it is formatted in whole seconds.
std::string brief(double seconds) {
  if (seconds <= 0) return "0 s";
  if (seconds >= 100) return fmt::format("{:.0f} s", seconds);
  const double unit = std::pow(10, std::floor(std::log10(seconds)) - 2);
  return time_text(std::round(seconds / unit) * unit);
}
std::string brief(Nanos time) { return brief(in_seconds(time)); }

// Formats a fraction, such as "97.3 %". The result is 100 only if part equals whole, and 0 only if part is 0.
std::string share_text(uint64_t part, uint64_t whole) {
  if (whole == 0) return "-";
  const double rounded = std::round(1000 * share(part, whole)) / 10;
  return fmt::format("{:.4g} %", part == whole ? 100 : part == 0 ? 0 : std::clamp(rounded, .1, 99.9));
}

std::string times_text(const std::vector<double>& sorted) {
  if (sorted.empty()) return "-";
  return fmt::format("median {}, p99 {}, longest {}", brief(quantile(sorted, .5)), brief(quantile(sorted, .99)),
                     brief(sorted.back()));
}

std::string counts_text(const std::map<std::string, uint64_t>& counts) {
  std::vector<std::pair<uint64_t, std::string>> sorted;
  for (const auto& [name, count] : counts) sorted.emplace_back(count, name);
  std::ranges::stable_sort(sorted, [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string text;
  for (const auto& [count, name] : sorted) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, name);
  return text.empty() ? "none" : text;
}

uint32_t most_present(const Run& run) {
  uint32_t most = 0;
  for (const auto& [at, count] : run.present) most = std::max(most, count);
  return most;
}
// Returns how many peers there were when there were fewest, after the start of the run.
uint32_t fewest_present(const Run& run) {
  if (run.present.empty()) return 0;
  uint32_t fewest = run.present.front().second;
  for (const auto& [at, count] : run.present) fewest = std::min(fewest, count);
  return fewest;
}

uint32_t peers_of(const ElasticResult& result) {
  uint32_t most = 0;
  for (const auto& run : result.runs) most = std::max(most, most_present(run));
  return std::max(most, 1u);
}

std::vector<uint32_t> dims_of(const MoshpitSettings& settings, uint32_t peers) {
  return settings.grid == GridKind::fitted ? fitted_dims(peers, settings.max_group) : published_dims(peers, settings.max_group);
}

// If the grid cannot average exactly with this number of peers, returns a line that says so. Otherwise returns "". A fitted
// grid is always exact. A published grid of several dimensions is exact only if all its cells are in use.
std::string grid_text(const ElasticResult& result, uint32_t peers) {
  const auto& settings = result.plan.study.cluster.settings;
  const auto dims = dims_of(settings, peers);
  uint64_t cells = 1;
  for (const auto size : dims) cells *= size;
  if (settings.grid == GridKind::fitted || dims.size() == 1 || cells == peers) return {};
  return fmt::format("# {}: not exact with {}, even if nobody is absent; only N = {}^d is\n", result.plan.grid,
                     plural(peers, "peer"), settings.max_group);
}

// Adds up the numbers of all runs. `formed` and `ended` are the latest times of all runs.
Run sum_of(const std::vector<Run>& runs) {
  Run all = runs.front();
  for (size_t i = 1; i < runs.size(); ++i) {
    const auto& run = runs[i];
    all.formed = std::max(all.formed, run.formed);
    all.ended = std::max(all.ended, run.ended);
    all.joins += run.joins, all.kills += run.kills, all.leaves += run.leaves, all.stops += run.stops, all.loaded += run.loaded,
        all.events_left += run.events_left;
    all.steps += run.steps, all.exact += run.exact, all.messages += run.messages, all.bytes += run.bytes;
    all.seconds.insert(all.seconds.end(), run.seconds.begin(), run.seconds.end());
    for (const auto& [name, count] : run.outcomes) all.outcomes[name] += count;
    auto& replay = all.replay;
    const auto& more = run.replay;
    replay.groups += more.groups, replay.rounds += more.rounds, replay.chunks += more.chunks, replay.voided += more.voided,
        replay.absences += more.absences, replay.undecided += more.undecided, replay.wrong += more.wrong;
    replay.weight_error = std::max(replay.weight_error, more.weight_error);
    replay.value_error = std::max(replay.value_error, more.value_error);
  }
  std::ranges::sort(all.seconds);
  return all;
}

std::string seeds_text(const sim::SeedRange& seeds) {
  return seeds.first == seeds.last ? fmt::format("seed {}", seeds.first) : fmt::format("seeds {}-{}", seeds.first, seeds.last);
}

std::string links_text(const sim::ElasticLinkModel& links) {
  auto text = fmt::format("links of {}", time_text(in_seconds(links.delay)));
  if (links.jitter > 0) text += fmt::format(" to {}", time_text(in_seconds(links.delay + links.jitter)));
  if (links.bytes_per_second > 0) text += fmt::format(", lines of {:g} Mbit/s", links.bytes_per_second * 8 / 1e6);
  return text;
}

std::string head_of(const ElasticResult& result) {
  const auto& study = result.plan.study;
  const auto& cluster = study.cluster;
  const uint32_t peers = peers_of(result);
  auto text = fmt::format("# {}, groups of up to {}: a grid of {}; {} each; {}\n# {} between two averaging steps",
                          plural(peers, "peer"), cluster.settings.max_group, fmt::join(dims_of(cluster.settings, peers), "x"),
                          plural(cluster.settings.elements, "number"), links_text(cluster.links),
                          time_text(in_seconds(cluster.compute)));
  if (cluster.compute_jitter > 0)
    text += fmt::format(" to {}", time_text(in_seconds(cluster.compute + cluster.compute_jitter)));
  if (study.absence > 0)
    text += fmt::format("; absent with a chance of {} in a round, for {}", study.absence, time_text(in_seconds(study.away)));
  return text +
         fmt::format("; {}; {}\n",
                     result.plan.whole_trace ? fmt::format("{} of a trace", time_text(in_seconds(study.until)))
                                             : plural(study.steps, "step"),
                     seeds_text(result.plan.seeds)) +
         grid_text(result, peers);
}

std::string end_text(const Run& run) { return !run.completed ? "NOT WITHIN ITS LIMIT" : is_correct(run) ? "ok" : "WRONG"; }

std::string rows_of(const ElasticResult& result) {
  auto text = fmt::format("#\n#{:>6} {:>10} {:>10} {:>7} {:>9} {:>7} {:>10} {:>10} {:>10}\n", "seed", "formed", "ended",
                          "peers", "steps", "exact", "median", "p99", "longest");
  for (size_t i = 0; i < result.runs.size(); ++i) {
    const auto& run = result.runs[i];
    const auto peers = fewest_present(run) == most_present(run) ? fmt::format("{}", most_present(run))
                                                                : fmt::format("{}-{}", fewest_present(run), most_present(run));
    text += fmt::format(" {:>6} {:>10} {:>10} {:>7} {:>9} {:>7} {:>10} {:>10} {:>10}  {}\n", result.plan.seeds.first + i,
                        brief(run.formed), brief(run.ended), peers, run.steps, share_text(run.exact, run.steps),
                        brief(quantile(run.seconds, .5)), brief(quantile(run.seconds, .99)), brief(quantile(run.seconds, 1)),
                        end_text(run));
  }
  return text;
}

std::string line(std::string_view name, const std::string& what) { return fmt::format(" {:<18} {}\n", name, what); }

std::string sums_of(const Run& all, bool several) {
  const auto& replay = all.replay;
  const std::string last = several ? " at the latest" : "";
  auto text = std::string("#\n");
  text += line("run formed", all.steps == 0 && all.formed == 0 ? "never" : fmt::format("after {}{}", brief(all.formed), last));
  text +=
      line("run ended",
           fmt::format("after {}{}{}", brief(all.ended), last,
                       all.events_left > 0 ? fmt::format(", before {} of the trace", plural(all.events_left, "event")) : ""));
  text += line("peers", fmt::format("{} joined, {} of them loaded the run's state; {} killed, {} left, stopped {}", all.joins,
                                    all.loaded, all.kills, all.leaves, plural(all.stops, "time")));
  text += line("steps of peers",
               all.steps == 0 ? "none" : fmt::format("{}, {} exact", all.steps, share_text(all.exact, all.steps)));
  text += line("time of a step", times_text(all.seconds));
  text += line("rounds of peers", counts_text(all.outcomes));
  text += line(
      "sent",
      fmt::format("{} messages, {}{}", all.messages, format_bytes(all.bytes),
                  all.steps > 0 ? fmt::format("; {} per averaging step of a peer", format_bytes(all.bytes / all.steps)) : ""));
  text += line(
      "replayed",
      fmt::format("{} of peers in {}: {}, {} void, {} missing", plural(replay.rounds, "round"), plural(replay.groups, "group"),
                  plural(replay.chunks, "chunk"), replay.voided, plural(replay.absences, "contribution")) +
          (replay.undecided > 0 ? fmt::format("; {} without a verdict", plural(replay.undecided, "round")) : ""));
  text += line("largest error",
               fmt::format("of a sum of weights {:.2g}, of a mean {:.2g}, relative", replay.weight_error, replay.value_error));
  return text;
}

std::string problems_of(const ElasticResult& result) {
  std::string text;
  size_t wrong = 0;
  for (size_t i = 0; i < result.runs.size(); ++i) {
    const auto& run = result.runs[i];
    if (is_correct(run) || ++wrong > shown_problems) continue;
    const uint64_t seed = result.plan.seeds.first + i;
    text += fmt::format("# seed {}:\n", seed);
    if (!run.completed) text += fmt::format("#   did not end within {}\n", brief(run.ended));
    if (!run.problem.empty()) text += fmt::format("#   {}\n", run.problem);
    if (run.replay.wrong > 0) text += fmt::format("#   wrong {} in rounds, as\n", plural(run.replay.wrong, "time"));
    for (const auto& example : run.replay.examples) text += fmt::format("#     {}\n", example);
    text += fmt::format("#   again: {} --seeds {}\n", result.plan.repeat_command, seed);
  }
  if (wrong > shown_problems) text += fmt::format("# and {} more\n", wrong - shown_problems);
  if (wrong == 0)
    return result.runs.size() == 1 ? "#\n# nothing was wrong\n"
                                   : fmt::format("#\n# nothing was wrong in {}\n", plural(result.runs.size(), "run"));
  return "#\n" + text + (result.runs.size() > 1 ? fmt::format("# {} of {} runs WRONG\n", wrong, result.runs.size()) : "");
}

Json settings_of(const ElasticResult& result) {
  const auto& plan = result.plan;
  const auto& study = plan.study;
  const auto& cluster = study.cluster;
  Json settings{{"kind", "elastic"},
                {"command", plan.repeat_command},
                {"peers", peers_of(result)},
                {"max_group", cluster.settings.max_group},
                {"dims", dims_of(cluster.settings, peers_of(result))},
                {"rounds", cluster.settings.rounds},
                {"grid", plan.grid},
                {"times", plan.times},
                {"min_peers", cluster.settings.min_peers},
                {"max_peers", cluster.settings.max_peers},
                {"elements", cluster.settings.elements},
                {"absence", study.absence},
                {"away_ns", study.away},
                {"compute_ns", cluster.compute},
                {"compute_jitter_ns", cluster.compute_jitter},
                {"delay_ns", cluster.links.delay},
                {"jitter_ns", cluster.links.jitter},
                {"bytes_per_second", cluster.links.bytes_per_second},
                {"limit_ns", study.limit}};
  if (plan.whole_trace) settings["until_ns"] = study.until;
  else settings["steps"] = study.steps;
  return settings;
}

Json run_of(const Run& run, uint64_t seed) {
  const auto& replay = run.replay;
  double sum = 0;
  for (const double each : run.seconds) sum += each;
  Json json{{"kind", "run"},
            {"seed", seed},
            {"right", is_correct(run)},
            {"completed", run.completed},
            {"problem", run.problem},
            {"formed_ns", run.formed},
            {"ended_ns", run.ended},
            {"joins", run.joins},
            {"kills", run.kills},
            {"leaves", run.leaves},
            {"stops", run.stops},
            {"events_left", run.events_left},
            {"loaded", run.loaded},
            {"steps", run.steps},
            {"exact", run.exact},
            {"step_seconds",
             {{"mean", run.seconds.empty() ? 0 : sum / static_cast<double>(run.seconds.size())},
              {"median", quantile(run.seconds, .5)},
              {"p99", quantile(run.seconds, .99)},
              {"max", quantile(run.seconds, 1)}}},
            {"outcomes", run.outcomes},
            {"messages", run.messages},
            {"bytes", run.bytes},
            {"replay",
             {{"groups", replay.groups},
              {"rounds", replay.rounds},
              {"chunks", replay.chunks},
              {"voided", replay.voided},
              {"absences", replay.absences},
              {"undecided", replay.undecided},
              {"weight_error", replay.weight_error},
              {"value_error", replay.value_error},
              {"wrong", replay.wrong},
              {"examples", replay.examples}}},
            {"present", Json::array()},
            {"by_step", Json::array()}};
  for (const auto& [at, count] : run.present) json["present"].push_back({{"at_ns", at}, {"peers", count}});
  for (const auto& [step, tally] : run.by_step)
    json["by_step"].push_back({{"step", step},
                               {"peers", tally.peers},
                               {"exact", tally.exact},
                               {"first_ended_ns", tally.first_ended},
                               {"ended_ns", tally.ended},
                               {"seconds_mean", tally.seconds_mean},
                               {"seconds_max", tally.seconds_max},
                               {"spread", tally.spread}});
  return json;
}

// One point of a plot. It combines several consecutive averaging steps.
struct Moment {
  double at = 0;
  uint64_t peers = 0, exact = 0, steps = 0;
  double seconds_max = 0, seconds_mean = 0, spread = 0;
};
std::vector<Moment> moments_of(const Run& run) {
  std::vector<std::pair<Nanos, const sim::StepTally*>> tallies;
  for (const auto& [step, tally] : run.by_step) tallies.emplace_back(tally.first_ended, &tally);
  std::ranges::stable_sort(tallies, [](const auto& a, const auto& b) { return a.first < b.first; });
  const size_t steps_per_point = (tallies.size() + drawn_points - 1) / drawn_points;
  std::vector<Moment> moments;
  for (size_t i = 0; i < tallies.size(); ++i) {
    if (i % steps_per_point == 0) moments.push_back({.at = in_seconds(tallies[i].first)});
    auto& moment = moments.back();
    const auto& tally = *tallies[i].second;
    moment.seconds_mean =
        (moment.seconds_mean * static_cast<double>(moment.peers) + tally.seconds_mean * static_cast<double>(tally.peers)) /
        static_cast<double>(moment.peers + tally.peers);
    moment.peers += tally.peers;
    moment.exact += tally.exact;
    ++moment.steps;
    moment.seconds_max = std::max(moment.seconds_max, tally.seconds_max);
    moment.spread += (tally.spread - moment.spread) / static_cast<double>(moment.steps);
  }
  return moments;
}

// Plots the number of peers as a staircase. The last stair reaches the end of the run.
std::vector<Point> present_of(const Run& run) {
  std::vector<Point> points;
  for (const auto& [at, count] : run.present) {
    if (!points.empty()) points.push_back({in_seconds(at), points.back().y});
    points.push_back({in_seconds(at), static_cast<double>(count)});
  }
  if (!points.empty()) points.push_back({std::max(in_seconds(run.ended), points.back().x), points.back().y});
  return points;
}

template <typename Value>
void add_series(Panel& panel, Series series, const std::vector<Moment>& moments, const Value& value) {
  for (const auto& moment : moments) series.points.push_back({moment.at, value(moment)});
  panel.series.push_back(std::move(series));
}

}  // namespace

bool is_correct(const Run& run) { return run.completed && run.problem.empty() && run.replay.wrong == 0; }
bool is_correct(const ElasticResult& result) {
  return std::ranges::all_of(result.runs, [](const Run& run) { return is_correct(run); });
}

std::string table_of(const ElasticResult& result) {
  const bool several = result.runs.size() > 1;
  return head_of(result) + (several ? rows_of(result) : "") + sums_of(sum_of(result.runs), several) + problems_of(result);
}

std::string json_of(const ElasticResult& result) {
  auto text = settings_of(result).dump() + "\n";
  uint64_t right = 0;
  for (size_t i = 0; i < result.runs.size(); ++i) {
    text += run_of(result.runs[i], result.plan.seeds.first + i).dump() + "\n";
    right += is_correct(result.runs[i]) ? 1 : 0;
  }
  return text + Json{{"kind", "verdict"}, {"runs", result.runs.size()}, {"right", right}}.dump() + "\n";
}

std::vector<Panel> panels_of(const ElasticResult& result) {
  const bool alone = result.runs.size() == 1;
  const auto panel = [](const std::string& title, const std::string& y_label) {
    return Panel{.title = title,
                 .x_label = "virtual time, s",
                 .y_label = y_label,
                 .series = {},
                 .y_from_zero = true,
                 .x_from_zero = true};
  };
  auto times = panel(alone ? "Time of an averaging step" : "Longest time of an averaging step", "s"),
       exact = panel("Averaging steps that lack nobody's values", "% of peers' averaging steps");
  auto peers = panel("Peers", ""),
       spread = panel("How far apart values are when an averaging step begins", "standard deviation in a group");
  times.y_axis = Axis::decades;
  times.y_from_zero = false;
  peers.legend = Corner::lower_right;
  peers.new_row = true;
  for (size_t i = 0; i < std::min(result.runs.size(), drawn_runs); ++i) {
    const auto& run = result.runs[i];
    const auto moments = moments_of(run);
    // A seed has the same colour in all panels, so the panels `exact` and `spread` need no legend.
    const auto series = [&](const std::string& name, bool dots) {
      return Series{.name = alone || name.empty() ? name : fmt::format("seed {}", result.plan.seeds.first + i),
                    .colour = line_colour(i),
                    .markers = dots,
                    .points = {}};
    };
    add_series(times, series("longest", !alone), moments, [](const Moment& moment) { return moment.seconds_max; });
    add_series(exact, series("", true), moments, [](const Moment& moment) { return 100 * share(moment.exact, moment.peers); });
    add_series(spread, series("", false), moments, [](const Moment& moment) { return moment.spread; });
    auto there = series("there", false);
    there.points = present_of(run);
    peers.series.push_back(std::move(there));
    if (!alone) continue;
    add_series(times, {.name = "mean", .colour = line_colour(1), .points = {}}, moments,
               [](const Moment& moment) { return moment.seconds_mean; });
    add_series(peers, {.name = "ended the averaging step", .colour = line_colour(1), .points = {}}, moments,
               [](const Moment& moment) { return static_cast<double>(moment.peers) / static_cast<double>(moment.steps); });
  }
  return {times, exact, peers, spread};
}

}  // namespace unisono::lab
