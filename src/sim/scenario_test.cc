// Whole runs in virtual time. Every seed gives another cluster, program and set of faults. UNISONO_TEST_SEEDS raises the number
// of seeds.
#include "sim/scenario.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "sim/settings_text.h"

namespace unisono::sim {
namespace {

uint64_t seed_count(uint64_t otherwise) {
  const char* text = std::getenv("UNISONO_TEST_SEEDS");
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

std::string all(const std::vector<std::string>& lines) {
  std::string text;
  for (const auto& line : lines) {
    if (text.size() < 3000) text += "  " + line + "\n";
  }
  return text;
}

void expect_passed(const ScenarioSettings& settings, uint64_t seeds) {
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    const auto outcome = run_scenario(settings, seed);
    EXPECT_TRUE(outcome.problems.empty()) << outcome.plan << "\n"
                                          << all(outcome.problems) << "again: unisono simulate "
                                          << to_text({settings, {seed, seed}});
  }
}

constexpr ScheduleKind all_reduce_kinds[] = {ScheduleKind::automatic,    ScheduleKind::ring,
                                             ScheduleKind::two_step,     ScheduleKind::halving_doubling,
                                             ScheduleKind::hierarchical, ScheduleKind::one_shot};

TEST(Scenario, all_reduce_without_faults_succeeds_with_every_schedule) {
  for (const auto schedule : all_reduce_kinds) {
    for (const uint32_t peers : {1u, 2u, 3u, 7u, 16u}) {
      expect_passed({.kind = ScenarioKind::all_reduce,
                     .peers = peers,
                     .faults = FaultProfile::none,
                     .bytes = 10'000,
                     .order = Order::any,
                     .schedule = schedule,
                     .slice_bytes = 512,
                     .ranks_per_host = 2},
                    2);
    }
  }
}

TEST(Scenario, all_reduce_under_any_fault_is_right_or_names_a_rank_to_blame) {
  for (const auto schedule : all_reduce_kinds)
    expect_passed({.kind = ScenarioKind::all_reduce,
                   .faults = FaultProfile::mixed,
                   .bytes = 20'000,
                   .order = Order::any,
                   .schedule = schedule},
                  seed_count(25));
}

// Expensive messages make the library relay values. A rank that itself waits for relayed values must not be blamed as late.
TEST(Scenario, relayed_sums_are_right_or_name_a_rank_to_blame) {
  for (const auto faults : {FaultProfile::none, FaultProfile::stop, FaultProfile::kill, FaultProfile::mixed}) {
    for (const uint32_t peers : {7u, 9u}) {
      const ScenarioSettings settings{.kind = ScenarioKind::all_reduce,
                                      .peers = peers,
                                      .faults = faults,
                                      .bytes = 2000,
                                      .order = Order::in_rank_order,
                                      .message_us = 100};
      EXPECT_EQ(run_scenario(settings, 0).schedule, "one_shot_relayed");
      expect_passed(settings, seed_count(25));
      expect_passed({.kind = ScenarioKind::random, .peers = peers, .faults = faults, .message_us = 100}, seed_count(25));
    }
  }
}

// In large runs, sender and receiver share memory, and processes poll less often. This test covers that. Runs with 1024 peers
// are started from the command line only.
TEST(Scenario, a_large_all_reduce_succeeds_with_schedules_for_large_tensors) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr uint32_t peers = 72;
#else
  constexpr uint32_t peers = 256;
#endif
  for (const auto schedule : {ScheduleKind::two_step, ScheduleKind::ring, ScheduleKind::halving_doubling}) {
    expect_passed({.kind = ScenarioKind::all_reduce,
                   .peers = peers,
                   .faults = FaultProfile::none,
                   .bytes = 1u << 20,
                   .order = Order::any,
                   .schedule = schedule},
                  1);
  }
}

// From 9 peers on, sender and receiver share memory at this size. The run ends with a check in a small group, which must not
// use one_shot with shared memory.
TEST(Scenario, a_medium_all_reduce_succeeds) {
  for (const uint32_t peers : {9u, 16u, 40u}) {
    expect_passed({.kind = ScenarioKind::all_reduce, .peers = peers, .faults = FaultProfile::none, .bytes = 1u << 20}, 2);
  }
}

class Profiles : public testing::TestWithParam<FaultProfile> {};

TEST_P(Profiles, random_programs_are_right_or_name_a_rank_to_blame) {
  expect_passed({.kind = ScenarioKind::random, .faults = GetParam()}, seed_count(60));
}

// In these profiles no process fails, so only the wrong process is to blame.
TEST(Scenario, wrong_programs_name_the_ranks_that_differ_and_never_hang) {
  for (const auto faults : {FaultProfile::none, FaultProfile::light})
    expect_passed({.kind = ScenarioKind::wrong, .faults = faults}, seed_count(100));
}

TEST_P(Profiles, a_group_that_loses_members_re_forms_and_continues) {
  expect_passed({.kind = ScenarioKind::reform, .faults = GetParam()}, seed_count(30));
}

INSTANTIATE_TEST_SUITE_P(All, Profiles,
                         testing::Values(FaultProfile::none, FaultProfile::light, FaultProfile::heavy, FaultProfile::kill,
                                         FaultProfile::stop, FaultProfile::partition, FaultProfile::mixed, FaultProfile::links),
                         [](const auto& instance) { return std::string(name(instance.param)); });

TEST(Scenario, equal_seeds_give_equal_traces) {
  for (const auto kind : {ScenarioKind::all_reduce, ScenarioKind::random, ScenarioKind::reform}) {
    for (uint64_t seed = 0; seed < 5; ++seed) {
      const ScenarioSettings settings{.kind = kind, .faults = FaultProfile::mixed, .bytes = 3000};
      std::string first, second;
      const auto a = run_scenario(settings, seed, &first), b = run_scenario(settings, seed, &second);
      EXPECT_EQ(a.trace_hash, b.trace_hash) << "seed " << seed;
      EXPECT_EQ(first, second) << "seed " << seed;
      EXPECT_NE(first.find(" send "), std::string::npos);
      EXPECT_NE(a.trace_hash, run_scenario(settings, seed + 1000).trace_hash);
      EXPECT_EQ(a.trace_hash, run_scenario(settings, seed).trace_hash) << "text or none, the hash is the same";
    }
  }
}

struct Injected {
  const char* what;
  uint64_t ScenarioSettings::*setting;
  uint64_t NetworkCounters::*count;
};

// Without this function, test names would contain addresses, which differ between runs.
void PrintTo(const Injected& injected, std::ostream* out) { *out << injected.what; }

class NthCall : public testing::TestWithParam<Injected> {};

TEST_P(NthCall, the_nth_call_may_fail_in_an_all_reduce_of_four) {
  for (const auto schedule :
       {ScheduleKind::two_step, ScheduleKind::ring, ScheduleKind::halving_doubling, ScheduleKind::one_shot}) {
    ScenarioSettings settings{.kind = ScenarioKind::all_reduce,
                              .peers = 4,
                              .faults = FaultProfile::none,
                              .bytes = 2000,
                              .order = Order::any,
                              .schedule = schedule,
                              .slice_bytes = 256};
    // odd seeds give the links slots, and then no credit is requested
    const uint64_t seed = GetParam().count == &NetworkCounters::credits ? 2 : 1;
    uint64_t n = 1;
    for (;; ++n) {
      settings.*GetParam().setting = n;
      const auto outcome = run_scenario(settings, seed);
      ASSERT_TRUE(outcome.problems.empty())
          << all(outcome.problems) << "again: unisono simulate " << to_text({settings, {seed, seed}});
      if (outcome.network.*GetParam().count < n) break;
    }
    EXPECT_GT(n, 5u) << "nothing was injected";
  }
}

INSTANTIATE_TEST_SUITE_P(All, NthCall,
                         testing::Values(Injected{"send", &ScenarioSettings::fail_send, &NetworkCounters::sends},
                                         Injected{"receive", &ScenarioSettings::fail_receive, &NetworkCounters::receives},
                                         Injected{"credit", &ScenarioSettings::fail_credit, &NetworkCounters::credits},
                                         Injected{"acquire", &ScenarioSettings::fail_acquire, &NetworkCounters::acquires}),
                         [](const auto& instance) { return std::string(instance.param.what); });

}  // namespace
}  // namespace unisono::sim
