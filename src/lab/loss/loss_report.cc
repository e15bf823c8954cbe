#include "lab/loss/loss_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "lab/common/option_words.h"
#include "lab/loss/loss_text.h"
#include "training/sharded/drift.h"

namespace unisono::lab {

using cli::Corner;
using cli::Panel;
using cli::Point;
using cli::Series;

namespace {

using Json = nlohmann::ordered_json;

constexpr int what_width = 34;

std::string head_of(const LossResult& result) {
  const auto& s = result.plan.settings;
  const auto& r = s.ranks;
  auto text = fmt::format("# {} ranks, {}; {}, empty ranges: {}", r.peers, r.model.to_string(), sim::name(r.estimator),
                          name(r.on_empty));
  if (r.stale_max > 0) text += fmt::format("; copies fetched at {}", plural(r.stale_max, "step"));
  if (s.rho > 0) text += fmt::format("; rho {}", s.rho);
  if (r.travel == sim::Travel::differences) text += "; differences travel";
  if (r.missed == sim::Missed::zero) text += "; what is missed becomes zero";
  text += fmt::format("\n# {}, the first {} not measured; {} of {} elements in a shard; {}\n", plural(s.steps, "step"),
                      s.burn_in, plural(r.ranges, "range"), r.elements, seeds_text(result.plan.seeds));
  return text;
}

std::string explanation_of(const std::string& group) {
  if (group == "estimates") return "estimates: fixed, unequal gradients; deviation: mean of estimate - true mean";
  if (group == "drift") return "drift: in units of sigma_u^2, the second moment of an update";
  return "fixed point: rank i is drawn to i^2, gradients at stale copies";
}

Series line(std::string name, const char* colour, double width, bool dashed, std::vector<Point> points) {
  return {.name = std::move(name), .colour = colour, .line_width = width, .dashed = dashed, .points = std::move(points)};
}

// Plots how drift changes over the steps, in units of the second moment of an update.
Panel drift_panel(const LossResult& result) {
  constexpr const char* owner_colour = "#1f77b4";
  constexpr const char* pair_colour = "#d62728";
  const auto& outcome = *result.drift;
  const auto& ranks = result.plan.settings.ranks;
  const bool has_pairs = ranks.peers > 2;
  const double unit = outcome.update_moment(), last = static_cast<double>(result.plan.settings.steps);
  Panel panel{.title = fmt::format("Drift, {} ranks, {}", ranks.peers, ranks.model.to_string()),
              .x_label = "steps",
              .y_label = "mean squared difference / sigma_u^2",
              .series = {},
              .legend = Corner::lower_right,
              .y_from_zero = true};
  std::vector<Point> owner, pair;
  for (const auto& point : outcome.curve) {
    owner.push_back({static_cast<double>(point.step), point.owner / unit});
    pair.push_back({static_cast<double>(point.step), point.pair / unit});
  }
  const auto add_level = [&](const std::string& name, const char* colour, double value) {
    if (std::isfinite(value)) panel.series.push_back(line(name, colour, 1.8, true, {{0, value}, {last, value}}));
  };
  if (has_pairs) panel.series.push_back(line("P, two replicas", pair_colour, 2, false, pair));
  panel.series.push_back(line("O, owner against replica", owner_colour, 2, false, owner));
  if (result.plan.is_as_specified()) {
    const auto expected = expected_drift(result);
    if (has_pairs) add_level("P by formula", "#7f0000", expected.pair);
    add_level("O by formula", "#08306b", expected.owner);
    if (has_pairs)
      add_level("2p/(1+p), attributed, unconfirmed", "#7f7f7f", paper_form(sim::mean_loss(ranks.model, ranks.peers)));
  } else {
    panel.title += ranks.travel == sim::Travel::differences ? ", differences travel: a negative control"
                                                            : ", missed becomes zero: a negative control";
    panel.legend = Corner::upper_left;
    // Owners send differences, so drift is proportional to the number of steps. expected_drift() is its mean over the measured
    // steps. At the last step, drift is `times` as large as this mean.
    const auto expected = expected_drift(result);
    const double times = last / (static_cast<double>(result.plan.settings.burn_in + 1 + result.plan.settings.steps) / 2);
    const auto add_slope = [&](const char* name, const char* colour, double mean) {
      if (std::isfinite(mean)) panel.series.push_back(line(name, colour, 1.8, true, {{0, 0}, {last, mean * times}}));
    };
    if (has_pairs) add_slope("P by formula", "#7f0000", expected.pair);
    add_slope("O by formula", "#08306b", expected.owner);
  }
  return panel;
}

Panel deviation_panel(const LossResult& result) {
  const auto& outcome = *result.estimates;
  const auto& ranks = result.plan.settings.ranks;
  Panel panel{.title = fmt::format("Deviation of the mean, {} ranks, {}", ranks.peers, ranks.model.to_string()),
              .x_label = "estimator",
              .y_label = "mean of estimate - true mean",
              .series = {},
              .legend = Corner::lower_left};
  Series bars{.name = "measured", .colour = "#1f77b4", .bars = true, .points = {}},
      formula{.name = "by formula", .colour = "#d62728", .markers = true, .points = {}};
  const auto expected = expected_deviations(result.plan);
  for (size_t i = 0; i < sim::estimators.size(); ++i) {
    panel.categories.emplace_back(sim::name(sim::estimators[i]));
    const double measured = outcome.of[i].deviation.empty() ? 0 : outcome.of[i].deviation.mean(), x = static_cast<double>(i);
    bars.points.push_back({x, std::min(0., measured)});
    bars.upper.push_back(std::max(0., measured));
    formula.points.push_back({x, expected[i]});
  }
  panel.series = {bars, formula};
  return panel;
}

}  // namespace

std::string table_of(const LossResult& result, std::span<const LossCheck> checks) {
  auto text = head_of(result);
  const std::string* group = nullptr;
  for (const auto& check : checks) {
    if (group == nullptr || *group != check.group) text += head_of_checks(explanation_of(check.group), what_width, "formula");
    group = &check.group;
    text += line_of(check, what_width);
  }
  text += fmt::format("\n# {} as the formulae say, {} OFF, {} unsure\n", count_of(checks, CheckVerdict::ok),
                      count_of(checks, CheckVerdict::off), count_of(checks, CheckVerdict::unsure));
  return text;
}

std::string json_of(const LossResult& result, std::span<const LossCheck> checks) {
  const auto& s = result.plan.settings;
  const auto& r = s.ranks;
  auto text = Json{{"kind", "loss"},
                   {"peers", r.peers},
                   {"loss", r.model.to_string()},
                   {"estimator", sim::name(r.estimator)},
                   {"on_empty", name(r.on_empty)},
                   {"stale_max", r.stale_max},
                   {"rho", s.rho},
                   {"travel", r.travel == sim::Travel::values ? "values" : "differences"},
                   {"missed", r.missed == sim::Missed::stale ? "stale" : "zero"},
                   {"ranges", r.ranges},
                   {"elements", r.elements},
                   {"steps", s.steps},
                   {"burn_in", s.burn_in},
                   {"seeds", result.plan.seeds}}
                  .dump() +
              "\n";
  for (const auto& check : checks) text += value_of(check).dump() + "\n";
  if (result.drift) {
    Json curve{{"kind", "curve"},
               {"update_moment", finite(result.drift->update_moment())},
               {"points", Json::array()},
               {"ages", result.drift->ages}};
    for (const auto& point : result.drift->curve)
      curve["points"].push_back({point.step, point.owner, r.peers > 2 ? Json(point.pair) : Json()});
    text += curve.dump() + "\n";
  }
  return text + verdict_of(checks).dump() + "\n";
}

std::vector<Panel> panels_of(const LossResult& result) {
  std::vector<Panel> panels;
  if (result.drift) panels.push_back(drift_panel(result));
  if (result.estimates) panels.push_back(deviation_panel(result));
  return panels;
}

}  // namespace unisono::lab
