#include "lab/drop_compute/straggler_remedies.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <optional>
#include <queue>
#include <utility>

#include "lab/drop_compute/straggler_workers.h"

namespace unisono::sim {
namespace {

constexpr uint64_t random_drop_seed = 0x6C6F7473;  // makes sure that random dropping does not depend on the latencies
// in seconds; very rare draws would be longer, and this limit keeps sums in ns from overflowing
constexpr double latency_max = 1e6;

int64_t latency_ns(const StragglerSettings& settings, uint64_t step, uint32_t worker, uint32_t micro_batch) {
  auto random = random_of(settings.seed, step, worker, micro_batch);
  return ns_of(std::min(settings.model.latency(random, worker), latency_max));
}

std::span<const int64_t> of_worker(std::span<const int64_t> latencies, size_t worker, uint32_t micro_batches) {
  return latencies.subspan(worker * micro_batches, micro_batches);
}

// DropCompute. It first warms up, then records steps (if the threshold or the rule needs them), then drops micro-batches. All
// latencies follow one law, so the threshold is chosen only once.
class Dropping {
 public:
  Dropping(const StragglerSettings& settings, const DropOptions& options, StragglerOutcome& outcome)
      : settings_(settings),
        options_(options),
        outcome_(outcome),
        workers_(settings.workers, settings.micro_batches, ns_of(settings.other)),
        rule_{.rule = options.rule, .lag = options.lag, .min_computed = options.min_computed} {
    const bool records = options.threshold == DropOptions::Threshold::automatic ||
                         (options.threshold == DropOptions::Threshold::fixed && options.rule == DropOptions::Rule::before);
    trace_.workers = settings.workers;
    trace_.micro_batches = settings.micro_batches;
    records_from_ = uint64_t{1} + options.warmup_steps;
    drops_from_ = records_from_ + (records ? options.calibration_steps : 0);
  }

  int64_t step(uint64_t step, std::span<const int64_t> latencies, std::span<uint32_t> dropped) {
    if (step >= records_from_ && step < drops_from_) append_step(trace_, latencies, ns_of(settings_.other));
    if (step == drops_from_) decide();
    const int64_t compute = workers_.step(rule_, threshold_ns_, latencies);
    for (size_t i = 0; i < dropped.size(); ++i) dropped[i] += settings_.micro_batches - workers_.computed(i);
    return compute;
  }

 private:
  void decide() {
    if (options_.threshold == DropOptions::Threshold::fixed) {
      threshold_ns_ = ns_of(options_.seconds);
      if (trace_.steps() > 0) rule_.micro_batch_ns = trace_.micro_batch_ns();
    } else if (options_.threshold == DropOptions::Threshold::automatic) {
      search_in_trace();
    }
    trace_ = {};
    if (threshold_ns_) outcome_.threshold = static_cast<double>(*threshold_ns_) * 1e-9;
  }

  void search_in_trace() {
    if (const auto status = trace_.check(); !status.ok()) {
      outcome_.off_reason = status.message();
      return;
    }
    const auto searching = search_options(options_, trace_);
    const auto found = search(trace_, searching);
    outcome_.off_reason = found.off;
    outcome_.predicted_step = found.best.step;
    outcome_.predicted_total = found.best.total;
    outcome_.predicted_drop = found.best.drop;
    if (!found.off.empty()) return;
    rule_ = searching.rule;
    threshold_ns_ = found.best.threshold_ns;
  }

  const StragglerSettings& settings_;
  const DropOptions options_;
  StragglerOutcome& outcome_;
  StragglerWorkers workers_;
  StopRule rule_;
  uint64_t records_from_ = 0, drops_from_ = 0;
  ComputeTrace trace_;
  std::optional<int64_t> threshold_ns_;
};

// Observes the first steps, then gives faster workers more micro-batches.
class Rebalancing {
 public:
  Rebalancing(const StragglerSettings& settings, uint32_t watched_steps)
      : settings_(settings),
        watched_steps_(watched_steps),
        sums_(settings.workers, 0),
        planned_(settings.workers, settings.micro_batches) {}

  int64_t step(uint64_t step, std::span<const int64_t> latencies) {
    if (step == uint64_t{1} + watched_steps_ && watched_steps_ > 0) share_out();
    int64_t slowest = 0;
    for (uint32_t i = 0; i < settings_.workers; ++i) {
      const auto own = of_worker(latencies, i, settings_.micro_batches);
      if (step <= watched_steps_) sums_[i] += static_cast<double>(sum_of(own));
      int64_t end = sum_of(own.first(std::min(planned_[i], settings_.micro_batches)));
      for (uint32_t m = settings_.micro_batches; m < planned_[i]; ++m) end += latency_ns(settings_, step, i, m);
      slowest = std::max(slowest, end);
    }
    return slowest;
  }

 private:
  // Gives each worker one micro-batch. Then each further micro-batch goes to the worker that would finish it first. In this
  // way, the last worker finishes as early as possible.
  void share_out() {
    // when the worker would finish its next micro-batch, and the worker's number
    using Candidate = std::pair<double, uint32_t>;
    std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> next;
    std::fill(planned_.begin(), planned_.end(), 1);
    for (uint32_t i = 0; i < settings_.workers; ++i) next.push({2 * sums_[i], i});
    for (uint64_t left = uint64_t{settings_.workers} * (settings_.micro_batches - 1); left > 0; --left) {
      const auto worker = next.top().second;
      next.pop();
      ++planned_[worker];
      next.push({(planned_[worker] + 1) * sums_[worker], worker});
    }
  }

  const StragglerSettings& settings_;
  const uint32_t watched_steps_;
  std::vector<double> sums_;  // by worker: sum of its latencies in the first steps, which is proportional to its mean latency
  std::vector<uint32_t> planned_;
};

// Drops all micro-batches of the `backups` workers that finish last. Returns the time when all other workers have finished.
int64_t without_latest(const StragglerSettings& settings, uint32_t backups, std::span<const int64_t> latencies,
                       std::span<uint32_t> dropped) {
  std::vector<std::pair<int64_t, size_t>> ends(settings.workers);
  for (size_t i = 0; i < ends.size(); ++i) ends[i] = {sum_of(of_worker(latencies, i, settings.micro_batches)), i};
  std::sort(ends.begin(), ends.end());
  const size_t waited_for = settings.workers - std::min(backups, settings.workers - 1);
  for (size_t i = waited_for; i < ends.size(); ++i) dropped[ends[i].second] += settings.micro_batches;
  return ends[waited_for - 1].first;
}

// Drops every micro-batch that does not end before the threshold. Returns the time when the last of the other micro-batches
// ends.
int64_t by_oracle(const StragglerSettings& settings, int64_t threshold_ns, std::span<const int64_t> latencies,
                  std::span<uint32_t> dropped) {
  int64_t last = 0;
  for (size_t i = 0; i < settings.workers; ++i) {
    int64_t end = 0;
    uint32_t in_time = 0;
    for (const auto latency : of_worker(latencies, i, settings.micro_batches)) {
      end += latency;
      if (end >= threshold_ns) break;
      last = std::max(last, end);
      ++in_time;
    }
    dropped[i] += settings.micro_batches - in_time;
  }
  return last;
}

}  // namespace

int64_t ns_of(double seconds) { return std::llround(seconds * 1e9); }

int64_t sum_of(std::span<const int64_t> latencies) { return std::accumulate(latencies.begin(), latencies.end(), int64_t{0}); }

void draw_latencies(const StragglerSettings& settings, uint64_t step, std::vector<int64_t>& latencies) {
  latencies.clear();
  for (uint32_t i = 0; i < settings.workers; ++i) {
    for (uint32_t m = 0; m < settings.micro_batches; ++m) latencies.push_back(latency_ns(settings, step, i, m));
  }
}

int64_t slowest_ns(std::span<const int64_t> latencies, uint32_t micro_batches) {
  int64_t slowest = 0;
  for (size_t i = 0; i * micro_batches < latencies.size(); ++i)
    slowest = std::max(slowest, sum_of(of_worker(latencies, i, micro_batches)));
  return slowest;
}

void append_step(ComputeTrace& trace, std::span<const int64_t> latencies, int64_t other_ns) {
  const int64_t wall = slowest_ns(latencies, trace.micro_batches) + other_ns;
  for (size_t i = 0; i < trace.workers; ++i) {
    const auto own = of_worker(latencies, i, trace.micro_batches);
    const auto old = static_cast<std::ptrdiff_t>(trace.ends.size());
    trace.ends.insert(trace.ends.end(), own.begin(), own.end());
    std::partial_sum(trace.ends.begin() + old, trace.ends.end(), trace.ends.begin() + old);
    trace.walls.push_back(wall);
  }
}

RemedyStep make_remedy(const StragglerSettings& settings, const Remedy& remedy, StragglerOutcome& outcome) {
  const auto everything = [&settings](uint64_t, std::span<const int64_t> latencies, std::span<uint32_t>) {
    return slowest_ns(latencies, settings.micro_batches);
  };
  switch (remedy.kind) {
    case Remedy::Kind::none: break;
    case Remedy::Kind::drop_compute:
      return [run = std::make_shared<Dropping>(settings, remedy.drop, outcome)](
                 uint64_t step, std::span<const int64_t> latencies, std::span<uint32_t> dropped) {
        return run->step(step, latencies, dropped);
      };
    case Remedy::Kind::backup:
      return [&settings, backups = remedy.backups](uint64_t, std::span<const int64_t> latencies, std::span<uint32_t> dropped) {
        return without_latest(settings, backups, latencies, dropped);
      };
    case Remedy::Kind::oracle:
      outcome.threshold = remedy.drop.seconds;
      return [&settings, threshold = ns_of(remedy.drop.seconds)](uint64_t, std::span<const int64_t> latencies,
                                                                 std::span<uint32_t> dropped) {
        return by_oracle(settings, threshold, latencies, dropped);
      };
    case Remedy::Kind::rebalanced:
      return [run = std::make_shared<Rebalancing>(settings, remedy.drop.calibration_steps)](
                 uint64_t step, std::span<const int64_t> latencies, std::span<uint32_t>) { return run->step(step, latencies); };
    case Remedy::Kind::random:
      return [&settings, everything, share = remedy.share](uint64_t step, std::span<const int64_t> latencies,
                                                           std::span<uint32_t> dropped) {
        for (uint32_t i = 0; i < settings.workers; ++i) {
          auto random = random_of(settings.seed ^ random_drop_seed, step, i, 0);
          for (uint32_t m = 0; m < settings.micro_batches; ++m) dropped[i] += random.chance(share);
        }
        return everything(step, latencies, dropped);
      };
  }
  return everything;
}

}  // namespace unisono::sim
