// Implements two parts of compute_forecast.h: the normal distribution, and the expected maximum of many values.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>
#include <vector>

#include "training/drop_compute/compute_forecast.h"

namespace unisono {
namespace {

// Returns the expected maximum of N = `workers` values. `law` lists pairs (value, share) in ascending order of the values. Let
// F(x) be the share of values <= x. Then the maximum is at most x with probability F(x)^N. Therefore the expected maximum is
// the largest value, minus the sum over all smaller values x of F(x)^N times the distance from x to the next value.
double expected_maximum_of_ascending(const std::vector<std::pair<double, double>>& law, uint64_t workers) {
  if (law.empty()) return 0;
  double all = 0, below = 0, sum = law.back().first;
  for (const auto& [value, share] : law) all += share;
  for (size_t i = 0; i + 1 < law.size(); ++i) {
    below += law[i].second;
    sum -= (law[i + 1].first - law[i].first) * std::pow(std::min(1.0, below / all), static_cast<double>(workers));
  }
  return sum;
}

}  // namespace

double normal_cdf(double x) { return 0.5 * std::erfc(-x / std::numbers::sqrt2); }

// The search starts with a rational approximation (Abramowitz and Stegun 26.2.23), whose error is 4.5e-4. Each Halley step then
// triples the number of correct digits.
double normal_quantile(double p) {
  if (p > 0.5) return -normal_quantile(1 - p);
  const double t = std::sqrt(-2 * std::log(p));
  double x = (2.515517 + t * (0.802853 + t * 0.010328)) / (1 + t * (1.432788 + t * (0.189269 + t * 0.001308))) - t;
  for (int round = 0; round < 3; ++round) {
    const double error = (normal_cdf(x) - p) * std::sqrt(2 * std::numbers::pi) * std::exp(x * x / 2);
    x -= error / (1 + x * error / 2);
  }
  return x;
}

double expected_maximum_closed(uint64_t workers) {
  if (workers < 2) return 0;
  const double one_in = 1 / static_cast<double>(workers);
  return -(1 - std::numbers::egamma) * normal_quantile(one_in) -
         std::numbers::egamma * normal_quantile(one_in / std::numbers::e);
}

// Computes the integral of x N phi(x) Phi(x)^(N-1) by the trapezoidal rule. The function is smooth and vanishes at both ends,
// so the error falls faster than any power of the step.
double expected_maximum(uint64_t workers) {
  if (workers < 2) return 0;
  constexpr double step = 1.0 / 64, low = -10, high = 14;
  const auto n = static_cast<double>(workers);
  double sum = 0;
  for (int i = 0; i <= static_cast<int>((high - low) / step); ++i) {
    const double x = low + i * step;
    const double log_cdf = x < 0 ? std::log(normal_cdf(x)) : std::log1p(-normal_cdf(-x));
    sum += x * n * std::exp((n - 1) * log_cdf - x * x / 2);
  }
  return sum * step / std::sqrt(2 * std::numbers::pi);
}

double expected_maximum_of(std::span<const double> sample, uint64_t workers) {
  std::vector<std::pair<double, double>> law;
  for (const double value : sample) law.emplace_back(value, 1);
  std::sort(law.begin(), law.end());
  return expected_maximum_of_ascending(law, workers);
}

double expected_maximum_of(std::span<const double> values, std::span<const double> shares, uint64_t workers) {
  std::vector<std::pair<double, double>> law;
  for (size_t i = 0; i < std::min(values.size(), shares.size()); ++i) law.emplace_back(values[i], shares[i]);
  std::sort(law.begin(), law.end());
  return expected_maximum_of_ascending(law, workers);
}

}  // namespace unisono
