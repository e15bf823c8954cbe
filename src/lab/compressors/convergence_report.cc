#include "lab/compressors/convergence_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace unisono::lab {

using cli::Axis;
using cli::Corner;
using cli::line_colour;
using cli::Panel;
using cli::Series;

namespace {

using sim::Method;
using sim::ProblemKind;
using Json = nlohmann::ordered_json;

const sim::ProblemFacts& facts_of(const ConvergenceResult& result) { return sim::facts_of(result.what.settings.problem); }

// Returns the name of the feedback. For dense gradients, which have no feedback, returns "-".
std::string_view feedback_of(const sim::TrainingSettings& s) {
  return s.method == Method::dense ? "-" : feedback_name(s.feedback);
}

uint64_t kept_of(const sim::TrainingSettings& s) {
  return kept_rows({.ratio_ppm = s.ratio_ppm}, sim::facts_of(s.problem).matrix.rows);
}

double sent_share(const sim::TrainingSettings& s) {
  return static_cast<double>(sim::sent_elements(sim::ranks_options(s))) /
         static_cast<double>(sim::facts_of(s.problem).matrix.elements());
}

// Formats seeds, such as "seed 3" or "seeds 3-7".
std::string seeds_text(const std::vector<uint64_t>& seeds) {
  return seeds.size() == 1 ? fmt::format("seed {}", seeds[0]) : fmt::format("seeds {}-{}", seeds.front(), seeds.back());
}

bool is_off(const ConvergenceResult& result) {
  const auto specified = specified_of(result.what);
  return specified && !specified->allows(spread_of(result).mean);
}

std::string number(double value) { return std::isfinite(value) ? fmt::format("{:#.4g}", value) : "-"; }
// Formats a number with five significant digits.
std::string plain_number(double value) { return fmt::format("{:.5g}", value); }

struct Columns {
  bool specified = false, spread = false, weights = false;
};

std::string row_of(const ConvergenceResult& result, const Columns& columns) {
  const auto& s = result.what.settings;
  const auto spread = spread_of(result);
  const bool is_ef21m = s.method != Method::dense && feedback_name(s.feedback) == "ef21m";
  auto text = fmt::format(" {:>8}", feedback_of(s));
  if (columns.weights) text += fmt::format(" {:>5}", is_ef21m ? fmt::format("{:.4g}", s.feedback.eta) : "-");
  text += fmt::format(" {:>8} {:>4} {:>6} {:>10}", method_name(s.method),
                      s.method == Method::arc ? fmt::format("{}", s.sketch_rank) : "-",
                      s.method == Method::exact ? "-" : fmt::format("{:.3f}", sent_share(s)),
                      std::isfinite(spread.mean) ? number(spread.mean) : "diverged");
  if (columns.spread) text += fmt::format(" {:>10}", number(spread.deviation));
  if (columns.specified) {
    const auto specified = specified_of(result.what);
    text += !specified ? fmt::format(" {:>10} {:>10} {:>5}", "-", "-", "-")
                       : fmt::format(" {:>10} {:>10} {:>5}", plain_number(specified->value),
                                     fmt::format("{:.2g}", specified->tolerance), is_off(result) ? "OFF" : "ok");
  }
  if (spread.diverged > 0 && result.outcomes.size() > 1)
    text += fmt::format("  {} of {} diverged", spread.diverged, result.outcomes.size());
  else if (spread.diverged > 0) text += fmt::format("  in step {}", *result.outcomes[0].diverged_in);
  return text + "\n";
}

// Returns the name of the measured value, and after which steps it is measured.
std::string measured_text(const sim::TrainingSettings& s) {
  const auto& facts = sim::facts_of(s.problem);
  const auto count = std::min<uint64_t>(facts.averaged, (s.steps + sim::averaged_every - 1) / sim::averaged_every);
  if (count == 1) return fmt::format("{} after {} steps", facts.measure, s.steps);
  const auto first = s.steps - (count - 1) * sim::averaged_every;
  return fmt::format("{}, mean of those after {}, {}{} steps", facts.measure, first,
                     count > 2 ? fmt::format("{}, ..., ", first + sim::averaged_every) : "", s.steps);
}

// Returns the table of one problem. All `results` must be from this problem.
std::string table_of_problem(std::span<const ConvergenceResult> results) {
  const auto& first = results[0].what;
  const auto& s = first.settings;
  const auto& matrix = facts_of(results[0]).matrix;
  const auto any = [&](const auto& is) {
    return std::any_of(results.begin(), results.end(), [&](const ConvergenceResult& result) { return is(result.what); });
  };
  const auto any_method = [&](Method method) {
    return any([&](const ConvergenceCase& one) { return one.settings.method == method; });
  };
  const Columns columns{
      .specified = any([](const ConvergenceCase& one) { return specified_of(one).has_value(); }),
      .spread = first.seeds.size() > 1,
      .weights = any([](const ConvergenceCase& one) { return feedback_name(one.settings.feedback) == "ef21m"; })};
  auto text = fmt::format("# {}: {}\n", facts_of(results[0]).name, measured_text(s));
  text += fmt::format("# {} x {} weights, {} of {} rows kept, {} rank{}, step {}, {}\n", matrix.rows, matrix.columns,
                      kept_of(s), matrix.rows, s.ranks, s.ranks == 1 ? "" : "s", s.step_size, seeds_text(first.seeds));
  text += "# r: numbers in a row's sketch; sent: elements per step, as a share";
  if (any_method(Method::top_k)) text += "; top-k sends indices, too";
  if (any_method(Method::exact)) text += "; exact saves nothing";
  text += "\n#\n#feedback";
  if (columns.weights) text += fmt::format(" {:>5}", "eta");
  text += fmt::format(" {:>8} {:>4} {:>6} {:>10}", "method", "r", "sent", columns.spread ? "mean" : "value");
  if (columns.spread) text += fmt::format(" {:>10}", "deviation");
  if (columns.specified) text += fmt::format(" {:>10} {:>10} {:>5}", "specified", "+-", "");
  while (text.back() == ' ') text.pop_back();
  text += "\n";
  for (const auto& result : results) text += row_of(result, columns);
  return text + "\n";
}

// Splits the results by problem. No part is empty.
std::vector<std::span<const ConvergenceResult>> by_problem(std::span<const ConvergenceResult> results) {
  std::vector<std::span<const ConvergenceResult>> parts;
  for (size_t first = 0, i = 0; i < results.size(); ++i) {
    if (i + 1 < results.size() && results[i + 1].what.settings.problem == results[i].what.settings.problem) continue;
    parts.push_back(results.subspan(first, i + 1 - first));
    first = i + 1;
  }
  return parts;
}

Json finite(double value) { return std::isfinite(value) ? Json(value) : Json(); }

Json object_of(const ConvergenceResult& result) {
  const auto& s = result.what.settings;
  const auto& matrix = facts_of(result).matrix;
  const auto spread = spread_of(result);
  Json json{{"problem", facts_of(result).name},
            {"measure", facts_of(result).measure},
            {"method", method_name(s.method)},
            {"feedback", s.method == Method::dense ? Json() : Json(feedback_name(s.feedback))},
            {"eta", s.method != Method::dense && s.feedback.kind == Feedback::ef21m
                        ? Json(std::stod(fmt::format("{}", s.feedback.eta)))
                        : Json()},
            {"sketch_rank", s.method == Method::arc ? Json(s.sketch_rank) : Json()},
            {"ranks", s.ranks},
            {"rows", matrix.rows},
            {"columns", matrix.columns},
            {"kept_rows", s.method == Method::dense ? matrix.rows : kept_of(s)},
            {"elements_sent", sim::sent_elements(sim::ranks_options(s))},
            {"steps", s.steps},
            {"step_size", s.step_size},
            {"seeds", result.what.seeds},
            {"mean", finite(spread.mean)},
            {"deviation", finite(spread.deviation)}};
  const auto specified = specified_of(result.what);
  json["specified"] = specified ? Json(specified->value) : Json();
  json["tolerance"] = specified ? Json(specified->tolerance) : Json();
  json["ok"] = specified ? Json(!is_off(result)) : Json();
  json["runs"] = Json::array();
  for (size_t i = 0; i < result.outcomes.size(); ++i) {
    const auto& outcome = result.outcomes[i];
    Json run{{"seed", result.what.seeds[i]},
             {"value", finite(outcome.value)},
             {"diverged_in", outcome.diverged_in ? Json(*outcome.diverged_in) : Json()},
             {"curve", Json::array()}};
    for (const auto& point : outcome.curve) run["curve"].push_back({point.step, point.value});
    json["runs"].push_back(std::move(run));
  }
  return json;
}

// Plots the mean over the seeds. The area from the smallest to the largest value is shaded. At each step, only the seeds that
// reached it are shown. Later lines are thinner, so that earlier lines below them stay visible.
Series series_of(const ConvergenceResult& result, const std::string& name, size_t index) {
  const bool is_dense = result.what.settings.method == Method::dense;
  const double width = is_dense ? 1.5 : std::max(1.2, 3.6 - 0.6 * static_cast<double>(index));
  Series series{
      .name = name, .colour = is_dense ? "#444444" : line_colour(index), .line_width = width, .dashed = is_dense, .points = {}};
  size_t longest = 0;
  for (const auto& outcome : result.outcomes) longest = std::max(longest, outcome.curve.size());
  for (size_t i = 0; i < longest; ++i) {
    double sum = 0, low = std::numeric_limits<double>::infinity(), high = -low, step = 0;
    size_t count = 0;
    for (const auto& outcome : result.outcomes) {
      if (i >= outcome.curve.size()) continue;
      const auto& point = outcome.curve[i];
      step = static_cast<double>(point.step);
      sum += point.value, ++count;
      low = std::min(low, point.value), high = std::max(high, point.value);
    }
    series.points.push_back({step, sum / static_cast<double>(count)});
    if (result.outcomes.size() > 1) series.lower.push_back(low), series.upper.push_back(high);
  }
  return series;
}

// Returns the name of a line in the plot. with_rank: the name contains the sketch rank, as in "arc, r 4".
std::string line_name(const sim::TrainingSettings& s, bool with_rank) {
  return s.method == Method::arc && with_rank ? fmt::format("arc, r {}", s.sketch_rank) : std::string(method_name(s.method));
}

Panel empty_panel(const ConvergenceResult& result, const std::string& feedback) {
  const auto& s = result.what.settings;
  const bool is_quadratic = s.problem == ProblemKind::quadratic;
  const auto seeds = result.what.seeds.size() > 1 ? fmt::format(", {} seeds", result.what.seeds.size()) : "";
  return {.title = fmt::format("{}, {}: {} ranks, {} of {} rows{}", facts_of(result).name, feedback, s.ranks, kept_of(s),
                               facts_of(result).matrix.rows, seeds),
          .x_label = "steps",
          .y_label = facts_of(result).measure,
          .series = {},
          .y_axis = is_quadratic ? Axis::decades : Axis::linear,
          .legend = is_quadratic ? Corner::lower_left : Corner::upper_right};
}

void add_panels(std::span<const ConvergenceResult> results, std::vector<Panel>& panels) {
  // the names of the lines (the index of a name decides its colour), and the names of the panels
  std::vector<std::string> names, feedbacks;
  uint32_t ranks = 0;
  bool several_ranks = false;
  for (const auto& result : results) {
    const auto& s = result.what.settings;
    if (s.method != Method::arc) continue;
    several_ranks = several_ranks || (ranks != 0 && ranks != s.sketch_rank);
    ranks = s.sketch_rank;
  }
  const auto index_of = [](std::vector<std::string>& all, const std::string& name) {
    const auto at = std::find(all.begin(), all.end(), name);
    if (at != all.end()) return static_cast<size_t>(at - all.begin());
    all.push_back(name);
    return all.size() - 1;
  };
  const ConvergenceResult* dense = nullptr;
  const auto first_panel = panels.size();
  const auto begin_panel = [&](const ConvergenceResult& result, const std::string& feedback) {
    panels.push_back(empty_panel(result, feedback));
    panels.back().new_row = panels.size() - 1 == first_panel;
    if (dense != nullptr) panels.back().series.push_back(series_of(*dense, "dense", 0));
  };
  for (const auto& result : results) {
    const auto& s = result.what.settings;
    if (s.method == Method::dense) {
      dense = &result;
      continue;
    }
    const auto short_name = feedback_name(s.feedback);
    const auto feedback = short_name == "none"    ? "no feedback"
                          : short_name == "ef21m" ? fmt::format("ef21m {:.4g}", s.feedback.eta)
                                                  : std::string(short_name);
    if (index_of(feedbacks, feedback) == panels.size() - first_panel) begin_panel(result, feedback);
    const auto name = line_name(s, several_ranks);
    panels.back().series.push_back(series_of(result, name, index_of(names, name)));
  }
  if (feedbacks.empty() && dense != nullptr) begin_panel(*dense, "dense");
}

}  // namespace

Spread spread_of(const ConvergenceResult& result) {
  Spread spread;
  double sum = 0, squares = 0, count = 0;
  for (const auto& outcome : result.outcomes) {
    if (outcome.diverged_in) ++spread.diverged;
    else sum += outcome.value, ++count;
  }
  spread.mean = sum / count;
  for (const auto& outcome : result.outcomes)
    squares += outcome.diverged_in ? 0 : (outcome.value - spread.mean) * (outcome.value - spread.mean);
  spread.deviation = std::sqrt(squares / (count - 1));
  return spread;
}

std::optional<sim::SpecifiedValue> specified_of(const ConvergenceCase& one) {
  return one.seeds.size() == 1 ? sim::specified_value(one.settings) : std::nullopt;
}

Verdicts verdicts_of(std::span<const ConvergenceResult> results) {
  Verdicts verdicts;
  for (const auto& result : results) {
    verdicts.compared += specified_of(result.what).has_value();
    verdicts.off += is_off(result);
  }
  return verdicts;
}

std::string table_of(std::span<const ConvergenceResult> results) {
  std::string text;
  for (const auto& part : by_problem(results)) text += table_of_problem(part);
  const auto verdicts = verdicts_of(results);
  if (verdicts.compared == 0) return text + "# docs/design/methods/arc_top_k.md has no values for these settings.\n";
  text += fmt::format("# {} of {} values are as specified in docs/design/methods/arc_top_k.md\n",
                      verdicts.compared - verdicts.off, verdicts.compared);
  return text;
}

std::string json_of(std::span<const ConvergenceResult> results) {
  std::string text;
  for (const auto& result : results) text += object_of(result).dump() + "\n";
  const auto verdicts = verdicts_of(results);
  return text + Json{{"results", results.size()}, {"compared", verdicts.compared}, {"off", verdicts.off}}.dump() + "\n";
}

std::vector<Panel> panels_of(std::span<const ConvergenceResult> results) {
  std::vector<Panel> panels;
  for (const auto& part : by_problem(results)) add_panels(part, panels);
  return panels;
}

}  // namespace unisono::lab
