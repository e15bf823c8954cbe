// `unisono-lab simulate loss`: trains simulated ranks over lossy links, or runs lossy all-reduces over a simulated network.
// Compares the measurements with the formulae of lossy delivery.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <mutex>

#include "lab/common/commands.h"
#include "lab/common/simulation.h"
#include "lab/loss/loss_network_report.h"
#include "lab/loss/loss_report.h"

namespace unisono::lab {

namespace {

// Runs all problems and seeds on several threads. The results do not depend on the number of threads, because they are combined
// in the order of the seeds.
class Runs {
 public:
  explicit Runs(const LossPlan& plan)
      : plan_(plan),
        results_(plan.seeds.size()),
        progress_(progress_options("simulate loss", plan.steps(), plan.progress), monotonic_now()) {
    for (size_t seed = 0; seed < plan.seeds.size(); ++seed) {
      if (plan.estimates) runs_.push_back({seed, "estimates"});
      if (plan.drift) runs_.push_back({seed, "drift"});
      if (plan.fixed_point) runs_.push_back({seed, "fixed point"});
    }
  }

  Result<LossResult> run() {
    on_threads(std::min<uint64_t>(plan_.jobs, runs_.size()), [this] { work(); });
    progress_.clear();
    if (!failure_.ok()) return failure_;
    LossResult all{
        .plan = plan_, .estimates = results_[0].estimates, .drift = results_[0].drift, .fixed_point = results_[0].fixed_point};
    for (size_t seed = 1; seed < results_.size(); ++seed) {
      if (all.estimates) all.estimates->append(*results_[seed].estimates, seed + 1);
      if (all.drift) all.drift->append(*results_[seed].drift);
      if (all.fixed_point) all.fixed_point->append(*results_[seed].fixed_point);
    }
    return all;
  }

 private:
  struct Run {
    size_t seed = 0;
    std::string problem;
  };
  struct SeedResults {
    std::optional<sim::EstimatesOutcome> estimates;
    std::optional<sim::DriftOutcome> drift;
    std::optional<sim::FixedPointOutcome> fixed_point;
  };

  template <typename Outcome>
  void keep(std::optional<Outcome>& to, Result<Outcome> outcome) {
    const std::lock_guard lock(mutex_);
    if (outcome.ok()) to = *std::move(outcome);
    else failure_ = outcome.status();
  }

  void work() {
    for (size_t at; (at = next_++) < runs_.size();) {
      auto settings = plan_.settings;
      settings.ranks.seed = plan_.seeds[runs_[at].seed];
      const auto on_progress = [&](uint64_t steps) {
        const std::lock_guard lock(mutex_);
        progress_.update(steps_ += steps, fmt::format("{}, seed {}", runs_[at].problem, settings.ranks.seed), monotonic_now());
      };
      const sim::LossWatch watch{.progress = on_progress};
      auto& result = results_[runs_[at].seed];
      if (runs_[at].problem == "estimates") keep(result.estimates, sim::run_estimates(settings, watch));
      else if (runs_[at].problem == "drift") keep(result.drift, sim::run_drift(settings, watch));
      else keep(result.fixed_point, sim::run_fixed_point(settings, watch));
    }
  }

  const LossPlan& plan_;
  std::vector<SeedResults> results_;
  std::vector<Run> runs_;
  std::atomic<size_t> next_{0};
  std::mutex mutex_;
  uint64_t steps_ = 0;
  Status failure_;
  Progress progress_;
};

// Runs the seeds on several threads, and combines their results in the order of the seeds.
Result<NetworkResult> run_network(const LossPlan& plan) {
  std::vector<Result<sim::UdpOutcome>> outcomes(plan.seeds.size(), Status(Code::internal, "was not run"));
  std::atomic<size_t> next{0};
  std::mutex mutex;
  uint64_t operations = 0;
  Progress progress(progress_options("simulate loss", plan.steps(), plan.progress), monotonic_now());
  on_threads(std::min<uint64_t>(plan.jobs, plan.seeds.size()), [&] {
    for (size_t at; (at = next++) < plan.seeds.size();) {
      auto settings = *plan.network;
      settings.seed = plan.seeds[at];
      outcomes[at] = sim::run_udp(settings, [&](uint64_t more) {
        const std::lock_guard lock(mutex);
        progress.update(operations += more, fmt::format("network, seed {}", settings.seed), monotonic_now());
      });
    }
  });
  progress.clear();
  for (const auto& outcome : outcomes) {
    if (!outcome.ok()) return outcome.status();
  }
  NetworkResult all{.plan = plan, .outcome = *std::move(outcomes[0])};
  for (size_t seed = 1; seed < outcomes.size(); ++seed) all.outcome.append(*outcomes[seed]);
  return all;
}

// Writes the results. Returns the exit code.
template <typename Measured>
int show(const LossPlan& plan, Sink& sink, const Result<Measured>& result) {
  if (!result.ok()) return failed(loss_text, result.status());
  const auto checks = checks_of(*result);
  sink.table(table_of(*result, checks));
  sink.json(json_of(*result, checks));
  const auto drawn = plan.plot.empty() ? Status() : of_option("--plot", write_svg(plan.plot, panels_of(*result)));
  for (const auto& status : {sink.finish(), drawn}) {
    if (!status.ok()) return failed(loss_text, status);
  }
  return std::none_of(checks.begin(), checks.end(), [](const LossCheck& check) { return check.verdict == CheckVerdict::off; })
             ? 0
             : 1;
}

}  // namespace

CommandSyntax simulate_loss_syntax() { return syntax_of(loss_text, add_loss_options); }

int run_simulate_loss(const Arguments& arguments) {
  LossOptions options;
  const auto app = make_app(loss_text);
  add_loss_options(*app, options);
  if (const auto code = parse_arguments(*app, arguments)) return *code;
  const auto plan = make_loss_plan(options);
  if (!plan.ok()) return usage_error(loss_text.name, plan.status().message());
  Sink sink(plan->results);
  if (auto status = first_wrong({check_writable({"--plot", plan->plot}), sink.open(true)}); !status.ok())
    return failed(loss_text, status);
  return plan->network ? show(*plan, sink, run_network(*plan)) : show(*plan, sink, Runs(*plan).run());
}

}  // namespace unisono::lab
