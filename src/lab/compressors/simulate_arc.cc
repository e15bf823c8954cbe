// `unisono-lab simulate arc`: trains small problems with compressed gradients, and compares the results with
// docs/design/methods/arc_top_k.md.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <mutex>

#include "lab/common/commands.h"
#include "lab/common/simulation.h"
#include "lab/compressors/convergence_report.h"

namespace unisono::lab {

namespace {

constexpr uint64_t curve_points = 200;

// Runs all trainings on several threads. The results do not depend on the number of threads.
class Trainings {
 public:
  explicit Trainings(const ConvergencePlan& plan)
      : plan_(plan), progress_(progress_options("simulate arc", plan.steps(), plan.progress), monotonic_now()) {
    for (const auto& one : plan.cases) {
      results_.push_back(ConvergenceResult{one, std::vector<sim::TrainingOutcome>(one.seeds.size())});
      for (size_t i = 0; i < one.seeds.size(); ++i) runs_.push_back({results_.size() - 1, i});
    }
  }

  Result<std::vector<ConvergenceResult>> run() {
    on_threads(std::min<uint64_t>(plan_.jobs, runs_.size()), [this] { work(); });
    progress_.clear();
    if (!failure_.ok()) return failure_;
    return std::move(results_);
  }

 private:
  struct Run {
    size_t result, seed;  // index of the result in results_, and index of the seed among the seeds of the case
  };

  void work() {
    for (size_t at; (at = next_++) < runs_.size();) {
      auto& result = results_[runs_[at].result];
      auto settings = result.what.settings;
      settings.seed = result.what.seeds[runs_[at].seed];
      const auto name = fmt::format("{} {} {}", sim::facts_of(settings.problem).name,
                                    settings.method == sim::Method::dense ? "" : feedback_name(settings.feedback),
                                    method_name(settings.method));
      const auto on_progress = [&](uint64_t steps) {
        const std::lock_guard lock(mutex_);
        progress_.update(steps_ += steps, name, monotonic_now());
      };
      auto outcome = sim::run_training(
          settings,
          {.curve_points = plan_.plot.empty() && plan_.results == OutputOptions{} ? 0 : curve_points, .progress = on_progress});
      const std::lock_guard lock(mutex_);
      if (outcome.ok()) result.outcomes[runs_[at].seed] = *std::move(outcome);
      else failure_ = outcome.status();
    }
  }

  const ConvergencePlan& plan_;
  std::vector<ConvergenceResult> results_;
  std::vector<Run> runs_;
  std::atomic<size_t> next_{0};
  std::mutex mutex_;
  uint64_t steps_ = 0;
  Status failure_;
  Progress progress_;
};

}  // namespace

CommandSyntax simulate_arc_syntax() { return syntax_of(convergence_text, add_convergence_options); }

int run_simulate_arc(const Arguments& arguments) {
  ConvergenceOptions options;
  const auto app = make_app(convergence_text);
  add_convergence_options(*app, options);
  if (const auto code = parse_arguments(*app, arguments)) return *code;
  const auto plan = make_convergence_plan(options);
  if (!plan.ok()) return usage_error(convergence_text.name, plan.status().message());
  Sink sink(plan->results);
  if (auto status = first_wrong({check_writable({"--plot", plan->plot}), sink.open(true)}); !status.ok())
    return failed(convergence_text, status);
  const auto results = Trainings(*plan).run();
  if (!results.ok()) return failed(convergence_text, results.status());
  sink.table(table_of(*results));
  sink.json(json_of(*results));
  const auto drawn = plan->plot.empty() ? Status() : of_option("--plot", write_svg(plan->plot, panels_of(*results)));
  for (const auto& status : {sink.finish(), drawn}) {
    if (!status.ok()) return failed(convergence_text, status);
  }
  return verdicts_of(*results).off == 0 ? 0 : 1;
}

}  // namespace unisono::lab
