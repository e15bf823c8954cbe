// `unisono-lab simulate averaging`: compares how fast the algorithms bring all peers to the mean while some peers are absent.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <mutex>

#include "lab/averaging/averaging_report.h"
#include "lab/common/commands.h"
#include "lab/common/simulation.h"

namespace unisono::lab {

namespace {

// Runs the cases on several threads. The results do not depend on the number of threads.
Result<AveragingResult> run_cases(const AveragingPlan& plan) {
  const auto cases = plan.cases();
  std::vector<Result<sim::AveragingMeans>> means(cases.size(), Status(Code::internal, "was not run"));
  std::atomic<size_t> next{0};
  std::mutex mutex;
  uint64_t runs = 0;
  Progress progress(progress_options("simulate averaging", plan.runs(), plan.progress), monotonic_now());
  on_threads(std::min<uint64_t>(plan.jobs, cases.size()), [&] {
    for (size_t at; (at = next++) < cases.size();) {
      const auto& one = cases[at];
      const auto what = fmt::format("{}, {} peers, absence {}", sim::name(one.algorithm), one.peers, one.absence);
      means[at] =
          sim::average_restarts(one, {.restarts = plan.restarts, .targets = plan.targets, .curve = !plan.plot.empty()}, [&] {
            const std::lock_guard lock(mutex);
            progress.update(++runs, what, monotonic_now());
          });
    }
  });
  progress.clear();
  AveragingResult result{.plan = plan, .means = {}};
  for (auto& each : means) {
    if (!each.ok()) return each.status();
    result.means.push_back(*std::move(each));
  }
  return result;
}

}  // namespace

CommandSyntax simulate_averaging_syntax() { return syntax_of(averaging_text, add_averaging_options); }

int run_simulate_averaging(const Arguments& arguments) {
  AveragingOptions options;
  const auto app = make_app(averaging_text);
  add_averaging_options(*app, options);
  if (const auto code = parse_arguments(*app, arguments)) return *code;
  const auto plan = make_averaging_plan(options);
  if (!plan.ok()) return usage_error(averaging_text.name, plan.status().message());
  Sink sink(plan->results);
  const OutputFile variance{"--plot", plan->plot.empty() ? "" : plan->plot + "-variance.svg"};
  const OutputFile absence{"--plot", plan->plot.empty() ? "" : plan->plot + "-absence.svg"};
  if (auto status = first_wrong({check_writable(variance), check_writable(absence), sink.open(true)}); !status.ok())
    return failed(averaging_text, status);
  const auto result = run_cases(*plan);
  if (!result.ok()) return failed(averaging_text, result.status());
  sink.table(table_of(*result));
  sink.json(json_of(*result));
  auto drawn = Status();
  if (!plan->plot.empty()) {
    drawn = of_option("--plot", first_wrong({write_svg(variance.path, variance_panels_of(*result)),
                                             write_svg(absence.path, absence_panels_of(*result))}));
  }
  for (const auto& status : {sink.finish(), drawn}) {
    if (!status.ok()) return failed(averaging_text, status);
  }
  return 0;
}

}  // namespace unisono::lab
