#include "lab/drop_compute/straggler_run.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <span>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/concat.h"
#include "lab/drop_compute/straggler_remedies.h"

namespace unisono::sim {
namespace {

constexpr double ns_per_second = 1e9;

double seconds_of(int64_t ns) { return static_cast<double>(ns) / ns_per_second; }

// Returns the mean and the population standard deviation.
std::pair<double, double> mean_and_deviation(std::span<const double> values) {
  const auto count = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.) / count;
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return {mean, std::sqrt(squares / count)};
}

// Sums the times of the measured steps, and the times that the same steps take without a remedy.
class Tally {
 public:
  explicit Tally(const StragglerSettings& settings)
      : micro_batches_(settings.micro_batches),
        other_(static_cast<double>(ns_of(settings.other)) / ns_per_second),
        dropped_(settings.workers, 0) {}

  void add(int64_t compute_ns, int64_t without_ns, std::span<const uint32_t> dropped) {
    uint64_t in_step = 0;
    for (size_t i = 0; i < dropped.size(); ++i) in_step += dropped[i], dropped_[i] += dropped[i];
    const double with = seconds_of(compute_ns) + other_, without = seconds_of(without_ns) + other_;
    ratios_ +=
        (1 - static_cast<double>(in_step) / (static_cast<double>(micro_batches_) * static_cast<double>(dropped.size()))) *
        (without / with);
    with_ += with;
    without_ += without;
    step_times_.push_back(with);
  }

  void finish(StragglerOutcome& outcome) {
    const auto steps = static_cast<double>(step_times_.size());
    if (step_times_.empty()) return;
    const auto of_worker = steps * micro_batches_;
    outcome.drop = static_cast<double>(std::accumulate(dropped_.begin(), dropped_.end(), uint64_t{0})) /
                   (of_worker * static_cast<double>(dropped_.size()));
    outcome.total = (1 - outcome.drop) * without_ / with_;
    outcome.step = ratios_ / steps;
    std::tie(outcome.step_mean, outcome.step_deviation) = mean_and_deviation(step_times_);
    outcome.compute_mean = outcome.step_mean - other_;
    // equal, because a step time is a compute time plus Tc, and Tc is constant
    outcome.compute_deviation = outcome.step_deviation;
    for (const auto dropped : dropped_) outcome.drop_by_worker.push_back(static_cast<double>(dropped) / of_worker);
    outcome.step_times = std::move(step_times_);
  }

 private:
  const uint32_t micro_batches_;
  const double other_;
  double ratios_ = 0, with_ = 0, without_ = 0;
  std::vector<uint64_t> dropped_;
  std::vector<double> step_times_;
};

std::string shortest(double number) {
  char text[32];
  return {text, std::to_chars(std::begin(text), std::end(text), number).ptr};
}

std::string percent(double share) { return shortest(std::round(1000 * share) / 10) + " %"; }

std::string warning_of(const PersistentStraggler& found) {
  return concat("persistent_straggler: worker ", found.worker, " drops ", percent(found.drop),
                " of its micro-batches, the others ", percent(found.others), " on average: it should be given fewer");
}

std::string name_of(const DropOptions& drop) {
  if (drop.threshold == DropOptions::Threshold::off) return "threshold off";
  constexpr const char* rules[] = {"after", "before", "at"};
  std::string name = drop.threshold == DropOptions::Threshold::automatic ? "auto" : shortest(drop.seconds) + " s";
  name += std::string(", ") + rules[static_cast<size_t>(drop.rule)];
  if (drop.rule == DropOptions::Rule::after && drop.lag > 0) name += concat(", lag ", drop.lag);
  return name;
}

}  // namespace

std::string name_of(const Remedy& remedy) {
  switch (remedy.kind) {
    case Remedy::Kind::none: return "no remedy";
    case Remedy::Kind::drop_compute: return name_of(remedy.drop);
    case Remedy::Kind::backup: return concat(remedy.backups, remedy.backups == 1 ? " backup worker" : " backup workers");
    case Remedy::Kind::oracle: return "oracle, " + shortest(remedy.drop.seconds) + " s";
    case Remedy::Kind::rebalanced: return "rebalanced";
    case Remedy::Kind::random: return "random, " + percent(remedy.share);
  }
  return "";
}

ComputeTrace make_trace(const StragglerSettings& settings, uint64_t first_step, uint64_t steps) {
  ComputeTrace trace{.workers = settings.workers, .micro_batches = settings.micro_batches, .ends = {}, .walls = {}};
  trace.ends.reserve(steps * settings.workers * settings.micro_batches);
  trace.walls.reserve(steps * settings.workers);
  std::vector<int64_t> latencies;
  for (uint64_t step = first_step; step < first_step + steps; ++step) {
    draw_latencies(settings, step, latencies);
    append_step(trace, latencies, ns_of(settings.other));
  }
  return trace;
}

StragglerOutcome run_stragglers(const StragglerSettings& settings, const Remedy& remedy, uint64_t measured_from,
                                const std::function<void(uint64_t steps)>& progress) {
  UNISONO_CHECK(settings.workers > 0 && settings.micro_batches > 0);
  StragglerOutcome outcome;
  const auto run = make_remedy(settings, remedy, outcome);
  Tally tally(settings);
  std::vector<int64_t> latencies;
  std::vector<uint32_t> dropped(settings.workers);
  for (uint64_t step = 1; step <= settings.steps; ++step) {
    draw_latencies(settings, step, latencies);
    std::fill(dropped.begin(), dropped.end(), 0);
    const int64_t compute = run(step, latencies, dropped);
    if (step >= measured_from) tally.add(compute, slowest_ns(latencies, settings.micro_batches), dropped);
    if (progress) progress(step);
  }
  tally.finish(outcome);
  if (const auto found = persistent_straggler(outcome.drop_by_worker)) outcome.warnings.push_back(warning_of(*found));
  return outcome;
}

uint32_t best_backups(const StragglerSettings& settings) {
  UNISONO_CHECK(settings.workers > 0 && settings.micro_batches > 0);
  const auto other = static_cast<double>(ns_of(settings.other));
  std::vector<double> sums(settings.workers, 0);  // indexed by the number of backup workers: sum of the step times
  std::vector<int64_t> latencies, ends(settings.workers);
  for (uint64_t step = 1; step <= settings.steps; ++step) {
    draw_latencies(settings, step, latencies);
    for (uint32_t i = 0; i < settings.workers; ++i)
      ends[i] = sum_of(std::span(latencies).subspan(i * settings.micro_batches, settings.micro_batches));
    std::sort(ends.begin(), ends.end());
    for (uint32_t i = 0; i < settings.workers; ++i) sums[i] += static_cast<double>(ends[settings.workers - 1 - i]) + other;
  }
  uint32_t best = 0;
  const auto value = [&](uint32_t backups) { return (settings.workers - backups) / sums[backups]; };
  for (uint32_t i = 1; i < settings.workers; ++i) {
    if (value(i) > value(best)) best = i;
  }
  return best;
}

}  // namespace unisono::sim
