#include "lab/drop_compute/drop_study.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/clock.h"

namespace unisono::lab {

using cli::Corner;
using cli::line_colour;
using cli::Panel;
using cli::Point;
using cli::Series;

namespace {

constexpr size_t bins_least = 12, bins_most = 60, curve_points = 300, table_points = 200;
constexpr double speedup_shown = 0.8;  // plots leave out speed-ups below this value, because they are far below the best ones

// Returns how long it takes with this threshold until the last worker has stopped, in seconds from the start of the step.
double compute_under(const ComputeTrace& trace, const StopRule& rule, int64_t threshold_ns, size_t step) {
  if (rule.rule == DropRule::at) return seconds_of(std::min(threshold_ns, trace.compute_ns(step)));
  int64_t last = 0;
  for (size_t worker = 0; worker < trace.workers; ++worker) {
    const auto ends = trace.ends_of(step, worker);
    const auto computed = computed_by(rule, threshold_ns, ends);
    if (computed > 0) last = std::max(last, ends[computed - 1]);
  }
  return seconds_of(last);
}

double mean_without(std::span<const double> values, size_t left_out) {
  if (values.size() < 2) return 0;
  return (std::accumulate(values.begin(), values.end(), 0.0) - values[left_out]) / static_cast<double>(values.size() - 1);
}

size_t index_of_highest(std::span<const double> values) {
  return static_cast<size_t>(std::max_element(values.begin(), values.end()) - values.begin());
}

RuleStudy study_rule(const ComputeTrace& trace, DropRule rule, const DropOptions& choice) {
  RuleStudy study{.rule = rule,
                  .options = search_options(options_for(rule, choice), trace),
                  .outcome = {},
                  .drop_by_worker = {},
                  .step_times = {}};
  study.outcome = search(trace, study.options);
  if (!study.found()) return study;
  const auto threshold = study.outcome.best.threshold_ns;
  study.drop_by_worker = drop_by_worker(trace, study.options.rule, threshold);
  study.most = index_of_highest(study.drop_by_worker);
  study.straggles = persistent_straggler(study.drop_by_worker).has_value();
  for (size_t step = 0; step < trace.steps(); ++step)
    study.step_times.push_back(compute_under(trace, study.options.rule, threshold, step) + study.outcome.other_ns / 1e9);
  return study;
}

double objective_of(const ThresholdValue& value, DropOptions::Objective objective) {
  return objective == DropOptions::Objective::total ? value.total : value.step;
}

// Returns the oracle's best value. The candidates are the thresholds of grid(), and the best threshold of each rule plus 1 ns.
// The 1 ns is added because the oracle drops a micro-batch that ends exactly at the threshold.
ThresholdValue best_oracle(const ComputeTrace& trace, const DropOptions& choice, const std::vector<RuleStudy>& rules) {
  const double other = trace.other_ns();
  auto candidates = grid(trace, other);
  for (const auto& study : rules) {
    if (study.found()) candidates.push_back(oracle_value(trace, study.outcome.best.threshold_ns + 1, other));
  }
  ThresholdValue best;
  for (const auto& value : candidates) {
    if (value.drop <= choice.max_drop && objective_of(value, choice.objective) > objective_of(best, choice.objective))
      best = value;
  }
  return best;
}

}  // namespace

Moments moments_of(std::span<const double> values) {
  if (values.empty()) return {};
  const auto count = static_cast<double>(values.size());
  Moments moments{.mean = std::accumulate(values.begin(), values.end(), 0.0) / count};
  double squares = 0;
  for (const double value : values) squares += (value - moments.mean) * (value - moments.mean);
  moments.deviation = std::sqrt(squares / count);
  return moments;
}

DropOptions options_for(DropRule rule, DropOptions options) {
  options.rule = rule;
  if (rule != DropRule::after) options.lag = 0;
  if (rule == DropRule::at) options.min_computed = DropOptions{}.min_computed;
  return options;
}

double TraceStudy::step_mean() const { return moments_of(compute_times).mean + other; }

TraceStudy study_of(const ComputeTrace& trace, const DropOptions& choice, std::span<const DropRule> rules) {
  TraceStudy study{.workers = trace.workers,
                   .micro_batches = trace.micro_batches,
                   .steps = trace.steps(),
                   .other = trace.other_ns() / 1e9,
                   .micro_batch = seconds_of(trace.micro_batch_ns()),
                   .rules = {},
                   .oracle = {},
                   .compute_times = {},
                   .worker_means = std::vector<double>(trace.workers)};
  for (const auto rule : rules) study.rules.push_back(study_rule(trace, rule, choice));
  study.oracle = best_oracle(trace, choice, study.rules);
  for (size_t step = 0; step < study.steps; ++step) {
    study.compute_times.push_back(seconds_of(trace.compute_ns(step)));
    for (size_t worker = 0; worker < trace.workers; ++worker)
      study.worker_means[worker] += seconds_of(trace.ends_of(step, worker).back()) / static_cast<double>(study.steps);
  }
  study.slowest = index_of_highest(study.worker_means);
  const double others = mean_without(study.worker_means, study.slowest);
  study.slowness = others > 0 ? study.worker_means[study.slowest] / others : 1;
  return study;
}

namespace {

// Plots a histogram as a shaded staircase. The range [low, high] is cut into `bins` equal parts, and each part shows the
// percentage of values in it.
Series histogram(std::string name, const char* colour, std::span<const double> values, double low, double high, size_t bins) {
  std::vector<double> counts(bins);
  const double width = (high - low) / static_cast<double>(bins);
  for (const double value : values)
    ++counts[std::min<size_t>(bins - 1, static_cast<size_t>(std::max(0.0, (value - low) / width)))];
  Series series{.name = std::move(name), .colour = colour, .points = {{low, 0}}};
  for (size_t i = 0; i < bins; ++i) {
    const double share = 100 * counts[i] / static_cast<double>(values.size());
    series.points.push_back({low + width * static_cast<double>(i), share});
    series.points.push_back({low + width * static_cast<double>(i + 1), share});
  }
  series.points.push_back({high, 0});
  for (const auto& point : series.points) series.lower.push_back(0), series.upper.push_back(point.y);
  return series;
}

// Reduces the values to as many points as a plot can show, by taking the best value in each part of the axis. Values before the
// first one that reaches speedup_shown are left out.
std::vector<Point> thinned(const std::vector<ThresholdValue>& values, const DropOptions::Objective objective) {
  std::vector<Point> points;
  if (values.empty()) return points;
  const double low = seconds_of(values.front().threshold_ns), span = seconds_of(values.back().threshold_ns) - low;
  size_t last_part = curve_points + 1;
  for (const auto& value : values) {
    const Point point{seconds_of(value.threshold_ns), objective_of(value, objective)};
    if (points.empty() && point.y < speedup_shown) continue;
    const auto part = span > 0 ? static_cast<size_t>((point.x - low) / span * curve_points) : 0;
    if (part != last_part) points.push_back(point);
    else if (point.y > points.back().y) points.back() = point;
    last_part = part;
  }
  return points;
}

}  // namespace

const char* rule_colour(DropRule rule) { return line_colour(static_cast<size_t>(rule)); }

Panel compute_panel(const ComputeTrace& trace) {
  std::vector<double> all, slowest;
  for (size_t step = 0; step < trace.steps(); ++step) {
    slowest.push_back(seconds_of(trace.compute_ns(step)));
    for (size_t worker = 0; worker < trace.workers; ++worker) all.push_back(seconds_of(trace.ends_of(step, worker).back()));
  }
  double low = *std::min_element(all.begin(), all.end()), high = *std::max_element(all.begin(), all.end());
  if (low == high) low *= 0.9, high = high * 1.1 + 1e-9;
  const auto bins = std::clamp(static_cast<size_t>(3 * std::sqrt(static_cast<double>(trace.steps()))), bins_least, bins_most);
  Panel panel{.title = fmt::format("Compute times of a step, {} workers, {} steps", trace.workers, trace.steps()),
              .x_label = "compute time of a worker (s)",
              .y_label = "share (%)",
              .series = {},
              .y_from_zero = true};
  panel.series.push_back(histogram("all workers", "#7f7f7f", all, low, high, bins));
  panel.series.push_back(histogram("slowest of the step", "#ff7f0e", slowest, low, high, bins));
  return panel;
}

Panel thresholds_panel(const ComputeTrace& trace, const TraceStudy& study) {
  const double other = trace.other_ns();
  const bool total = !study.rules.empty() && study.rules[0].options.objective == DropOptions::Objective::total;
  const auto objective = total ? DropOptions::Objective::total : DropOptions::Objective::step_mean;
  Panel panel{.title = "Speed-up against the threshold",
              .x_label = "threshold (s)",
              .y_label = total ? "S_total" : "S_step",
              .series = {},
              .legend = Corner::lower_right};
  panel.series.push_back({.name = "oracle (bound)",
                          .colour = "#888888",
                          .line_width = 1,
                          .dashed = true,
                          .points = thinned(grid(trace, other), objective)});
  std::vector<Series> chosen;
  for (const auto& rule : study.rules) {
    const auto name = std::string(rule_name(rule.rule));
    panel.series.push_back({.name = name,
                            .colour = rule_colour(rule.rule),
                            .line_width = 3 - static_cast<double>(panel.series.size()) / 2,
                            .points = thinned(sweep(trace, rule.options.rule, other), objective)});
    if (!rule.found()) continue;
    const auto& best = rule.outcome.best;
    chosen.push_back({.name = fmt::format("{}: {}{}{}", name, time_text(seconds_of(best.threshold_ns)),
                                          rule.rule == DropRule::at ? ", with rests" : "", rule.on() ? "" : ", off"),
                      .colour = rule_colour(rule.rule),
                      .markers = true,
                      .points = {{seconds_of(best.threshold_ns), objective_of(best, objective)}}});
  }
  panel.series.insert(panel.series.end(), chosen.begin(), chosen.end());
  return panel;
}

Panel step_times_panel(const std::vector<StepTimes>& all) {
  Panel panel{.title = "Times of steps",
              .x_label = "step time (s)",
              .y_label = "steps that took no longer (%)",
              .series = {},
              .legend = Corner::lower_right};
  for (const auto& [name, colour, unsorted, dashed] : all) {
    auto times = unsorted;
    if (times.empty()) continue;
    std::sort(times.begin(), times.end());
    const auto index = static_cast<double>(panel.series.size());
    Series series{.name = name,
                  .colour = colour,
                  .line_width = std::max(1.2, 4 - 0.7 * index),
                  .dashed = dashed,
                  .points = {{times.front(), 0}}};
    const auto count = std::min(times.size(), table_points);
    for (size_t k = 1; k <= count; ++k)
      series.points.push_back({times[k * times.size() / count - 1], 100 * static_cast<double>(k) / static_cast<double>(count)});
    panel.series.push_back(std::move(series));
  }
  return panel;
}

}  // namespace unisono::lab
