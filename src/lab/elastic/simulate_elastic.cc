// `unisono-lab simulate elastic`: simulates whole elastic runs in virtual time, and checks every round.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <mutex>

#include "cli/common/text.h"
#include "cli/common/text_file.h"
#include "lab/common/commands.h"
#include "lab/common/simulation.h"
#include "lab/elastic/elastic_report.h"

namespace unisono::lab {

using cli::format_duration;
using cli::read_text_file;

namespace {

// The progress of all runs together. The unit is an averaging step, or a millisecond of the trace if a run ends with its trace.
class ElasticSteps {
 public:
  explicit ElasticSteps(const ElasticPlan& plan)
      : plan_(plan),
        steps_per_run_(plan.whole_trace ? std::max<uint64_t>(1, steps_of(plan.study.until)) : plan.study.steps),
        done_(plan.runs()),
        progress_(progress_options("simulate elastic", steps_per_run_ * plan.runs(), plan.progress), monotonic_now()) {}

  void on_progress(size_t run, const sim::ElasticStudyProgress& progress) {
    const std::lock_guard lock(mutex_);
    const auto done = std::min(steps_per_run_, plan_.whole_trace ? steps_of(progress.now) : progress.steps);
    all_ += done - std::exchange(done_[run], done);
    progress_.update(all_,
                     fmt::format("seed {}, averaging step {}, {} peers, {}", plan_.seeds.first + run, progress.steps,
                                 progress.present, format_duration(progress.now)),
                     monotonic_now());
  }
  void clear() { progress_.clear(); }

 private:
  static uint64_t steps_of(Nanos now) { return static_cast<uint64_t>(now / millisecond); }

  const ElasticPlan& plan_;
  uint64_t steps_per_run_;
  std::mutex mutex_;
  std::vector<uint64_t> done_;
  uint64_t all_ = 0;
  Progress progress_;
};

// Runs the seeds on several threads. The results do not depend on the number of threads.
Result<ElasticResult> run_seeds(const ElasticPlan& plan) {
  std::vector<Result<sim::ElasticStudyResult>> runs(plan.runs(), Status(Code::internal, "was not run"));
  std::atomic<size_t> next{0};
  ElasticSteps steps(plan);
  on_threads(std::min<uint64_t>(plan.jobs, runs.size()), [&] {
    for (size_t at; (at = next++) < runs.size();) {
      runs[at] = sim::study_elastic(plan.study_of(plan.seeds.first + at),
                                    [&](const sim::ElasticStudyProgress& progress) { steps.on_progress(at, progress); });
    }
  });
  steps.clear();
  ElasticResult result{.plan = plan, .runs = {}};
  for (auto& run : runs) {
    if (!run.ok()) return run.status();
    result.runs.push_back(*std::move(run));
  }
  return result;
}

}  // namespace

CommandSyntax simulate_elastic_syntax() { return syntax_of(elastic_text, add_elastic_options); }

int run_simulate_elastic(const Arguments& arguments) {
  ElasticOptionTexts words;
  const auto app = make_app(elastic_text);
  add_elastic_options(*app, words);
  if (const auto code = parse_arguments(*app, arguments)) return *code;
  const auto trace =
      words.trace.empty() ? Result<std::string>(std::string()) : of_option("--trace", read_text_file(words.trace));
  if (!trace.ok()) return failed(elastic_text, trace.status());
  const auto plan = make_elastic_plan(words, *trace);
  if (!plan.ok()) return usage_error(elastic_text.name, plan.status().message());
  Sink sink(plan->results);
  if (auto status = first_wrong({check_writable({"--plot", plan->plot}), sink.open(true)}); !status.ok())
    return failed(elastic_text, status);
  const auto result = run_seeds(*plan);
  if (!result.ok()) return failed(elastic_text, result.status());
  sink.table(table_of(*result));
  sink.json(json_of(*result));
  const auto drawn = plan->plot.empty() ? Status() : of_option("--plot", write_svg(plan->plot, panels_of(*result)));
  for (const auto& status : {sink.finish(), drawn}) {
    if (!status.ok()) return failed(elastic_text, status);
  }
  return is_correct(*result) ? 0 : 1;
}

}  // namespace unisono::lab
