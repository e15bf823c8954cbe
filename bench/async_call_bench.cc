// Measures for how long an asynchronous call blocks its caller while another operation runs. For example, a training program
// starts the next bucket of gradients before the previous one is done.
//
//   unisono launch -n 2 --transport shm build/release/bench/async_call_bench
#include <fmt/format.h>
#include <unisono/unisono.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

double us_since(Clock::time_point start) { return std::chrono::duration<double, std::micro>(Clock::now() - start).count(); }

double part(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Measures how many microseconds an asynchronous all-reduce blocks its caller while another one runs that began PAUSE "
      "earlier. Start it with "
      "`unisono launch`.");
  uint64_t running = 64u << 20, second = 4u << 20, calls = 100;
  double pause_us = 2500;
  app.add_option("--running", running, "bytes of the operation that runs")->transform(CLI::AsSizeValue(false));
  app.add_option("--second", second, "bytes of the operation that is called meanwhile")->transform(CLI::AsSizeValue(false));
  app.add_option("--pause", pause_us, "microseconds between the two calls, in which the caller computes");
  app.add_option("--calls", calls, "number of calls")->check(CLI::Range(1u, 100'000u));
  CLI11_PARSE(app, argc, argv);

  auto group = unisono::Group::join();
  if (!group) return std::fprintf(stderr, "%s\n", group.status().to_string().c_str()), 1;
  std::vector<float> a(running / sizeof(float)), b(second / sizeof(float));
  std::vector<double> first_call, second_call, both;
  for (uint64_t i = 0; i < calls; ++i) {
    if (auto met = group->barrier(); !met) return std::fprintf(stderr, "%s\n", met.status().to_string().c_str()), 1;
    const auto start = Clock::now();
    auto one = group->all_reduce_async(std::span<float>(a));
    first_call.push_back(us_since(start));
    const auto computing = Clock::now();
    while (us_since(computing) < pause_us) {}
    const auto again = Clock::now();
    auto two = group->all_reduce_async(std::span<float>(b));
    second_call.push_back(us_since(again));
    const auto one_done = one.wait(), two_done = two.wait();
    for (const auto* done : {&one_done, &two_done}) {
      if (!*done) return std::fprintf(stderr, "%s\n", done->status().to_string().c_str()), 1;
    }
    both.push_back(us_since(start));
  }
  // Take the maximum over the ranks, so that each printed time is the time of the slowest rank.
  std::array<double, 4> times{part(first_call, 0.5), part(second_call, 0.5), part(second_call, 0.9), part(both, 0.5)};
  if (auto done = group->all_reduce(std::span<double>(times), {.op = unisono::ReduceOp::max}); !done) return 1;
  if (group->rank() == 0)
    fmt::print("first call {:.0f} us, second {:.0f} us (p90 {:.0f}), both done after {:.0f} us\n", times[0], times[1], times[2],
               times[3]);
  return 0;
}
