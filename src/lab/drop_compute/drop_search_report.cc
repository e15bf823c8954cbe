#include "lab/drop_compute/drop_search_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "training/drop_compute/compute_forecast.h"

namespace unisono::lab {

using cli::Axis;
using cli::Corner;
using cli::Panel;
using cli::Point;
using cli::Series;

namespace {

using Json = nlohmann::ordered_json;

uint64_t rank_of(const DropSearchResult& result, size_t worker) {
  return worker < result.named.ranks.size() ? result.named.ranks[worker] : worker;
}

std::string head_of(const DropSearchResult& result) {
  const auto& study = result.study;
  const auto& choice = result.what.choice;
  const auto compute = moments_of(study.compute_times);
  auto text = fmt::format("# {}: {}, {}, {} of each", result.named.name, plural(study.workers, "worker"),
                          plural(study.steps, "step"), plural(study.micro_batches, "micro-batch", "es"));
  if (result.named.steps_left_out > 0)
    text += fmt::format("; {} left out, in which a rank's line is missing", plural(result.named.steps_left_out, "step"));
  text += fmt::format(
      "\n# the slowest worker of a step computes {} (sd {}); {} beside computing (Tc); a micro-batch takes {} (lhat)\n",
      time_text(compute.mean), time_text(compute.deviation), time_text(study.other), time_text(study.micro_batch));
  if (study.workers > 1)
    text += fmt::format("# rank {} is the slowest on average: {:.2f} times the others\n", rank_of(result, study.slowest),
                        study.slowness);
  text += fmt::format("# thresholds for the most {}{}; p at most {}, gain of at least {}, slack {}\n",
                      choice.objective == DropOptions::Objective::total ? "S_total" : "S_step",
                      choice.search == DropOptions::Search::grid ? " by the oracle's grid" : "", percent_text(choice.max_drop),
                      percent_text(choice.min_gain), percent_text(choice.slack));
  return text;
}

struct RuleRow {
  std::string name, threshold = "-", drop = "-", step = "-", total = "-", most = "-", time = "-", deviation = "-", note = {};
};

std::string line_of(const RuleRow& row) {
  auto text = fmt::format(" {:>14} {:>10} {:>8} {:>8} {:>8} {:>20} {:>10} {:>10}", row.name, row.threshold, row.drop, row.step,
                          row.total, row.most, row.time, row.deviation);
  return text + (row.note.empty() ? "" : "  " + row.note) + "\n";
}

// Returns the mean step time with this threshold. It follows from the definition S_total = (1 - p) * (mean step time without a
// threshold) / (mean step time with it).
double step_mean_of(const TraceStudy& study, const ThresholdValue& value) {
  return (1 - value.drop) * study.step_mean() / value.total;
}

std::string rule_label(const RuleStudy& rule) {
  return fmt::format("{}{}", rule_name(rule.rule),
                     rule.options.rule.lag > 0 ? fmt::format(", lag {}", rule.options.rule.lag) : "");
}

std::string row_of(const DropSearchResult& result, const RuleStudy& rule) {
  RuleRow row{.name = rule_label(rule)};
  const auto& best = rule.outcome.best;
  if (rule.found()) {
    row.threshold = time_text(seconds_of(best.threshold_ns));
    row.drop = percent_text(best.drop);
    row.step = speedup_text(best.step);
    row.total = speedup_text(best.total);
    row.most = fmt::format("{} (rank {})", percent_text(rule.drop_by_worker[rule.most]), rank_of(result, rule.most));
    row.time = time_text(step_mean_of(result.study, best));
    row.deviation = time_text(moments_of(rule.step_times).deviation);
  }
  if (!rule.outcome.off.empty()) row.note = "off: " + rule.outcome.off;
  return line_of(row);
}

// Advises to give a slow worker fewer micro-batches: the number of the others divided by the worker's slowness. For example, a
// worker that is twice as slow keeps up if it has half as many.
std::string advice(const DropSearchResult& result, const RuleStudy& rule) {
  const auto& study = result.study;
  if (rule.most != study.slowest || study.slowness <= 1) return "give it fewer micro-batches";
  return fmt::format("give it fewer micro-batches, about {:.0f} where the others have {}",
                     std::max(1.0, study.micro_batches / study.slowness), study.micro_batches);
}

Json object_of(const DropSearchResult& result, const RuleStudy& rule) {
  const auto& best = rule.outcome.best;
  const bool found = rule.found();
  const auto known = [&](const auto& value) { return found ? Json(value) : Json(); };
  Json json{{"kind", "rule"},
            {"rule", rule_name(rule.rule)},
            {"lag", rule.options.rule.lag},
            {"min_computed", rule.options.rule.min_computed},
            {"threshold_s", known(seconds_of(best.threshold_ns))},
            {"threshold_ns", known(best.threshold_ns)},
            {"drop", known(best.drop)},
            {"speedup_step", known(best.step)},
            {"speedup_total", known(best.total)},
            {"highest", rule.outcome.highest},
            {"off", rule.outcome.off.empty() ? Json() : Json(rule.outcome.off)},
            {"candidates", rule.outcome.candidates.size()}};
  json["step_mean_s"] = known(found ? step_mean_of(result.study, best) : 0);
  json["step_sd_s"] = known(moments_of(rule.step_times).deviation);
  json["drop_by_worker"] = known(rule.drop_by_worker);
  json["drop_most_rank"] = known(rank_of(result, rule.most));
  json["persistent_straggler"] = rule.straggles;
  return json;
}

// Plots the speed-up under rule `at` against the number of workers, for independent workers with the recorded times. The line
// is dashed where too few times were recorded. Markers show each rule with the recorded workers.
Panel workers_panel(const DropSearchResult& result) {
  const auto& trace = result.named.trace;
  Panel panel{.title = "Speed-up against workers, as from these times",
              .x_label = "workers",
              .y_label = "micro-batches per second, of those without",
              .series = {},
              .x_axis = Axis::bytes,
              .legend = Corner::lower_right};
  Series seen{.name = "rule at, workers independent", .colour = rule_colour(DropRule::at), .points = {}},
      guessed{.name = "with few records", .colour = rule_colour(DropRule::at), .dashed = true, .points = {}};
  const uint64_t most = std::min<uint64_t>(10'000, std::max<uint64_t>(1024, 4 * uint64_t{trace.workers}));
  for (const auto workers : powers_of_two_to(most)) {
    const auto found = forecast_from(trace, workers, result.what.choice.max_drop);
    const Point point{static_cast<double>(workers), found.speedup};
    if (found.too_few_records && guessed.points.empty() && !seen.points.empty()) guessed.points.push_back(seen.points.back());
    (found.too_few_records ? guessed : seen).points.push_back(point);
  }
  panel.series.push_back(
      {.name = "no threshold", .colour = "#888888", .line_width = 1, .points = {{2, 1}, {static_cast<double>(most), 1}}});
  for (auto& series : {seen, guessed}) {
    if (!series.points.empty()) panel.series.push_back(series);
  }
  for (const auto& rule : result.study.rules) {
    if (rule.on())
      panel.series.push_back({.name = fmt::format("{}, as recorded", rule_name(rule.rule)),
                              .colour = rule_colour(rule.rule),
                              .markers = true,
                              .points = {{static_cast<double>(trace.workers), rule.outcome.best.total}}});
  }
  return panel;
}

}  // namespace

DropSearchResult search_result(const DropSearch& what, NamedTrace named) {
  auto study = study_of(named.trace, what.choice, what.rules);
  return {.what = what, .named = std::move(named), .study = std::move(study)};
}

std::vector<std::string> warnings_of(const DropSearchResult& result) {
  std::vector<std::string> warnings;
  for (const auto& rule : result.study.rules) {
    if (!rule.straggles) continue;
    warnings.push_back(fmt::format(
        "persistent_straggler: under rule {} rank {} drops {} of its micro-batches, more than three times what the others do: "
        "its data are under-used; {}",
        rule_name(rule.rule), rank_of(result, rule.most), percent_text(rule.drop_by_worker[rule.most]), advice(result, rule)));
  }
  return warnings;
}

std::string table_of(const DropSearchResult& result) {
  const auto& study = result.study;
  auto text = head_of(result) +
              "# S: micro-batches per second, of those without a threshold, under the line's rule; S_step by step, S_total in "
              "all; p: dropped\n#\n";
  text += fmt::format("#{:>14} {:>10} {:>8} {:>8} {:>8} {:>20} {:>10} {:>10}\n", "rule", "threshold", "p", "S_step", "S_total",
                      "p of one rank", "step mean", "sd");
  text += line_of({.name = "no threshold",
                   .drop = percent_text(0),
                   .step = speedup_text(1),
                   .total = speedup_text(1),
                   .time = time_text(study.step_mean()),
                   .deviation = time_text(moments_of(study.compute_times).deviation)});
  for (const auto& rule : study.rules) text += row_of(result, rule);
  RuleRow oracle{.name = "oracle (bound)"};
  if (study.oracle.threshold_ns > 0) {
    oracle.threshold = time_text(seconds_of(study.oracle.threshold_ns));
    oracle.drop = percent_text(study.oracle.drop);
    oracle.step = speedup_text(study.oracle.step);
    oracle.total = speedup_text(study.oracle.total);
    oracle.time = time_text(step_mean_of(study, study.oracle));
  } else {
    oracle.note = "no threshold of its grid is better than none";
  }
  text += line_of(oracle);
  const auto warnings = warnings_of(result);
  if (!warnings.empty()) text += "\n";
  for (const auto& warning : warnings) text += "# warning: " + warning + "\n";
  return text;
}

std::string json_of(const DropSearchResult& result) {
  const auto& study = result.study;
  const auto& choice = result.what.choice;
  const auto line = [](const Json& object) { return object.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"; };
  const auto compute = moments_of(study.compute_times);
  auto text = line({{"kind", "trace"},
                    {"trace", result.named.name},
                    {"workers", study.workers},
                    {"ranks", result.named.ranks},
                    {"steps", study.steps},
                    {"steps_left_out", result.named.steps_left_out},
                    {"micro_batches", study.micro_batches},
                    {"comm_s", study.other},
                    {"micro_batch_s", study.micro_batch},
                    {"compute_mean_s", compute.mean},
                    {"compute_sd_s", compute.deviation},
                    {"slowest_rank", rank_of(result, study.slowest)},
                    {"slowness", study.slowness},
                    {"objective", choice.objective == DropOptions::Objective::total ? "total" : "step_mean"},
                    {"search", choice.search == DropOptions::Search::grid ? "grid" : "exact"},
                    {"max_drop", choice.max_drop},
                    {"min_gain", choice.min_gain},
                    {"slack", choice.slack}});
  for (const auto& rule : study.rules) text += line(object_of(result, rule));
  const bool found = study.oracle.threshold_ns > 0;
  const auto known = [&](const auto& value) { return found ? Json(value) : Json(); };
  text += line({{"kind", "oracle"},
                {"threshold_s", known(seconds_of(study.oracle.threshold_ns))},
                {"drop", known(study.oracle.drop)},
                {"speedup_step", known(study.oracle.step)},
                {"speedup_total", known(study.oracle.total)}});
  for (const auto& warning : warnings_of(result)) text += line({{"kind", "warning"}, {"text", warning}});
  return text;
}

std::vector<Panel> panels_of(const DropSearchResult& result) {
  std::vector<double> without = result.study.compute_times;
  for (auto& time : without) time += result.study.other;
  std::vector<StepTimes> times{{.name = "no threshold", .colour = "#222222", .times = without}};
  for (const auto& rule : result.study.rules) {
    if (rule.on())
      times.push_back(
          {.name = fmt::format("{}, {}", rule_name(rule.rule), time_text(seconds_of(rule.outcome.best.threshold_ns))),
           .colour = rule_colour(rule.rule),
           .times = rule.step_times});
  }
  std::vector<Panel> panels{compute_panel(result.named.trace), thresholds_panel(result.named.trace, result.study),
                            step_times_panel(times), workers_panel(result)};
  panels[2].new_row = true;
  return panels;
}

}  // namespace unisono::lab
