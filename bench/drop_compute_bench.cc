// One rank of bench/drop_compute. It runs training steps with one setting of DropCompute, or with micro-batches dropped at
// random. The times of the micro-batches are simulated (random), but the gradients are really averaged. Rank 0 prints a line of
// JSON.
//
// A micro-batch sleeps until its time is over. Sleeping takes no CPU time, so ranks that share cores do not slow each other
// down.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <numeric>
#include <thread>
#include <vector>

#include "lab/drop_compute/delay_model.h"
#include "unisono/unisono.h"

namespace {

using unisono::Code;
using unisono::Result;
using unisono::Status;
using Clock = std::chrono::steady_clock;

struct Settings {
  std::string model = "L:mu=0.02", drop = "off", record;
  double random_drop = 0;  // share of the micro-batches that are dropped at random
  uint32_t micro_batches = 12;
  uint64_t elements = 1'000'000, steps = 200, skip = 50, seed = 1;
};

struct Times {
  uint64_t computed = 0;
  std::vector<double> steps, compute;  // Seconds for each step. `compute` is the time of the slowest rank.
  double beside = 0;                   // seconds in which this rank neither computed nor averaged, over all steps
};

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double deviation(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += (value - mean(values)) * (value - mean(values));
  return std::sqrt(sum / static_cast<double>(values.size() - 1));
}

// Returns how many micro-batches this rank computes in each step. Returns an empty list if none are dropped at random.
std::vector<uint32_t> drawn(const Settings& s, uint32_t rank) {
  std::vector<uint32_t> counts;
  if (s.random_drop <= 0) return counts;
  unisono::Random random = unisono::sim::random_of(s.seed + 1, 0, rank, 0);
  for (uint64_t step = 0; step < s.skip + s.steps; ++step) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < s.micro_batches; ++i) count += random.chance(s.random_drop) ? 0 : 1;
    counts.push_back(count);
  }
  return counts;
}

Result<Times> train(unisono::Group& group, unisono::DropCompute& drop, const Settings& s,
                    const unisono::sim::DelayModel& model) {
  std::vector<float> gradients(s.elements);
  Times times;
  uint64_t step = 0, first = 0;  // first: the position of the step's first micro-batch
  // Nanoseconds that were spent in `compute` and `reduce`. The rule `at` runs `compute` in another thread, so the number is
  // atomic.
  std::atomic<int64_t> outside = 0;
  const unisono::DropWork work{.compute =
                                   [&](uint64_t position, std::span<float> out) {
                                     const auto number = static_cast<uint32_t>(position - first);
                                     auto random = unisono::sim::random_of(s.seed, step, group.rank(), number);
                                     const auto until =
                                         Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                                            std::chrono::duration<double>(model.latency(random, group.rank())));
                                     out[position % out.size()] += 1;
                                     const auto start = Clock::now();
                                     std::this_thread::sleep_until(until);
                                     outside += std::chrono::nanoseconds(Clock::now() - start).count();
                                     return Status();
                                   },
                               .reduce =
                                   [&](std::span<float> all) {
                                     const auto start = Clock::now();
                                     auto status = group.all_reduce(all, {.op = unisono::ReduceOp::avg}).status();
                                     outside += std::chrono::nanoseconds(Clock::now() - start).count();
                                     return status;
                                   },
                               .apply = {}};
  auto begun = Clock::now();
  for (; step < s.skip + s.steps; ++step) {
    const auto done = drop.run(gradients, work);
    if (!done.ok()) return done.status();
    first += done->computed;
    if (auto warnings = group.rank() == 0 ? done->warnings : std::vector<std::string>(); !warnings.empty())
      fmt::print(stderr, "step {}: {}\n", done->step, fmt::join(warnings, "; "));
    const auto now = Clock::now();
    // The step has ended at `now`. The bookkeeping below does not belong to its time.
    int64_t slowest = done->compute_ns;
    uint64_t computed = done->computed;
    if (step >= s.skip) {
      times.steps.push_back(std::chrono::duration<double>(now - begun).count());
      times.compute.push_back(static_cast<double>(slowest));
      times.computed += computed;
      times.beside += times.steps.back() - 1e-9 * static_cast<double>(outside);
    }
    outside = 0;
    begun = now;
  }
  if (auto drained = drop.drain(work); !drained.ok()) return drained;
  if (auto most = group.all_reduce(std::span(times.compute), {.op = unisono::ReduceOp::max}); !most.ok()) return most.status();
  if (auto all = group.all_reduce(std::span(&times.computed, 1)); !all.ok()) return all.status();
  return times;
}

void print(const Settings& s, const Times& times, const unisono::DropCompute& drop, uint32_t ranks) {
  const double seconds = std::accumulate(times.steps.begin(), times.steps.end(), 0.0);
  const auto report = drop.total();
  fmt::print(
      "{{\"drop\":\"{}\",\"random_drop\":{},\"steps\":{},\"per_second\":{:.6g},\"p\":{:.6g},\"step_ms\":{:.6g},\"step_"
      "deviation_ms\":{:.6g},\"compute_ms\":{:.6g},\"compute_deviation_ms\":{:.6g},"
      "\"threshold_ms\":{:.6g},\"other_ms\":{:.6g},\"predicted_total\":{:.6g},\"predicted_step\":{:.6g},\"predicted_p\":{:.6g},"
      "\"beside_us\":{:.4g},\"off\":\"{}\"}}\n",
      s.drop, s.random_drop, s.steps, static_cast<double>(times.computed) / seconds,
      1 - static_cast<double>(times.computed) / static_cast<double>(s.steps * ranks * s.micro_batches), 1e3 * mean(times.steps),
      1e3 * deviation(times.steps), 1e-6 * mean(times.compute), 1e-6 * deviation(times.compute), 1e3 * report.threshold,
      1e3 * report.other, report.predicted_total, report.predicted_step, report.predicted_drop,
      1e6 * times.beside / static_cast<double>(s.steps), report.off);
}

Status run(const Settings& s) {
  const auto model = unisono::sim::DelayModel::parse(s.model);
  if (!model.ok()) return model.status();
  auto options = unisono::DropOptions::parse(s.drop);
  if (!options.ok()) return options.status();
  auto group = unisono::Group::join();
  if (!group.ok()) return group.status();
  options->replay = drawn(s, group->rank());
  auto drop = unisono::DropCompute::make(*group, s.micro_batches, *options);
  if (!drop.ok()) return drop.status();
  const auto times = train(*group, *drop, s, *model);
  if (!times.ok()) return times.status();
  if (group->rank() == 0) print(s, *times, *drop, group->world_size());
  return group->barrier().status();
}

}  // namespace

int main(int argc, char** argv) {
  Settings s;
  CLI::App app("One rank of bench/drop_compute.");
  app.add_option("--model", s.model)->capture_default_str();
  app.add_option("--drop", s.drop, "a text of DropOptions::parse")->capture_default_str();
  app.add_option("--random-drop", s.random_drop)->capture_default_str();
  app.add_option("-m,--micro-batches", s.micro_batches)->capture_default_str();
  app.add_option("--elements", s.elements, "elements of the gradients")->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("--steps", s.steps, "steps that are timed")->capture_default_str()->check(CLI::Range(2, 1'000'000));
  app.add_option("--skip", s.skip, "steps before the timed ones")->capture_default_str();
  app.add_option("--seed", s.seed)->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  const auto status = run(s);
  if (!status.ok()) fmt::print(stderr, "drop_compute_bench: {}\n", status.to_string());
  return status.ok() ? 0 : 1;
}
