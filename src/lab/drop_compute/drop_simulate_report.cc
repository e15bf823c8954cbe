#include "lab/drop_compute/drop_simulate_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace unisono::lab {

using cli::Axis;
using cli::Corner;
using cli::Panel;

namespace {

using Json = nlohmann::ordered_json;
using Kind = sim::Remedy::Kind;

constexpr uint64_t panel_workers = 256, panel_draws_max = 20'000'000;

struct RemedyRow {
  std::string name, drop, step, total, expected_drop = "-", expected_step = "-", expected_total = "-", mean, deviation,
                                       threshold = "-", note = {};
};

std::string line_of(const RemedyRow& row, size_t width) {
  auto text =
      fmt::format(" {:>{}} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>10} {:>10} {:>10}", row.name, width, row.drop, row.step,
                  row.total, row.expected_drop, row.expected_step, row.expected_total, row.mean, row.deviation, row.threshold);
  return text + (row.note.empty() ? "" : "  " + row.note) + "\n";
}

RemedyRow row_of(const DropSimulationResult& result, const RemedyResult& remedy) {
  const auto& outcome = remedy.outcome;
  RemedyRow row{.name = label_of(result, remedy),
                .drop = percent_text(outcome.drop),
                .step = speedup_text(outcome.step),
                .total = speedup_text(outcome.total),
                .mean = time_text(outcome.step_mean),
                .deviation = time_text(outcome.step_deviation)};
  if (outcome.threshold > 0) row.threshold = time_text(outcome.threshold);
  if (remedy.automatic()) {
    row.expected_drop = percent_text(outcome.predicted_drop);
    row.expected_step = speedup_text(outcome.predicted_step);
    row.expected_total = speedup_text(outcome.predicted_total);
  }
  if (!outcome.off_reason.empty()) row.note = "off: " + outcome.off_reason;
  return row;
}

size_t label_width(const DropSimulationResult& result) {
  size_t width = 12;
  for (const auto& remedy : result.remedies) width = std::max(width, label_of(result, remedy).size());
  return width;
}

const char* colour_of(const RemedyResult& remedy) {
  switch (remedy.remedy.kind) {
    case Kind::drop_compute: return rule_colour(remedy.remedy.drop.rule);
    case Kind::backup: return "#9467bd";
    case Kind::rebalanced: return "#ff7f0e";
    case Kind::none:
    case Kind::oracle:
    case Kind::random: break;
  }
  return "#222222";
}

// Plots the speed-up that search() predicts for other numbers of workers under the same delays. search() gets as many recorded
// steps as it has for an automatic threshold.
Panel workers_panel(const DropSimulationResult& result) {
  const auto& what = result.what;
  Panel panel{.title = fmt::format("Speed-up against workers, {}", what.settings.model.to_string()),
              .x_label = "workers",
              .y_label = "S_total",
              .series = {},
              .x_axis = Axis::bytes,
              .legend = Corner::upper_left};
  for (const auto rule : what.rules) {
    const double width = 3 - 0.75 * static_cast<double>(panel.series.size());
    panel.series.push_back({.name = fmt::format("{}, predicted", rule_name(rule)),
                            .colour = rule_colour(rule),
                            .line_width = width,
                            .points = {}});
  }
  for (const auto workers : powers_of_two_to(std::max<uint64_t>(panel_workers, what.settings.workers))) {
    auto other = what;
    other.settings.workers = static_cast<uint32_t>(workers);
    if (workers * what.settings.micro_batches * what.choice.calibration_steps > panel_draws_max ||
        what.settings.model.slow_worker >= static_cast<int64_t>(workers))
      continue;
    const auto trace = other.recorded();
    for (size_t i = 0; i < what.rules.size(); ++i) {
      const auto found = search(trace, search_options(options_for(what.rules[i], what.choice), trace));
      panel.series[i].points.push_back({static_cast<double>(workers), found.off.empty() ? found.best.total : 1});
    }
  }
  for (const auto& remedy : result.remedies) {
    if (!remedy.automatic() || !remedy.outcome.off_reason.empty()) continue;
    panel.series.push_back({.name = label_of(result, remedy),
                            .colour = rule_colour(remedy.remedy.drop.rule),
                            .markers = true,
                            .points = {{static_cast<double>(what.settings.workers), remedy.outcome.total}}});
  }
  return panel;
}

}  // namespace

std::string label_of(const DropSimulationResult& result, const RemedyResult& remedy) {
  switch (remedy.remedy.kind) {
    case Kind::backup: return fmt::format("backup workers, {} of {}", remedy.remedy.backups, result.what.settings.workers);
    case Kind::oracle: return "oracle (bound)";
    case Kind::random: return "as many at random";
    case Kind::drop_compute:
      if (remedy.remedy.drop.threshold == DropOptions::Threshold::fixed) {
        const auto lag = remedy.remedy.drop.lag > 0 ? fmt::format(", lag {}", remedy.remedy.drop.lag) : "";
        return fmt::format("{}, {}{}", time_text(remedy.remedy.drop.seconds), rule_name(remedy.remedy.drop.rule), lag);
      }
      break;
    case Kind::none:
    case Kind::rebalanced: break;
  }
  return sim::name_of(remedy.remedy);
}

std::string table_of(const DropSimulationResult& result) {
  const auto& what = result.what;
  const auto& s = what.settings;
  auto text = fmt::format("# {}: {} with {} each, {} beside computing; {} measured, seed {}\n", s.model.to_string(),
                          plural(s.workers, "worker"), plural(s.micro_batches, "micro-batch", "es"), time_text(s.other),
                          plural(what.measured_steps(), "step"), s.seed);
  text +=
      fmt::format("# auto: from {} recorded steps, for the most {}; p at most {}, gain of at least {}, slack {}\n",
                  what.choice.calibration_steps, what.choice.objective == DropOptions::Objective::total ? "S_total" : "S_step",
                  percent_text(what.choice.max_drop), percent_text(what.choice.min_gain), percent_text(what.choice.slack));
  text +=
      "# S: micro-batches per second, of those with no remedy; S_step by step, S_total in all; p: dropped; rules: each line "
      "names its own\n#\n";
  const auto width = label_width(result);
  text += fmt::format("#{:>{}} {:>8} {:>8} {:>8} {:>26} {:>10} {:>10} {:>10}\n", "", width, "", "simulated", "", "predicted",
                      "", "", "");
  while (text[text.size() - 2] == ' ') text.erase(text.size() - 2, 1);
  text += fmt::format("#{:>{}} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>10} {:>10} {:>10}\n", "remedy", width, "p", "S_step",
                      "S_total", "p", "S_step", "S_total", "step mean", "sd", "threshold");
  for (const auto& remedy : result.remedies) text += line_of(row_of(result, remedy), width);
  bool first = true;
  for (const auto& remedy : result.remedies) {
    if (remedy.remedy.kind != Kind::drop_compute) continue;
    for (const auto& warning : remedy.outcome.warnings) {
      text += fmt::format("{}# warning: {}: {}\n", first ? "\n" : "", label_of(result, remedy), warning);
      first = false;
    }
  }
  return text;
}

std::string json_of(const DropSimulationResult& result) {
  const auto& what = result.what;
  const auto& s = what.settings;
  const auto line = [](const Json& object) { return object.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"; };
  auto text = line({{"kind", "simulation"},
                    {"model", s.model.to_string()},
                    {"workers", s.workers},
                    {"micro_batches", s.micro_batches},
                    {"comm_s", s.other},
                    {"steps", what.measured_steps()},
                    {"measured_from", what.measured_from},
                    {"seed", s.seed},
                    {"objective", what.choice.objective == DropOptions::Objective::total ? "total" : "step_mean"},
                    {"max_drop", what.choice.max_drop},
                    {"min_gain", what.choice.min_gain},
                    {"slack", what.choice.slack}});
  for (const auto& remedy : result.remedies) {
    const auto& outcome = remedy.outcome;
    const bool drops = remedy.remedy.kind == Kind::drop_compute;
    const auto predicted = [&](double value) { return remedy.automatic() ? Json(value) : Json(); };
    Json json{{"kind", "remedy"},
              {"remedy", label_of(result, remedy)},
              {"rule", drops ? Json(rule_name(remedy.remedy.drop.rule)) : Json()},
              {"automatic", remedy.automatic()},
              {"drop", outcome.drop},
              {"speedup_step", outcome.step},
              {"speedup_total", outcome.total},
              {"predicted_drop", predicted(outcome.predicted_drop)},
              {"predicted_step", predicted(outcome.predicted_step)},
              {"predicted_total", predicted(outcome.predicted_total)},
              {"step_mean_s", outcome.step_mean},
              {"step_sd_s", outcome.step_deviation},
              {"threshold_s", outcome.threshold > 0 ? Json(outcome.threshold) : Json()},
              {"off", outcome.off_reason.empty() ? Json() : Json(outcome.off_reason)}};
    json["backups"] = remedy.remedy.kind == Kind::backup ? Json(remedy.remedy.backups) : Json();
    json["drop_by_worker"] = outcome.drop_by_worker;
    json["warnings"] = outcome.warnings;
    text += line(json);
  }
  return text;
}

std::vector<Panel> panels_of(const DropSimulationResult& result) {
  std::vector<StepTimes> times;
  for (const auto& remedy : result.remedies) {
    const auto kind = remedy.remedy.kind;
    if (kind == Kind::random || kind == Kind::oracle || !remedy.outcome.off_reason.empty()) continue;
    times.push_back({.name = label_of(result, remedy),
                     .colour = colour_of(remedy),
                     .times = remedy.outcome.step_times,
                     .dashed = kind == Kind::drop_compute && !remedy.automatic()});
  }
  const auto trace = result.what.recorded();
  std::vector<Panel> panels{compute_panel(trace), thresholds_panel(trace, result.study), step_times_panel(times),
                            workers_panel(result)};
  panels[2].new_row = true;
  return panels;
}

}  // namespace unisono::lab
