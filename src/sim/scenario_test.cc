// Whole runs in virtual time: every seed is another cluster, program and set of faults.
#include "sim/scenario.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace unisono::sim {
namespace {

std::string all(const std::vector<std::string>& lines) {
  std::string text;
  for (const auto& line : lines) {
    text += "  " + line.substr(0, 600) + "\n";
    if (text.size() > 3000) break;
  }
  return text;
}

void expect_passed(const ScenarioSettings& settings, uint64_t first, uint64_t last) {
  for (auto seed = first; seed < last; ++seed) {
    const auto outcome = run_scenario(settings, seed);
    EXPECT_TRUE(outcome.problems.empty()) << "seed " << seed << " (" << outcome.plan << "):\n" << all(outcome.problems);
  }
}

TEST(Scenario, all_reduce_without_faults_succeeds_with_every_schedule) {
  for (const auto schedule : {ScheduleKind::automatic, ScheduleKind::ring, ScheduleKind::two_step, ScheduleKind::halving_doubling, ScheduleKind::hierarchical, ScheduleKind::one_shot}) {
    for (const uint32_t peers : {1u, 2u, 3u, 7u, 16u}) {
      expect_passed({.kind = ScenarioKind::all_reduce, .peers = peers, .faults = FaultProfile::none, .bytes = 10'000, .order = Order::any, .schedule = schedule, .slice_bytes = 512, .ranks_per_host = 2}, 0, 2);
    }
  }
}

uint64_t from_environment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

TEST(Scenario, debug) {
  ScenarioSettings s;
  s.kind = static_cast<ScenarioKind>(from_environment("SIM_KIND", 1));
  s.faults = static_cast<FaultProfile>(from_environment("SIM_FAULTS", 0));
  s.peers = static_cast<uint32_t>(from_environment("SIM_PEERS", 0));
  s.bytes = from_environment("SIM_BYTES", 65536);
  s.schedule = static_cast<ScheduleKind>(from_environment("SIM_SCHEDULE", 0));
  if (s.schedule != ScheduleKind::automatic) s.order = Order::any;
  const auto first = from_environment("SIM_FIRST", 0), last = from_environment("SIM_LAST", 1);
  std::string trace;
  std::map<Code, uint64_t> errors;
  uint64_t ok = 0, frames = 0, bad = 0;
  for (auto seed = first; seed < last && bad < 5; ++seed) {
    const auto o = run_scenario(s, seed, std::getenv("SIM_TRACE") ? &trace : nullptr);
    ok += o.operations_ok; frames += o.frames;
    for (auto [c, n] : o.errors) errors[c] += n;
    if (!o.problems.empty()) ++bad, printf("seed %lu (%s):\n%s", seed, o.plan.c_str(), all(o.problems).c_str());
  }
  if (!trace.empty()) puts(trace.c_str());
  printf("ok %lu frames %lu", ok, frames);
  for (auto [c, n] : errors) printf(" %s %lu", name(c), n);
  puts("");
}

}  // namespace
}  // namespace unisono::sim
