// Measures how long DropCompute's controller takes after a micro-batch. It must stay below 100 ns, while a micro-batch takes
// milliseconds.
#include <benchmark/benchmark.h>

#include "training/drop_compute/drop_controller.h"

namespace unisono {
namespace {

// Runs steps of 12 micro-batches. No micro-batch is late, so the controller takes its longest path. Each step calls begin()
// once, so the time that is reported for a micro-batch includes a twelfth of begin().
void micro_batch_done(benchmark::State& state, DropOptions::Rule rule, uint32_t lag) {
  constexpr uint32_t micro_batches = 12;
  DropController controller(micro_batches);
  int64_t now = 0;
  for (auto _ : state) {
    auto verdict = controller.begin({.rule = rule, .lag = lag, .micro_batch_ns = 10},
                                    {.threshold_ns = 1'000'000, .planned = micro_batches}, now);
    while (verdict == DropController::Verdict::run_next) {
      verdict = controller.micro_batch_done(now += 10);
      benchmark::DoNotOptimize(verdict);
    }
  }
  state.counters["per_micro_batch"] = benchmark::Counter(static_cast<double>(state.iterations()) * micro_batches,
                                                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

BENCHMARK_CAPTURE(micro_batch_done, after, DropOptions::Rule::after, 0);
BENCHMARK_CAPTURE(micro_batch_done, after_lag_2, DropOptions::Rule::after, 2);
BENCHMARK_CAPTURE(micro_batch_done, before, DropOptions::Rule::before, 0);
BENCHMARK_CAPTURE(micro_batch_done, at, DropOptions::Rule::at, 0);

}  // namespace
}  // namespace unisono

BENCHMARK_MAIN();
