#include "lab/drop_compute/drop_plan_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "training/drop_compute/threshold_search.h"

namespace unisono::lab {

using cli::Axis;
using cli::Corner;
using cli::line_colour;
using cli::Panel;
using cli::Point;
using cli::Series;

namespace {

using Json = nlohmann::ordered_json;

constexpr double no_number = std::numeric_limits<double>::quiet_NaN();
constexpr size_t curve_points = 300;

double drop_at(const ComputeModel& model, double threshold) {
  return 1 - expected_computed_at(model, threshold) / model.micro_batches;
}

// Returns a threshold that is so high that practically nothing is dropped.
double highest_threshold(const ComputeModel& model) {
  return model.micro_batches * model.mean + 8 * model.deviation * std::sqrt(model.micro_batches);
}

// Returns the lowest threshold that drops at most max_drop. It is found by bisection, because the dropped fraction falls as the
// threshold rises.
//
// If the best threshold tau* drops more than max_drop, the returned threshold is the best one that is allowed, because E[B] /
// (tau + Tc) falls beyond tau*. The reason is this: the ratio has at most one local maximum for each micro-batch m, with the
// height m / (m mu + c sigma sqrt(m) + Tc). This height rises with m, so the last local maximum is the highest.
double least_within(const ComputeModel& model, double max_drop) {
  double low = model.mean, high = highest_threshold(model);
  for (int i = 0; i < 100; ++i) {
    const double middle = (low + high) / 2;
    (drop_at(model, middle) > max_drop ? low : high) = middle;
  }
  return high;
}

WorkersForecast forecast_for(const ComputeModel& model, uint64_t workers, double threshold) {
  WorkersForecast row{.workers = workers,
                      .factor = expected_maximum(workers),
                      .factor_closed = workers > 1 ? expected_maximum_closed(workers) : no_number,
                      .threshold = threshold,
                      .drop = drop_at(model, threshold)};
  row.compute = expected_compute(model, row.factor);
  row.speedup = expected_speedup(model, threshold, row.factor);
  row.compute_closed = workers > 1 ? expected_compute(model, row.factor_closed) : no_number;
  row.speedup_closed = workers > 1 ? expected_speedup(model, threshold, row.factor_closed) : no_number;
  return row;
}

// Returns the speed-up under rule `at`. compute: the mean, over the steps, of the slowest worker's compute time.
double speedup_of(double compute, double other, double threshold, double drop) {
  return (1 - drop) * (compute + other) / (std::min(threshold, compute) + other);
}

double traced_drop(const ComputeTrace& trace, double threshold) {
  return value_of(trace, {.rule = DropRule::at}, std::llround(threshold * 1e9), trace.other_ns()).drop;
}

double mean_compute(const ComputeTrace& trace) {
  double sum = 0;
  for (size_t step = 0; step < trace.steps(); ++step) sum += seconds_of(trace.compute_ns(step));
  return sum / static_cast<double>(trace.steps());
}

template <typename Speedup>
std::vector<Point> curve(double low, double high, const Speedup& speedup) {
  std::vector<Point> points;
  for (size_t i = 0; i <= curve_points; ++i) {
    const double threshold = low + (high - low) * static_cast<double>(i) / curve_points;
    points.push_back({threshold, speedup(threshold)});
  }
  return points;
}

double rule_drop(const DropPlan& plan, double threshold) {
  if (plan.rule == DropRule::at) return drop_at(plan.model, threshold);
  // rule `before` gives the same result as rule `after` with a threshold that is lower by the mean latency of a micro-batch
  const double shifted = plan.rule == DropRule::before ? threshold - plan.model.mean : threshold;
  return 1 - expected_computed_after(plan.model, shifted, plan.lag) / plan.model.micro_batches;
}

}  // namespace

std::string WorkersForecast::off_reason() const {
  if (workers == 1) return "off: a single worker has no other worker to wait for";
  return speedup > 1 ? "" : "off: what is dropped outweighs the shorter steps (S_eff <= 1)";
}

DropForecast forecast_of(const DropPlan& plan) {
  const auto& model = plan.model;
  DropForecast forecast{.plan = plan,
                        .micro_batches = model.micro_batches,
                        .other = model.other,
                        .workers = {},
                        .recorded = {},
                        .by_threshold = {}};
  double threshold = 0;
  if (plan.threshold) {
    threshold = *plan.threshold;
  } else {
    const auto best = best_threshold(model);
    forecast.held_by_max_drop = best.drop > plan.max_drop;
    forecast.local_maxima = best.local_maxima;
    threshold = forecast.held_by_max_drop ? least_within(model, plan.max_drop) : best.threshold;
  }
  for (const auto workers : powers_of_two_to(plan.workers)) forecast.workers.push_back(forecast_for(model, workers, threshold));
  forecast.rule_drop = rule_drop(plan, threshold);
  const auto& last = forecast.workers.back();
  const double span = model.deviation * std::sqrt(model.micro_batches);
  forecast.by_threshold =
      curve(std::max(model.mean, 0.6 * model.micro_batches * model.mean), std::max(last.compute, threshold) + 2 * span,
            [&](double at) { return expected_speedup(model, at, last.factor); });
  return forecast;
}

DropForecast forecast_of(const DropPlan& plan, const ComputeTrace& trace) {
  DropForecast forecast{.plan = plan,
                        .micro_batches = trace.micro_batches,
                        .other = trace.other_ns() / 1e9,
                        .workers = {},
                        .recorded = {},
                        .by_threshold = {}};
  const auto speedup = [&](double compute, double threshold, double drop) {
    return speedup_of(compute, forecast.other, threshold, drop);
  };
  for (const auto workers : powers_of_two_to(plan.workers)) {
    const auto found = forecast_from(trace, workers, plan.max_drop);
    WorkersForecast row{.workers = workers,
                        .factor = no_number,
                        .factor_closed = no_number,
                        .compute = found.compute,
                        .compute_closed = no_number,
                        .threshold = found.threshold,
                        .drop = found.drop,
                        .speedup = found.speedup,
                        .speedup_closed = no_number,
                        .too_few_records = found.too_few_records};
    if (plan.threshold) {
      row.threshold = *plan.threshold;
      row.drop = traced_drop(trace, row.threshold);
      row.speedup = speedup(row.compute, row.threshold, row.drop);
    }
    forecast.workers.push_back(row);
  }
  const auto& last = forecast.workers.back();
  forecast.rule_drop = last.drop;
  forecast.held_by_max_drop = !plan.threshold && forecast_from(trace, plan.workers, 1).drop > plan.max_drop;
  forecast.recorded = {.workers = trace.workers,
                       .steps = trace.steps(),
                       .compute = mean_compute(trace),
                       .independent = forecast_from(trace, trace.workers, 1).compute};
  double least = last.compute;
  for (size_t step = 0; step < trace.steps(); ++step) {
    for (size_t worker = 0; worker < trace.workers; ++worker)
      least = std::min(least, seconds_of(trace.ends_of(step, worker).back()));
  }
  forecast.by_threshold = curve(0.6 * least, 1.1 * std::max(last.compute, last.threshold),
                                [&](double at) { return speedup(last.compute, at, traced_drop(trace, at)); });
  return forecast;
}

namespace {

std::string head_of(const DropForecast& forecast) {
  const auto& plan = forecast.plan;
  std::string text;
  if (const auto& recorded = forecast.recorded) {
    text = fmt::format("# rule at, from {}: {} workers, {} steps of {} micro-batches; workers taken as independent\n",
                       plan.trace == "-" ? "standard input" : plan.trace, recorded->workers, recorded->steps,
                       forecast.micro_batches);
    text +=
        fmt::format("# slowest of {}: {} as recorded, {} if they were independent; {} beside computing\n", recorded->workers,
                    time_text(recorded->compute), time_text(recorded->independent), time_text(forecast.other));
  } else {
    text = "# rule at, by closed forms: independent latencies, normally distributed sums\n";
    text += fmt::format("# {} of mean {}, standard deviation {}; {} beside computing\n",
                        plural(forecast.micro_batches, "micro-batch", "es"), time_text(plan.model.mean),
                        time_text(plan.model.deviation), time_text(forecast.other));
  }
  return text;
}

// Returns the lines about the threshold. They are valid for any number of workers.
std::string threshold_lines(const DropForecast& forecast) {
  const auto& plan = forecast.plan;
  const auto& last = forecast.workers.back();
  auto text = fmt::format("# {} {:.8g} s{}: p = {} dropped under rule at; {} more steps for as many micro-batches\n",
                          plan.threshold              ? "threshold"
                          : forecast.held_by_max_drop ? "best allowed threshold"
                                                      : "best threshold",
                          last.threshold, forecast.recorded ? "" : ", the same for any number of workers",
                          percent_text(last.drop), percent_text(extra_steps(last.drop)));
  if (forecast.held_by_max_drop)
    text += fmt::format("# a lower one would be better, but would drop more than {}\n", percent_text(plan.max_drop));
  if (plan.rule != DropRule::at) {
    text += fmt::format(
        "# rule {0}{1} at that threshold: p = {2}. How long its steps last has no closed form: the speed-ups below are those "
        "of rule at;\n"
        "# for rule {0}: unisono-lab drop-compute simulate --rule {0}\n",
        rule_name(plan.rule), plan.lag > 0 ? fmt::format(", lag {}", plan.lag) : "", percent_text(forecast.rule_drop));
  }
  return text;
}

std::string number(double value, int digits) { return std::isfinite(value) ? fmt::format("{:.{}f}", value, digits) : "-"; }
std::string time_or_dash(double value) { return std::isfinite(value) ? time_text(value) : "-"; }

std::string note_of(const WorkersForecast& row) {
  const auto off = row.off_reason();
  const auto warning = row.too_few_records ? std::string("few records") : std::string();
  if (off.empty() && warning.empty()) return "";
  return "  " + off + (off.empty() || warning.empty() ? "" : "; ") + warning;
}

std::string row_of(const DropForecast& forecast, const WorkersForecast& row) {
  if (forecast.recorded)
    return fmt::format(" {:>8} {:>10} {:>10} {:>8} {:>9.6f}{}\n", row.workers, time_text(row.compute), time_text(row.threshold),
                       percent_text(row.drop), row.speedup, note_of(row));
  return fmt::format(" {:>8} {:>8} {:>8} {:>10} {:>10} {:>9.6f} {:>9}{}\n", row.workers, number(row.factor, 6),
                     number(row.factor_closed, 6), time_text(row.compute), time_or_dash(row.compute_closed), row.speedup,
                     number(row.speedup_closed, 6), note_of(row));
}

Json finite(double value) { return std::isfinite(value) ? Json(value) : Json(); }

}  // namespace

std::string table_of(const DropForecast& forecast) {
  const auto& last = forecast.workers.back();
  auto text = head_of(forecast) + threshold_lines(forecast);
  text +=
      "# E[T]: how long the slowest of the workers computes; S_eff: micro-batches per second, of those without a threshold, "
      "rule at\n#\n";
  if (forecast.recorded) {
    text += fmt::format("#{:>8} {:>10} {:>10} {:>8} {:>9}\n", "workers", "E[T]", "threshold", "p", "S_eff");
  } else {
    text += fmt::format("#{:>8} {:>8} {:>8} {:>10} {:>10} {:>9} {:>9}\n", "workers", "z", "z(N)", "E[T]", "by z(N)", "S_eff",
                        "by z(N)");
  }
  for (const auto& row : forecast.workers) text += row_of(forecast, row);
  if (last.too_few_records) {
    text += fmt::format(
        "\n# caution: {} workers are more than a tenth of the {} recorded times of a worker's step: the slowest that decide "
        "were hardly seen\n",
        last.workers, forecast.recorded->steps * forecast.recorded->workers);
  }
  const auto off = last.off_reason();
  const auto workers = plural(last.workers, "worker");
  if (!off.empty()) return text + fmt::format("\n# {}: {}\n", workers, off);
  return text +
         fmt::format("\n# {}: a threshold of {:.8g} s gives {:.4f} times as many micro-batches per second, under rule at\n",
                     workers, last.threshold, last.speedup);
}

std::string json_of(const DropForecast& forecast) {
  const auto& plan = forecast.plan;
  const auto& last = forecast.workers.back();
  Json json{{"kind", "plan"},
            {"rule_of_speedups", "at"},
            {"workers", plan.workers},
            {"micro_batches", forecast.micro_batches},
            {"comm_s", forecast.other}};
  if (const auto& recorded = forecast.recorded) {
    json["trace"] = plan.trace;
    json["recorded"] = {{"workers", recorded->workers},
                        {"steps", recorded->steps},
                        {"compute_s", recorded->compute},
                        {"independent_compute_s", recorded->independent}};
  } else {
    json["mean_s"] = plan.model.mean;
    json["sd_s"] = plan.model.deviation;
  }
  json["max_drop"] = plan.max_drop;
  json["threshold_given"] = plan.threshold.has_value();
  json["threshold_s"] = last.threshold;
  json["drop"] = last.drop;
  json["extra_steps"] = finite(extra_steps(last.drop));
  json["local_maxima"] = forecast.local_maxima > 0 ? Json(forecast.local_maxima) : Json();
  json["held_by_max_drop"] = forecast.held_by_max_drop;
  if (plan.rule != DropRule::at)
    json["other_rule"] = {{"rule", rule_name(plan.rule)}, {"lag", plan.lag}, {"drop", forecast.rule_drop}};
  const auto line = [](const Json& object) { return object.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"; };
  auto text = line(json);
  for (const auto& row : forecast.workers) {
    const auto off = row.off_reason();
    text += line({{"kind", "workers"},
                  {"rule", "at"},
                  {"workers", row.workers},
                  {"z_exact", finite(row.factor)},
                  {"z", finite(row.factor_closed)},
                  {"compute_s", row.compute},
                  {"compute_by_z_s", finite(row.compute_closed)},
                  {"threshold_s", row.threshold},
                  {"drop", row.drop},
                  {"speedup", row.speedup},
                  {"speedup_by_z", finite(row.speedup_closed)},
                  {"off", off.empty() ? Json() : Json(off.substr(5))},
                  {"too_few_records", row.too_few_records}});
  }
  return text;
}

std::vector<Panel> panels_of(const DropForecast& forecast) {
  const auto& last = forecast.workers.back();
  Panel workers{.title = "Speed-up against workers, rule at",
                .x_label = "workers",
                .y_label = "micro-batches per second, of those without",
                .series = {},
                .x_axis = Axis::bytes,
                .legend = Corner::lower_right};
  Series exact{.name = forecast.recorded ? "from the trace" : "exact maximum", .colour = line_colour(0), .points = {}},
      closed{.name = "by z(N)", .colour = line_colour(1), .dashed = true, .points = {}};
  Series none{.name = "no threshold", .colour = "#888888", .line_width = 1, .points = {}};
  for (const auto& row : forecast.workers) {
    const auto x = static_cast<double>(row.workers);
    exact.points.push_back({x, row.speedup});
    closed.points.push_back({x, row.speedup_closed});
    none.points.push_back({x, 1});
  }
  workers.series = {none, exact};
  if (!forecast.recorded) workers.series.push_back(closed);
  workers.series.push_back({.name = fmt::format("{} workers: {:.3f}", last.workers, last.speedup),
                            .colour = line_colour(0),
                            .markers = true,
                            .points = {{static_cast<double>(last.workers), last.speedup}}});
  Panel thresholds{.title = fmt::format("Speed-up against the threshold, {} workers, rule at", last.workers),
                   .x_label = "threshold (s)",
                   .y_label = workers.y_label,
                   .series = {},
                   .legend = Corner::lower_left};
  thresholds.series.push_back({.name = "no threshold",
                               .colour = "#888888",
                               .line_width = 1,
                               .points = {{forecast.by_threshold.front().x, 1}, {forecast.by_threshold.back().x, 1}}});
  thresholds.series.push_back({.name = "S_eff", .colour = line_colour(0), .points = forecast.by_threshold});
  thresholds.series.push_back({.name = fmt::format("{} {}: {:.3f}, drops {}",
                                                   forecast.plan.threshold     ? "given"
                                                   : forecast.held_by_max_drop ? "best allowed"
                                                                               : "best",
                                                   time_text(last.threshold), last.speedup, percent_text(last.drop)),
                               .colour = line_colour(1),
                               .markers = true,
                               .points = {{last.threshold, last.speedup}}});
  return {workers, thresholds};
}

}  // namespace unisono::lab
