#include "lab/averaging/averaging.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "lab/averaging/averaging_algorithms.h"
#include "lab/averaging/averaging_random.h"

namespace unisono::sim {
namespace {

struct NamedAlgorithm {
  AveragingAlgorithm algorithm;
  std::string_view name;
};
constexpr NamedAlgorithm algorithm_names[] = {{AveragingAlgorithm::all_reduce, "all-reduce"},
                                              {AveragingAlgorithm::gossip, "gossip"},
                                              {AveragingAlgorithm::sgp, "sgp"},
                                              {AveragingAlgorithm::random_groups, "random"},
                                              {AveragingAlgorithm::published_grid, "published"},
                                              {AveragingAlgorithm::chunk_keys, "chunk-keys"},
                                              {AveragingAlgorithm::fitted, "fitted"},
                                              {AveragingAlgorithm::fitted_mid_round, "fitted-mid-round"}};

double mean_of(std::span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

double variance_of(std::span<const double> values) {
  const double mean = mean_of(values);
  double sum = 0;
  for (const double value : values) sum += (value - mean) * (value - mean);
  return sum / static_cast<double>(values.size());
}

}  // namespace

std::string_view name(AveragingAlgorithm algorithm) {
  for (const auto& each : algorithm_names) {
    if (each.algorithm == algorithm) return each.name;
  }
  return "unknown";
}

uint32_t AveragingOutcome::rounds_to(double target) const {
  const auto reached = std::find_if(variances.begin(), variances.end(), [&](double variance) { return variance < target; });
  return static_cast<uint32_t>(std::min<ptrdiff_t>(reached - variances.begin(), static_cast<ptrdiff_t>(variances.size()) - 1));
}

Result<AveragingOutcome> run_averaging(const AveragingSettings& settings) {
  auto rule = make_averaging_rule(settings);
  if (!rule.ok()) return rule.status();
  AveragingRandom random(settings.seed);
  std::vector<double> values(settings.peers);
  for (auto& value : values) value = random.normal();
  const double inputs_mean = mean_of(values);
  std::vector<uint8_t> alive(settings.peers);
  AveragingOutcome outcome{.variances = {variance_of(values)}, .sent = {0}};
  for (uint32_t round = 1; round <= settings.rounds_max && outcome.variances.back() >= settings.target; ++round) {
    for (auto& each : alive) each = random.uniform() >= settings.absence;
    const double sent = (*rule)->average(round, alive, values, random);
    outcome.sent.push_back(outcome.sent.back() + sent / settings.peers);
    outcome.variances.push_back(variance_of(values));
  }
  for (const double value : values) outcome.error_max = std::max(outcome.error_max, std::abs(value - inputs_mean));
  return outcome;
}

Result<AveragingMeans> average_restarts(const AveragingSettings& settings, const AveragingRestarts& what,
                                        const std::function<void()>& progress) {
  if (what.restarts == 0) return Status(Code::invalid, "averaging: no restart; expected 1 or more");
  AveragingMeans means;
  std::vector<double> squares(what.targets.size());
  auto one = settings;
  for (const double target : what.targets) means.targets.push_back({.variance = target});
  if (!what.targets.empty()) one.target = *std::min_element(what.targets.begin(), what.targets.end());
  if (what.curve) {
    one.target = 0;
    means.variances.resize(settings.rounds_max + 1);
  }
  for (uint32_t restart = 0; restart < what.restarts; ++restart) {
    one.seed = settings.seed + restart;
    const auto outcome = run_averaging(one);
    if (!outcome.ok()) return outcome.status();
    for (size_t i = 0; i < what.targets.size(); ++i) {
      auto& target = means.targets[i];
      const uint32_t rounds = outcome->rounds_to(target.variance);
      target.rounds += rounds;
      squares[i] += static_cast<double>(rounds) * rounds;
      target.sent += outcome->sent[rounds];
      target.unreached += !(outcome->variances[rounds] < target.variance);
    }
    for (size_t t = 0; t < means.variances.size(); ++t) means.variances[t] += outcome->variances[t] / what.restarts;
    if (progress) progress();
  }
  const double count = what.restarts;
  for (size_t i = 0; i < what.targets.size(); ++i) {
    auto& target = means.targets[i];
    target.rounds /= count;
    target.sent /= count;
    if (count > 1) target.deviation = std::sqrt(std::max(0., squares[i] - count * target.rounds * target.rounds) / (count - 1));
  }
  return means;
}

}  // namespace unisono::sim
