// `unisono-lab simulate averaging`: how fast peers come to hold one mean, by each of several ways to average, if some are
// absent in each round.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <mutex>

#include "cli/common/monotonic.h"
#include "cli/common/progress.h"
#include "cli/common/result_writer.h"
#include "cli/common/threads.h"
#include "lab/averaging/averaging_report.h"
#include "lab/common/commands.h"

namespace unisono::cli {
namespace {

// Each case on one of some threads; what they come to does not depend on their number.
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
  Sink sink(plan->json);
  if (auto status = sink.open(true); !status.ok()) return failed(averaging_text, status);
  const auto result = run_cases(*plan);
  if (!result.ok()) return failed(averaging_text, result.status());
  sink.table(table_of(*result));
  sink.json(json_of(*result));
  auto drawn = Status();
  if (!plan->plot.empty()) {
    drawn = write_svg(plan->plot + "-variance.svg", variance_panels_of(*result));
    if (drawn.ok()) drawn = write_svg(plan->plot + "-absence.svg", absence_panels_of(*result));
  }
  for (const auto& status : {sink.finish(), drawn}) {
    if (!status.ok()) return failed(averaging_text, status);
  }
  return 0;
}

}  // namespace unisono::cli
