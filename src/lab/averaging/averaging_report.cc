#include "lab/averaging/averaging_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

#include "elastic/layout/moshpit_grid.h"
#include "elastic/roster/flat_advice.h"
#include "lab/averaging/averaging_law.h"
#include "lab/common/option_words.h"

namespace unisono::lab {

using cli::Axis;
using cli::Corner;
using cli::line_colour;
using cli::Panel;
using cli::Point;
using cli::Series;

namespace {

using Json = nlohmann::ordered_json;
using sim::AveragingAlgorithm;

constexpr double drawn_least = 1e-20;  // variances below this value are rounding errors, so a curve ends here

std::string dims_text(const std::vector<uint32_t>& dims) { return fmt::format("{}", fmt::join(dims, "x")); }

// What the formulae in docs/design/methods/moshpit.md, "Laws", give for one number of peers and one probability of absence.
struct Law {
  double all_reduce_rounds = 0;      // F5 of moshpit.md
  double random_factor = 0;          // F3 of moshpit.md
  double fitted_first_variance = 0;  // F4 of moshpit.md
  // F4 of moshpit.md. It is set only for full grids, because the lines of other grids may be empty.
  std::optional<double> published_first_variance;
  double break_even = 0;  // F7 of moshpit.md
};
Law law_of(const AveragingPlan& plan, uint32_t peers, double absence) {
  const auto fitted = fitted_dims(peers, plan.max_group), published = published_dims(peers, plan.max_group);
  const auto lines = [](const std::vector<uint32_t>& dims) {
    uint32_t count = 1;
    for (size_t axis = 1; axis < dims.size(); ++axis) count *= dims[axis];
    return count;
  };
  const sim::AbsenceCase one{.peers = peers, .absence = absence, .group = plan.max_group};
  Law law{.all_reduce_rounds = sim::restarted_rounds(one, sim::averaging_rounds_cap),
          .random_factor = sim::random_groups_factor(one),
          .fitted_first_variance = sim::first_round_variance(one, lines(fitted)),
          .published_first_variance = {},
          .break_even = flat_break_even(peers, fitted)};
  if (is_full_grid(peers, plan.max_group)) law.published_first_variance = sim::first_round_variance(one, lines(published));
  return law;
}

std::string seeds_text(uint32_t restarts) { return restarts == 1 ? "seed 0" : fmt::format("seeds 0-{}", restarts - 1); }

std::string rounds_text(const sim::AveragingMeans& means) {
  auto text = fmt::format("{:.1f}", means.targets[0].rounds);
  for (size_t i = 1; i < means.targets.size(); ++i)
    text += fmt::format("{}{:.1f}", i == 1 ? " (" : ", ", means.targets[i].rounds);
  return means.targets.size() > 1 ? text + ")" : text;
}

std::string sent_text(const sim::AveragingMeans& means) { return fmt::format("{:.2f}", means.targets[0].sent); }

// Returns a column width that is sufficient for the names of all algorithms, and for cells such as "50.0 (50.0, 50.0)".
size_t width_of(const AveragingPlan& plan) {
  size_t width = std::max<size_t>(1 + 6 * plan.targets.size(), 10);
  for (const auto algorithm : plan.algorithms) width = std::max(width, sim::name(algorithm).size());
  return width;
}

// Returns a table. Each row is for one number of peers and one probability of absence, and each column is for one algorithm.
template <typename Cell>
std::string rows_of(const AveragingResult& result, const Cell& cell) {
  const auto& plan = result.plan;
  const size_t width = width_of(plan);
  auto text = fmt::format("#{:>6} {:>7}", "peers", "absent");
  for (const auto algorithm : plan.algorithms) text += fmt::format(" {:>{}}", sim::name(algorithm), width);
  text += "\n";
  for (size_t n = 0; n < plan.peers.size(); ++n) {
    for (size_t p = 0; p < plan.absences.size(); ++p) {
      text += fmt::format(" {:>6} {:>7}", plan.peers[n], plan.absences[p]);
      for (size_t a = 0; a < plan.algorithms.size(); ++a) text += fmt::format(" {:>{}}", cell(result.at(n, p, a)), width);
      text += "\n";
    }
  }
  return text;
}

std::string head_of(const AveragingPlan& plan) {
  auto text = fmt::format("# {} of each, {}; groups of up to {}\n# rounds until the variance of all peers' numbers is below {}",
                          plural(plan.restarts, "restart"), seeds_text(plan.restarts), plan.max_group, plan.targets[0]);
  for (size_t i = 1; i < plan.targets.size(); ++i) text += fmt::format("{}{}", i == 1 ? " (below " : ", ", plan.targets[i]);
  return text + fmt::format("{}; {} at most, which counts as reached\n#\n", plan.targets.size() > 1 ? ")" : "",
                            sim::averaging_rounds_cap);
}

std::string notes_of(const AveragingResult& result) {
  const auto& plan = result.plan;
  std::vector<std::string> not_full, algorithms, grids;
  for (const uint32_t peers : plan.peers) {
    if (!is_full_grid(peers, plan.max_group)) not_full.push_back(fmt::format("{}", peers));
    grids.push_back(fmt::format("{} for {}", dims_text(fitted_dims(peers, plan.max_group)), peers));
  }
  for (const auto algorithm : plan.algorithms) {
    if (needs_a_full_grid(algorithm)) algorithms.emplace_back(sim::name(algorithm));
  }
  std::string text;
  if (!algorithms.empty() && !not_full.empty())
    text += fmt::format("# {}: not exact with {} peers, even if nobody is absent; only N = {}^d is\n",
                        fmt::join(algorithms, ", "), fmt::join(not_full, ", "), plan.max_group);
  if (plan.algorithms.back() >= AveragingAlgorithm::fitted)
    text += fmt::format("# fitted: grids of {}; exact after a round along each axis, if nobody is absent\n",
                        fmt::join(grids, ", "));
  uint64_t unreached = 0;
  for (const auto& means : result.means) unreached += means.targets[0].unreached;
  if (unreached > 0)
    text += fmt::format("# {} of {} runs had not come below {} after {} rounds\n", unreached, plan.runs(), plan.targets[0],
                        sim::averaging_rounds_cap);
  return text;
}

std::string laws_of(const AveragingPlan& plan) {
  auto text = fmt::format(
      "#\n# by formula: rounds of all-reduce, {} at most (F5); what one round of random groups leaves of the variance (F3); "
      "variance after\n"
      "# the first round of fitted, and of published where its grid is full (F4); absence below which one all-reduce of all "
      "sends less than a\n"
      "# averaging step of fitted (F7)\n#\n#{:>6} {:>7} {:>12} {:>12} {:>12} {:>12} {:>12}\n",
      sim::averaging_rounds_cap, "peers", "absent", "all-reduce", "random", "fitted", "published", "break-even");
  for (const uint32_t peers : plan.peers) {
    for (const double absence : plan.absences) {
      const auto law = law_of(plan, peers, absence);
      const auto published = law.published_first_variance ? fmt::format("{:.6f}", *law.published_first_variance) : "-";
      text += fmt::format(" {:>6} {:>7} {:>12.2f} {:>12.6f} {:>12.6f} {:>12} {:>12.3e}\n", peers, absence,
                          law.all_reduce_rounds, law.random_factor, law.fitted_first_variance, published, law.break_even);
    }
  }
  return text;
}

Series series_of(AveragingAlgorithm algorithm) {
  const bool is_ours = algorithm == AveragingAlgorithm::fitted;
  return {.name = std::string(sim::name(algorithm)),
          .colour = line_colour(static_cast<size_t>(algorithm)),
          .line_width = is_ours ? 3. : 1.5,
          .dashed = algorithm == AveragingAlgorithm::fitted_mid_round,
          .points = {}};
}

}  // namespace

std::string table_of(const AveragingResult& result) {
  const auto& plan = result.plan;
  return head_of(plan) + rows_of(result, rounds_text) + notes_of(result) +
         fmt::format("#\n# sent by the mean peer until the variance is below {}, in sizes of its vector\n#\n",
                     plan.targets[0]) +
         rows_of(result, sent_text) + laws_of(plan);
}

std::string json_of(const AveragingResult& result) {
  const auto& plan = result.plan;
  auto text = Json{{"kind", "averaging"},
                   {"restarts", plan.restarts},
                   {"max_group", plan.max_group},
                   {"rounds_max", sim::averaging_rounds_cap},
                   {"place_seed", sim::averaging_cell_seed}}
                  .dump() +
              "\n";
  const auto cases = plan.cases();
  for (size_t i = 0; i < cases.size(); ++i) {
    const auto& one = cases[i];
    Json line{{"kind", "means"},
              {"algorithm", sim::name(one.algorithm)},
              {"peers", one.peers},
              {"absence", one.absence},
              {"exact_if_all_are_there", one.algorithm == AveragingAlgorithm::all_reduce ||
                                             one.algorithm >= AveragingAlgorithm::fitted ||
                                             (needs_a_full_grid(one.algorithm) && is_full_grid(one.peers, one.max_group))},
              {"targets", Json::array()}};
    for (const auto& target : result.means[i].targets)
      line["targets"].push_back({{"variance", target.variance},
                                 {"rounds", target.rounds},
                                 {"deviation", target.deviation},
                                 {"sent", target.sent},
                                 {"unreached", target.unreached}});
    if (!result.means[i].variances.empty()) line["variances"] = result.means[i].variances;
    text += line.dump() + "\n";
  }
  for (const uint32_t peers : plan.peers) {
    for (const double absence : plan.absences) {
      const auto law = law_of(plan, peers, absence);
      text += Json{{"kind", "formulae"},
                   {"peers", peers},
                   {"absence", absence},
                   {"dims", fitted_dims(peers, plan.max_group)},
                   {"all_reduce_rounds", law.all_reduce_rounds},
                   {"random_factor", law.random_factor},
                   {"fitted_first_variance", law.fitted_first_variance},
                   {"published_first_variance", law.published_first_variance ? Json(*law.published_first_variance) : Json()},
                   {"break_even", law.break_even}}
                  .dump() +
              "\n";
    }
  }
  return text;
}

std::vector<Panel> variance_panels_of(const AveragingResult& result) {
  std::vector<Panel> panels;
  const auto& plan = result.plan;
  for (size_t n = 0; n < plan.peers.size(); ++n) {
    for (size_t p = 0; p < plan.absences.size(); ++p) {
      Panel panel{.title = fmt::format("Mean variance, {} peers, absence {}", plan.peers[n], plan.absences[p]),
                  .x_label = "rounds",
                  .y_label = "",
                  .series = {},
                  .y_axis = Axis::decades,
                  .legend = Corner::lower_right,
                  .new_row = p == 0 && n > 0};
      for (size_t a = 0; a < plan.algorithms.size(); ++a) {
        auto& series = panel.series.emplace_back(series_of(plan.algorithms[a]));
        const auto& variances = result.at(n, p, a).variances;
        for (size_t t = 0; t < variances.size(); ++t) {
          series.points.push_back({static_cast<double>(t), std::max(variances[t], drawn_least)});
          if (variances[t] <= drawn_least) break;
        }
      }
      panels.push_back(std::move(panel));
    }
  }
  return panels;
}

std::vector<Panel> absence_panels_of(const AveragingResult& result) {
  std::vector<Panel> panels;
  const auto& plan = result.plan;
  for (size_t n = 0; n < plan.peers.size(); ++n) {
    Panel panel{.title = fmt::format("{} peers", plan.peers[n]),
                .x_label = "chance that a peer is absent",
                .y_label = fmt::format("rounds to a variance of {}", plan.targets[0]),
                .series = {},
                .y_axis = Axis::decades,
                .legend = Corner::upper_left,
                .new_row = n > 0 && n % 2 == 0};
    for (size_t a = 0; a < plan.algorithms.size(); ++a) {
      auto& series = panel.series.emplace_back(series_of(plan.algorithms[a]));
      for (size_t p = 0; p < plan.absences.size(); ++p)
        series.points.push_back({plan.absences[p], result.at(n, p, a).targets[0].rounds});
      std::sort(series.points.begin(), series.points.end(),
                [](const Point& one, const Point& other) { return one.x < other.x; });
    }
    panels.push_back(std::move(panel));
  }
  return panels;
}

}  // namespace unisono::lab
