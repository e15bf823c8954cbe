#include "training/drop_compute/drop_report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <string>

#include "base/concat.h"
#include "training/drop_compute/threshold_search.h"

namespace unisono {
namespace {

constexpr double ns = 1e-9;

double deviation(double sum, double squared, uint64_t count) {
  if (count < 2) return 0;
  const double n = static_cast<double>(count);
  return std::sqrt(std::max(0.0, (squared - sum * sum / n) / (n - 1)));
}

double share_dropped(uint64_t planned, uint64_t computed) {
  return planned == 0 ? 0 : static_cast<double>(planned - computed) / static_cast<double>(planned);
}

// Formats a number with four significant digits.
std::string brief(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}

void add_by_rank(std::vector<uint64_t>& to, const std::vector<uint64_t>& from) {
  to.resize(std::max(to.size(), from.size()));
  for (size_t rank = 0; rank < from.size(); ++rank) to[rank] += from[rank];
}

}  // namespace

void DropSums::add(const DropSums& other) {
  steps += other.steps, planned += other.planned, computed += other.computed;
  wall += other.wall, wall_squared += other.wall_squared;
  compute += other.compute, compute_squared += other.compute_squared;
  spread += other.spread;
  add_by_rank(planned_by, other.planned_by);
  add_by_rank(computed_by, other.computed_by);
}

DropSums sums_of(std::span<const std::vector<StepRecord>> ranks) {
  DropSums sums;
  if (ranks.empty()) return sums;
  sums.steps = ranks[0].size();
  sums.planned_by.resize(ranks.size());
  sums.computed_by.resize(ranks.size());
  for (size_t step = 0; step < sums.steps; ++step) {
    double wall = 0, last = 0, first = std::numeric_limits<double>::infinity();
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      const auto& record = ranks[rank][step];
      wall += static_cast<double>(record.wall_ns) * ns / static_cast<double>(ranks.size());
      if (record.planned == 0) continue;
      sums.planned_by[rank] += record.planned;
      sums.computed_by[rank] += record.computed;
      last = std::max(last, static_cast<double>(record.compute_ns) * ns);
      first = std::min(first, static_cast<double>(record.compute_ns) * ns);
    }
    sums.wall += wall, sums.wall_squared += wall * wall;
    sums.compute += last, sums.compute_squared += last * last;
    if (first < last) sums.spread += last - first;
  }
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    sums.planned += sums.planned_by[rank], sums.computed += sums.computed_by[rank];
  return sums;
}

std::vector<double> drop_by_rank(const DropSums& sums) {
  std::vector<double> drop;
  for (size_t rank = 0; rank < sums.planned_by.size(); ++rank)
    drop.push_back(share_dropped(sums.planned_by[rank], sums.computed_by[rank]));
  return drop;
}

void fill(DropReport& report, const DropSums& sums) {
  report.steps = sums.steps;
  report.drop = share_dropped(sums.planned, sums.computed);
  const auto drop = drop_by_rank(sums);
  if (const auto most = std::max_element(drop.begin(), drop.end()); most != drop.end()) {
    report.drop_most = *most;
    report.drop_most_rank = static_cast<uint32_t>(most - drop.begin());
  }
  if (sums.steps > 0) {
    const double steps = static_cast<double>(sums.steps);
    report.step_mean = sums.wall / steps;
    report.compute_mean = sums.compute / steps;
    report.arrival_spread = sums.spread / steps;
  }
  report.step_deviation = deviation(sums.wall, sums.wall_squared, sums.steps);
  report.compute_deviation = deviation(sums.compute, sums.compute_squared, sums.steps);
  report.per_second = sums.wall > 0 ? static_cast<double>(sums.computed) / sums.wall : 0;
  report.extra_steps = extra_steps(report.drop);
}

std::string DropReport::to_string() const {
  std::string text = concat("steps ", first_step, " to ", last_step, ", ", state);
  if (!off.empty()) text += " (" + off + ")";
  if (threshold > 0) text += ", " + rule + ", threshold " + brief(threshold) + " s";
  text += ": dropped " + brief(100 * drop) + " %";
  if (threshold > 0 && predicted_total > 0) text += " (predicted " + brief(100 * predicted_drop) + ")";
  if (threshold > 0) text += concat(", most by rank ", drop_most_rank, ": ", brief(100 * drop_most), " %");
  text += "; " + brief(per_second) + " micro-batches/s";
  if (threshold > 0 && per_second_before > 0)
    text += ", " + brief(per_second / per_second_before) + " times the rate before" +
            (predicted_total > 0 ? " (predicted " + brief(predicted_total) + ")" : "");
  text += "; step " + brief(step_mean) + " s, deviation " + brief(step_deviation) + "; computing " + brief(compute_mean) +
          " s, deviation " + brief(compute_deviation) + ", spread " + brief(arrival_spread);
  if (extra_steps > 0) text += "; " + brief(100 * extra_steps) + " % more steps make up for it";
  return text;
}

}  // namespace unisono
