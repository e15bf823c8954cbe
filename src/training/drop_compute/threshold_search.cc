#include "training/drop_compute/threshold_search.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "base/concat.h"
#include "base/random.h"
#include "training/drop_compute/threshold_sums.h"

namespace unisono {
namespace {

using Rule = DropOptions::Rule;
using Objective = DropOptions::Objective;

constexpr uint32_t grid_thresholds = 200, grid_first_micro_batch = 6;
// With the rule `at`, the search replays 101 thresholds around the best candidate: 0.8 to 1.3 times the candidate, in steps of
// 0.005.
constexpr uint64_t replay_count = 101, replay_first_permille = 800, replay_step_permille = 5;
constexpr double slack_least = 1e-9;  // Rounding errors up to this size must not decide which threshold is chosen.

// Returns how many micro-batches a worker computes however late it is.
uint32_t least_computed(const StopRule& rule, uint32_t micro_batches) {
  if (rule.rule == Rule::at) return 0;
  const uint64_t looked_at = rule.rule == Rule::after ? uint64_t{rule.lag} + 1 : 1;
  return static_cast<uint32_t>(std::min<uint64_t>(micro_batches, std::max<uint64_t>(rule.min_computed, looked_at)));
}

size_t ended_by(std::span<const int64_t> ends, int64_t time) {
  return static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), time) - ends.begin());
}

// Returns a × b ÷ c, rounded to the nearest integer.
int64_t scaled(int64_t a, uint64_t b, uint64_t c) {
  return static_cast<int64_t>((2 * static_cast<Wide>(a) * b + c) / (2 * static_cast<Wide>(c)));
}

double objective_of(const ThresholdValue& value, Objective objective) {
  return objective == Objective::total ? value.total : value.step;
}

struct Choice {
  const ThresholdValue* value = nullptr;
  double highest = 0;
  double least_drop = 1;
};

Choice choose(const std::vector<ThresholdValue>& candidates, Objective objective, const SearchOptions& options) {
  Choice choice;
  for (const auto& each : candidates) {
    choice.least_drop = std::min(choice.least_drop, each.drop);
    if (each.drop <= options.max_drop) choice.highest = std::max(choice.highest, objective_of(each, objective));
  }
  const double enough = choice.highest * (1 - std::max(options.slack, slack_least));
  for (const auto& each : candidates) {
    if (each.drop <= options.max_drop && objective_of(each, objective) >= enough) choice.value = &each;
  }
  return choice;
}

std::string no_threshold_reason(const Choice& choice, const SearchOptions& options) {
  char text[160];
  std::snprintf(text, sizeof text, "no threshold within max_drop: all drop more than %.4g %%, the least %.4g %%",
                100 * options.max_drop, 100 * choice.least_drop);
  return text;
}

std::string small_gain_reason(const ThresholdValue& best, const SearchOptions& options) {
  char text[240];
  std::snprintf(text, sizeof text,
                "gain below min_gain: a threshold of %.6g s gives %.4f times as many micro-batches per second (%.4f as a mean "
                "over steps); min_gain requires %.4f",
                static_cast<double>(best.threshold_ns) * 1e-9, best.total, best.step, 1 + options.min_gain);
  return text;
}

std::vector<ThresholdValue> replays_around(const ComputeTrace& trace, int64_t threshold_ns, double other_ns) {
  std::vector<ThresholdValue> values;
  for (uint64_t i = 0; i < replay_count; ++i) {
    const int64_t each = std::max<int64_t>(1, scaled(threshold_ns, replay_first_permille + i * replay_step_permille, 1000));
    values.push_back(replayed(trace, each, other_ns));
  }
  return values;
}

// Replays the steps of one worker. Holds the state that the worker carries from one step to the next.
struct Replay {
  int64_t threshold_ns = 0, other_ns = 0;
  // If a micro-batch was running when the previous step ended, it still needs this much time in the current step.
  int64_t left_ns = 0;

  // Returns how many micro-batches are computed. Sets `end` to the time at which the worker would have computed all of them.
  uint32_t step(std::span<const int64_t> ends, int64_t& end) {
    end = left_ns + ends.back();
    const uint64_t computed = left_ns > threshold_ns ? 0 : ended_by(ends, threshold_ns - left_ns);
    int64_t running_until = 0;
    if (left_ns > threshold_ns) running_until = left_ns;
    else if (computed < ends.size()) running_until = left_ns + ends[computed];
    left_ns = std::max<int64_t>(0, running_until - threshold_ns - other_ns);
    return static_cast<uint32_t>(computed);
  }
};

}  // namespace

uint32_t computed_by(const StopRule& rule, int64_t threshold_ns, std::span<const int64_t> ends) {
  const auto all = static_cast<uint32_t>(ends.size());
  if (rule.rule == Rule::at) return static_cast<uint32_t>(ended_by(ends, threshold_ns));
  if (rule.rule == Rule::before && threshold_ns < rule.micro_batch_ns) return std::min(all, rule.min_computed);
  const uint64_t in_time = rule.rule == Rule::before ? ended_by(ends, threshold_ns - rule.micro_batch_ns) + 1
                                                     : ended_by(ends, threshold_ns) + 1 + rule.lag;
  return static_cast<uint32_t>(std::min<uint64_t>(all, std::max<uint64_t>(rule.min_computed, in_time)));
}

ThresholdValue value_of(const ComputeTrace& trace, const StopRule& rule, int64_t threshold_ns, double other_ns) {
  auto sums = sums_of(trace);
  for (size_t step = 0; step < trace.steps(); ++step) {
    const int64_t whole = trace.compute_ns(step);
    uint64_t computed = 0;
    int64_t cut = 0;
    for (size_t worker = 0; worker < trace.workers; ++worker) {
      const auto ends = trace.ends_of(step, worker);
      const uint32_t count = computed_by(rule, threshold_ns, ends);
      computed += count;
      if (count > 0) cut = std::max(cut, ends[count - 1]);
    }
    sums.add(computed, whole, rule.rule == Rule::at ? std::min(threshold_ns, whole) : cut, other_ns);
  }
  return sums.value(threshold_ns, other_ns);
}

std::vector<double> drop_by_worker(const ComputeTrace& trace, const StopRule& rule, int64_t threshold_ns) {
  std::vector<double> drops;
  const auto all = static_cast<double>(trace.steps() * trace.micro_batches);
  for (size_t worker = 0; worker < trace.workers; ++worker) {
    uint64_t dropped = 0;
    for (size_t step = 0; step < trace.steps(); ++step)
      dropped += trace.micro_batches - computed_by(rule, threshold_ns, trace.ends_of(step, worker));
    drops.push_back(static_cast<double>(dropped) / all);
  }
  return drops;
}

ThresholdValue replayed(const ComputeTrace& trace, int64_t threshold_ns, double other_ns) {
  auto sums = sums_of(trace);
  std::vector<Replay> workers(trace.workers, {threshold_ns, std::llround(other_ns)});
  for (size_t step = 0; step < trace.steps(); ++step) {
    uint64_t computed = 0;
    int64_t last = 0, end = 0;
    for (size_t worker = 0; worker < trace.workers; ++worker) {
      computed += workers[worker].step(trace.ends_of(step, worker), end);
      last = std::max(last, end);
    }
    sums.add(computed, trace.compute_ns(step), std::min(threshold_ns, last), other_ns);
  }
  return sums.value(threshold_ns, other_ns);
}

ThresholdValue oracle_value(const ComputeTrace& trace, int64_t threshold_ns, double other_ns) {
  auto sums = sums_of(trace);
  for (size_t step = 0; step < trace.steps(); ++step) {
    uint64_t computed = 0;
    int64_t cut = 0;
    for (size_t worker = 0; worker < trace.workers; ++worker) {
      const auto ends = trace.ends_of(step, worker);
      const size_t count = ended_by(ends, threshold_ns - 1);
      computed += count;
      if (count > 0) cut = std::max(cut, ends[count - 1]);
    }
    sums.add(computed, trace.compute_ns(step), cut, other_ns);
  }
  return sums.value(threshold_ns, other_ns);
}

std::vector<ThresholdValue> grid(const ComputeTrace& trace, double other_ns) {
  if (trace.ends.empty()) return {};
  const size_t first = std::min(grid_first_micro_batch, trace.micro_batches) - 1;
  int64_t low = trace.ends[first], high = 0;
  for (size_t row = 0; row < trace.ends.size(); row += trace.micro_batches) {
    low = std::min(low, trace.ends[row + first]);
    high = std::max(high, trace.ends[row + trace.micro_batches - 1]);
  }
  std::vector<ThresholdValue> values;
  for (uint32_t i = 0; i < grid_thresholds; ++i) {
    values.push_back(oracle_value(trace, std::max<int64_t>(1, low + scaled(high - low, i, grid_thresholds - 1)), other_ns));
  }
  return values;
}

SearchOptions search_options(const DropOptions& options, const ComputeTrace& trace) {
  SearchOptions search{.objective = options.objective,
                       .search = options.search,
                       .slack = options.slack,
                       .max_drop = options.max_drop,
                       .min_gain = options.min_gain};
  search.rule = {.rule = options.rule,
                 .lag = options.rule == Rule::after ? options.lag : 0,
                 .min_computed = options.rule == Rule::at ? 0 : options.min_computed};
  if (options.rule == Rule::before) search.rule.micro_batch_ns = trace.micro_batch_ns();
  return search;
}

SearchOutcome search(const ComputeTrace& trace, const SearchOptions& options) {
  SearchOutcome outcome;
  if (auto status = trace.check(); !status.ok()) return outcome.off = status.message(), outcome;
  outcome.other_ns = trace.other_ns();
  outcome.micro_batch_ns = trace.micro_batch_ns();
  if (const uint32_t least = least_computed(options.rule, trace.micro_batches); least >= trace.micro_batches) {
    outcome.off =
        concat("nothing_to_drop: every worker computes all ", trace.micro_batches, " micro-batches, however late it is");
    return outcome;
  }
  const bool exact = options.search == DropOptions::Search::exact;
  outcome.candidates = exact ? sweep(trace, options.rule, outcome.other_ns) : grid(trace, outcome.other_ns);
  auto choice = choose(outcome.candidates, options.objective, options);
  if (choice.value && exact && options.rule.rule == Rule::at) {
    outcome.best = replayed(trace, choice.value->threshold_ns, outcome.other_ns);
    outcome.replays = replays_around(trace, choice.value->threshold_ns, outcome.other_ns);
    choice = choose(outcome.replays, Objective::total, options);
  }
  if (choice.value) outcome.best = *choice.value, outcome.highest = choice.highest;
  if (trace.workers == 1) outcome.off = "one worker: no worker waits for another";
  else if (!choice.value) outcome.off = no_threshold_reason(choice, options);
  else if (!(std::min(outcome.best.step, outcome.best.total) > 1 + options.min_gain))
    outcome.off = small_gain_reason(outcome.best, options);
  return outcome;
}

std::optional<PersistentStraggler> persistent_straggler(std::span<const double> drop_by_worker) {
  if (drop_by_worker.size() < 2) return {};
  const auto most = std::max_element(drop_by_worker.begin(), drop_by_worker.end());
  double others = 0;
  for (auto each = drop_by_worker.begin(); each != drop_by_worker.end(); ++each) others += each == most ? 0 : *each;
  const PersistentStraggler found{static_cast<size_t>(most - drop_by_worker.begin()), *most,
                                  others / static_cast<double>(drop_by_worker.size() - 1)};
  if (found.drop > 0.25 && found.drop > 3 * found.others) return found;
  return {};
}

double extra_steps(double drop) { return drop / (1 - drop); }

// The factor 1 - 1e-12 is needed because a rounding error in `drop` could otherwise add a step.
uint64_t steps_needed(uint64_t steps, double drop) {
  const double needed = std::ceil(static_cast<double>(steps) / (1 - drop) * (1 - 1e-12));
  if (!(needed < 0x1p64)) return std::numeric_limits<uint64_t>::max();
  return std::max(steps, static_cast<uint64_t>(needed));
}

}  // namespace unisono
