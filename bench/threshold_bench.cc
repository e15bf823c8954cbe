// Measures on one core how long it takes to choose a compute threshold. The traces have 44 steps of 12 micro-batches. The
// benchmarks are: trying all thresholds, for several numbers of workers; the whole search; the replay of the rule `at`; and
// planning without a trace.
#include <benchmark/benchmark.h>

#include <cmath>

#include "base/random.h"
#include "training/drop_compute/compute_forecast.h"
#include "training/drop_compute/threshold_search.h"

namespace unisono {
namespace {

using Rule = DropOptions::Rule;

// Returns a trace whose latencies have the heavy tail of model L (docs/design/methods/drop_compute.md, "Delay models"). A
// latency is 20 ms * (1 + x) with x <= 5.5.
ComputeTrace trace_of(uint32_t workers) {
  Random random(44);
  ComputeTrace trace{.workers = workers, .micro_batches = 12};
  for (size_t step = 0; step < 44; ++step) {
    for (uint32_t worker = 0; worker < workers; ++worker) {
      int64_t end = 0;
      for (uint32_t m = 0; m < trace.micro_batches; ++m) {
        const double noise = std::min(std::exp(normal_quantile(random.unit() * 0.999999 + 5e-7) - 0.5) / 2, 5.5);
        trace.ends.push_back(end += static_cast<int64_t>(20e6 * (1 + noise)));
      }
    }
    trace.walls.resize(trace.walls.size() + workers);
    const int64_t wall = trace.compute_ns(step) + 10'000'000;
    std::fill(trace.walls.end() - workers, trace.walls.end(), wall);
  }
  return trace;
}

StopRule rule_of(const ComputeTrace& trace, Rule rule) {
  return {.rule = rule, .micro_batch_ns = rule == Rule::before ? trace.micro_batch_ns() : 0};
}

void sweeps(benchmark::State& state, Rule rule) {
  const auto trace = trace_of(static_cast<uint32_t>(state.range(0)));
  for (auto _ : state) benchmark::DoNotOptimize(sweep(trace, rule_of(trace, rule), trace.other_ns()));
}

void searches(benchmark::State& state, Rule rule) {
  const auto trace = trace_of(static_cast<uint32_t>(state.range(0)));
  for (auto _ : state) benchmark::DoNotOptimize(search(trace, {.rule = rule_of(trace, rule)}));
}

void hashes(benchmark::State& state) {
  const auto trace = trace_of(static_cast<uint32_t>(state.range(0)));
  for (auto _ : state) benchmark::DoNotOptimize(trace.hash());
}

void forecasts(benchmark::State& state) {
  const auto trace = trace_of(static_cast<uint32_t>(state.range(0)));
  for (auto _ : state) benchmark::DoNotOptimize(forecast_from(trace, 10'000, 0.1));
}

void plans(benchmark::State& state) {
  const ComputeModel model{.micro_batches = static_cast<uint32_t>(state.range(0)), .mean = 1, .deviation = 0.01, .other = 0.5};
  for (auto _ : state) benchmark::DoNotOptimize(best_threshold(model));
}

BENCHMARK_CAPTURE(sweeps, after, Rule::after)->Arg(200)->Arg(10'000)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(sweeps, before, Rule::before)->Arg(200)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(sweeps, at, Rule::at)->Arg(200)->Arg(10'000)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(searches, after, Rule::after)->Arg(200)->Arg(10'000)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(searches, at, Rule::at)->Arg(200)->Arg(10'000)->Unit(benchmark::kMillisecond);
BENCHMARK(hashes)->Arg(200)->Unit(benchmark::kMillisecond);
BENCHMARK(forecasts)->Arg(200)->Unit(benchmark::kMillisecond);
BENCHMARK(plans)->Arg(12)->Arg(1000)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace unisono

BENCHMARK_MAIN();
