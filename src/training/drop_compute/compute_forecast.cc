#include "training/drop_compute/compute_forecast.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace unisono {
namespace {

// At more than this many standard deviations from the mean, the normal distribution is exactly 0 or 1 in double precision.
constexpr double certain_deviations = 9;

// Returns the standard deviation of the time at which the m-th micro-batch ends.
double deviation_of(const ComputeModel& model, uint32_t m) { return model.deviation * std::sqrt(static_cast<double>(m)); }

// Returns how many of the numbers 1 to `last` satisfy `holds`. The function uses a binary search. Therefore `holds` must be
// true for all numbers up to some number, and false for all larger ones.
template <typename Predicate>
uint32_t count_while(uint32_t last, const Predicate& holds) {
  uint32_t low = 0;
  while (low < last) {
    const uint32_t middle = low + (last - low + 1) / 2;
    if (holds(middle)) low = middle;
    else last = middle - 1;
  }
  return low;
}

// Returns the sum over m = 1..last of P(T[n,m] <= threshold).
double expected_ended(const ComputeModel& model, double threshold, uint32_t last) {
  if (model.deviation <= 0) return count_while(last, [&](uint32_t m) { return m * model.mean <= threshold; });
  const auto deviations = [&](uint32_t m) { return (threshold - m * model.mean) / deviation_of(model, m); };
  const uint32_t certain = count_while(last, [&](uint32_t m) { return deviations(m) > certain_deviations; });
  const uint32_t possible = count_while(last, [&](uint32_t m) { return deviations(m) > -certain_deviations; });
  double sum = certain;
  for (uint32_t m = certain + 1; m <= possible; ++m) sum += normal_cdf(deviations(m));
  return sum;
}

double ratio_at(const ComputeModel& model, double threshold) {
  return expected_ended(model, threshold, model.micro_batches) / (threshold + model.other);
}

// Finds the highest ratio between two thresholds by a golden-section search. The ratio must have only one maximum between them.
double highest_between(const ComputeModel& model, double low, double high) {
  constexpr double golden = 0.6180339887498949;
  double left = high - golden * (high - low), right = low + golden * (high - low);
  double at_left = ratio_at(model, left), at_right = ratio_at(model, right);
  while (high - low > 1e-10 * high) {
    if (at_left < at_right) {
      low = left, left = right, at_left = at_right;
      right = low + golden * (high - low), at_right = ratio_at(model, right);
    } else {
      high = right, right = left, at_right = at_left;
      left = high - golden * (high - low), at_left = ratio_at(model, left);
    }
  }
  return (low + high) / 2;
}

// Returns the next threshold to evaluate. At some times, hardly any micro-batch ends. There E[B] is constant and the ratio
// falls, so the search skips these times.
double next_threshold(const ComputeModel& model, double threshold) {
  const double next = threshold + model.deviation / 4;
  const auto ended =
      static_cast<uint32_t>(std::clamp(std::floor(threshold / model.mean), 0.0, static_cast<double>(model.micro_batches)));
  for (const uint32_t m : {ended, ended + 1}) {
    if (m > 0 && m <= model.micro_batches &&
        std::abs(threshold - m * model.mean) <= certain_deviations * deviation_of(model, m))
      return next;
  }
  if (ended >= model.micro_batches) return next;
  return std::max(next, (ended + 1) * model.mean - certain_deviations * deviation_of(model, ended + 1));
}

}  // namespace

double expected_compute(const ComputeModel& model, double factor) {
  return model.micro_batches * model.mean + deviation_of(model, model.micro_batches) * factor;
}

double expected_computed_at(const ComputeModel& model, double threshold) {
  return expected_ended(model, threshold, model.micro_batches);
}

double expected_computed_after(const ComputeModel& model, double threshold, uint32_t lag) {
  if (lag >= model.micro_batches || model.micro_batches - lag <= 1) return model.micro_batches;
  return 1.0 + lag + expected_ended(model, threshold, model.micro_batches - 1 - lag);
}

// Computes E[min(tau, T)] = tau - (integral of P(T <= x) up to tau) by Simpson's rule. Here x is counted in standard deviations
// from the mean. The code takes P(T <= x) as 1 above `high`, and as 0 below `low`.
double expected_step_at(const ComputeModel& model, uint64_t workers, double threshold) {
  constexpr double low = -10, high = 14;
  constexpr int intervals = 8192;
  const double mean = model.micro_batches * model.mean, deviation = deviation_of(model, model.micro_batches);
  if (deviation <= 0) return std::min(threshold, mean);
  const double end = (threshold - mean) / deviation, until = std::min(end, high);
  if (until <= low) return threshold;
  const auto all_through = [&](double x) {
    const double log_cdf = x < 0 ? std::log(normal_cdf(x)) : std::log1p(-normal_cdf(-x));
    return std::exp(static_cast<double>(workers) * log_cdf);
  };
  const double step = (until - low) / intervals;
  double sum = all_through(low) + all_through(until);
  for (int i = 1; i < intervals; ++i) sum += (i % 2 == 1 ? 4 : 2) * all_through(low + i * step);
  return threshold - deviation * (sum * step / 3 + (end - until));
}

double expected_speedup(const ComputeModel& model, double threshold, double factor) {
  const double compute = expected_compute(model, factor), step = std::min(threshold, compute) + model.other;
  const double share = expected_computed_at(model, threshold) / model.micro_batches;
  return step > 0 ? share * (compute + model.other) / step : share;
}

BestThreshold best_threshold(const ComputeModel& model) {
  const auto found = [&](double threshold, uint32_t maxima) {
    const double computed = expected_computed_at(model, threshold);
    return BestThreshold{.threshold = threshold,
                         .drop = 1 - computed / model.micro_batches,
                         .ratio = computed / (threshold + model.other),
                         .local_maxima = maxima};
  };
  if (model.micro_batches == 0 || !(model.mean > 0)) return {};
  // If the times do not vary, the ratio is highest at the threshold at which the last micro-batch ends.
  if (model.deviation <= 0) return found(model.micro_batches * model.mean, model.micro_batches);
  const double end = model.micro_batches * model.mean + 8 * deviation_of(model, model.micro_batches);
  BestThreshold best;
  double before = model.mean, current = before, ratio = ratio_at(model, current);
  bool rising = true;  // This starts as true because the first threshold is a maximum if the ratio falls right after it.
  uint32_t maxima = 0;
  while (current < end) {
    const double next = std::min(end, next_threshold(model, current)), next_ratio = ratio_at(model, next);
    const double rise = next_ratio - ratio;
    if (rise < -1e-13 * ratio && rising) {
      rising = false;
      ++maxima;
      // The search never returns an end of its interval, so `current` is compared with its result.
      const double top = highest_between(model, before, next);
      if (const auto here = found(ratio_at(model, top) >= ratio ? top : current, 0); here.ratio >= best.ratio) best = here;
    }
    rising = rising || rise > 1e-13 * ratio;
    before = current, current = next, ratio = next_ratio;
  }
  if (rising) {
    ++maxima;
    if (ratio >= best.ratio) best = found(end, 0);
  }
  best.local_maxima = maxima;
  return best;
}

TraceForecast forecast_from(const ComputeTrace& trace, uint64_t workers, double max_drop) {
  TraceForecast forecast;
  if (!trace.check().ok()) return forecast;
  constexpr double second = 1e-9;
  std::vector<double> computes;
  for (size_t last = trace.micro_batches - 1; last < trace.ends.size(); last += trace.micro_batches)
    computes.push_back(static_cast<double>(trace.ends[last]));
  const double compute = expected_maximum_of(computes, workers), other = trace.other_ns();
  forecast.compute = compute * second;
  forecast.too_few_records = static_cast<double>(workers) > static_cast<double>(computes.size()) / 10;
  auto ends = trace.ends;
  std::sort(ends.begin(), ends.end());
  const auto all = static_cast<double>(ends.size());
  double highest = 0;
  for (size_t ended = 1; ended <= ends.size(); ++ended) {
    if (ended < ends.size() && ends[ended] == ends[ended - 1]) continue;
    const double drop = static_cast<double>(ends.size() - ended) / all;
    if (drop > max_drop) continue;
    const auto threshold = static_cast<double>(ends[ended - 1]);
    const double step = std::min(threshold, compute) + other;
    const double speedup = static_cast<double>(ended) / all * (step > 0 ? (compute + other) / step : 1);
    highest = std::max(highest, speedup);
    if (speedup < highest * (1 - 1e-9)) continue;
    forecast.threshold = threshold * second;
    forecast.speedup = speedup;
    forecast.drop = drop;
  }
  return forecast;
}

}  // namespace unisono
