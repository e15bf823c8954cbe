#include "lab/drop_compute/drop_simulate_run.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>

#include "cli/common/threads.h"

namespace unisono::lab {

using cli::on_threads;

namespace {

using Kind = sim::Remedy::Kind;

// Returns all remedies except random dropping, for which the dropped fraction of another remedy must be known first.
std::vector<sim::Remedy> remedies_of(const DropSimulation& simulation, const TraceStudy& study) {
  std::vector<sim::Remedy> remedies{{.kind = Kind::none}};
  if (simulation.fixed) {
    for (const auto rule : simulation.rules) {
      auto drop = options_for(rule, simulation.choice);
      drop.threshold = DropOptions::Threshold::fixed;
      drop.seconds = *simulation.fixed;
      remedies.push_back({.kind = Kind::drop_compute, .drop = drop});
    }
  }
  if (simulation.drops) {
    for (const auto rule : simulation.rules)
      remedies.push_back({.kind = Kind::drop_compute, .drop = options_for(rule, simulation.choice)});
  }
  remedies.push_back({.kind = Kind::backup, .backups = sim::best_backups(simulation.settings)});
  remedies.push_back({.kind = Kind::rebalanced, .drop = simulation.choice});
  if (study.oracle.threshold_ns > 0) {
    remedies.push_back({.kind = Kind::oracle, .drop = simulation.choice});
    remedies.back().drop.seconds = static_cast<double>(study.oracle.threshold_ns) / 1e9;
  }
  return remedies;
}

// Returns the dropped fraction of the first threshold in `results` that dropped anything.
std::optional<double> dropped_fraction(const std::vector<RemedyResult>& results) {
  for (const auto& result : results) {
    if (result.remedy.kind == Kind::drop_compute && result.outcome.drop > 0) return result.outcome.drop;
  }
  return {};
}

class Simulations {
 public:
  Simulations(const DropSimulation& simulation, const SimulationProgress& progress)
      : simulation_(simulation), progress_(progress) {}

  std::vector<RemedyResult> run(const std::vector<sim::Remedy>& remedies) {
    results_.clear();
    for (const auto& remedy : remedies) results_.push_back({remedy, {}});
    if (all_steps_ == 0)
      // one remedy more than in `remedies`, because random dropping runs later
      all_steps_ = simulation_.settings.steps * (remedies.size() + 1);
    next_ = 0;
    on_threads(std::min<uint64_t>(simulation_.jobs, results_.size()), [this] { work(); });
    return std::move(results_);
  }

 private:
  void work() {
    for (size_t at; (at = next_++) < results_.size();) {
      auto& result = results_[at];
      const auto name = sim::name_of(result.remedy);
      result.outcome = sim::run_stragglers(simulation_.settings, result.remedy, simulation_.measured_from, [&](uint64_t) {
        if (!progress_) return;
        const std::lock_guard lock(mutex_);
        progress_(++steps_, all_steps_, name);
      });
    }
  }

  const DropSimulation& simulation_;
  const SimulationProgress& progress_;
  std::vector<RemedyResult> results_;
  std::atomic<size_t> next_{0};
  std::mutex mutex_;
  uint64_t steps_ = 0, all_steps_ = 0;
};

}  // namespace

DropSimulationResult simulate_remedies(const DropSimulation& simulation, const SimulationProgress& progress) {
  DropSimulationResult result{
      .what = simulation, .study = study_of(simulation.recorded(), simulation.choice, simulation.rules), .remedies = {}};
  Simulations simulations(simulation, progress);
  result.remedies = simulations.run(remedies_of(simulation, result.study));
  if (const auto share = dropped_fraction(result.remedies)) {
    auto random = simulations.run({{.kind = Kind::random, .share = *share}});
    result.remedies.push_back(std::move(random.front()));
  }
  return result;
}

}  // namespace unisono::lab
