// Check 19 of docs/design/methods/drop_compute.md: all ranks start the same collectives, whatever each rank drops. This holds
// for the program's group and for DropCompute's sub-group.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <set>

#include "base/concat.h"
#include "base/hash.h"
#include "base/random.h"
#include "training/drop_compute/drop_compute_test_support.h"

namespace unisono {
namespace {

using test::in_group;
using test::ms;
using test::Worker;

// Returns the number of calls and the total bytes of each collective. The test need not check the order: the engine matches the
// n-th calls of all ranks, and refuses them if they differ.
std::string calls_of(const Counters& counters) {
  std::string text = std::to_string(counters.begun);
  for (const auto& each : counters.collectives) text += concat(" ", each.collective, " ", each.operations, " ", each.bytes);
  return text;
}

// Checks that the text is equal on all ranks.
void expect_same(Group& group, const std::string& mine) {
  uint64_t largest = hash_of(std::as_bytes(std::span(mine))), least = largest;
  const uint64_t own = largest;
  ASSERT_TRUE(group.all_reduce(std::span(&largest, 1), {.op = ReduceOp::max}).ok());
  ASSERT_TRUE(group.all_reduce(std::span(&least, 1), {.op = ReduceOp::min}).ok());
  EXPECT_TRUE(largest == own && least == own) << mine;
}

// Random stalls and thresholds. Windows and recordings end every few steps.
TEST(DropComputeCalls, are_equal_on_all_ranks_whatever_they_drop) {
  const std::string shared = ",warmup=2,calibration=5,min_calibration=4,window=7",
                    chosen = "auto:max_drop=0.6,min_gain=0,recalibrate=11" + shared;
  const auto fixed = [&](const std::string& options) { return "0.006:" + options + shared; };
  for (const auto& options :
       {fixed("rule=after"), fixed("rule=after,lag=1,normalize=computed"), fixed("rule=before,min_computed=0"),
        fixed("rule=before,tail=discard"), chosen, chosen + ",rule=before"}) {
    for (const uint64_t shard : {0u, 31u}) {
      SCOPED_TRACE(concat(options, ", shard ", shard));
      std::atomic<uint64_t> dropped{0};
      Options hurried;
      hurried.timeout = Milliseconds(30'000);  // so that a rank that waits for a missing call fails soon
      in_group(
          8,
          [&](Group& group) {
            Worker worker(group, 5, [](uint32_t rank, uint64_t step, uint32_t m) {
              Random random(mix64(step) ^ mix64(100 * rank + m));
              return static_cast<int64_t>(random.below(random.below(12) == 0 ? 8 * ms : ms)) + ms / 2;
            });
            ASSERT_TRUE(worker.make(options, shard == 0 ? 0 : shard + group.rank()).ok());
            for (int i = 0; i < 60; ++i) {
              const auto step = worker.step();
              ASSERT_TRUE(step.ok()) << step.status().to_string();
              dropped += step->planned - step->computed;
              ASSERT_NO_FATAL_FAILURE(
                  expect_same(group, calls_of(group.counters()) + ", own: " + calls_of(worker.drop->counters())));
            }
          },
          hurried);
      EXPECT_GT(dropped, 50u);
      if (HasFailure()) return;
    }
  }
}

// Uses real time, so the machine decides which ranks are late.
TEST(DropComputeCalls, are_equal_on_all_ranks_over_tcp_with_each_rule) {
  Options tcp;
  tcp.transport = "tcp";
  for (const std::string rule : {"after", "before", "at"}) {
    SCOPED_TRACE(rule);
    in_group(
        8,
        [&](Group& group) {
          auto options = *DropOptions::parse("0.0003:warmup=2,calibration=3,min_calibration=3,window=4,rule=" + rule);
          auto made = internal::Dropper::make(group, 5, options, {});
          ASSERT_TRUE(made.ok()) << made.status().to_string();
          auto& drop = **made;
          std::vector<float> gradients(300);
          const DropWork work{.compute =
                                  [&](uint64_t position, std::span<float> out) {
                                    Random random(mix64(position) ^ group.rank());
                                    const auto until = std::chrono::steady_clock::now() +
                                                       std::chrono::microseconds(random.below(random.below(8) == 0 ? 500 : 60));
                                    while (std::chrono::steady_clock::now() < until) continue;
                                    out[0] += 1;
                                    return Status();
                                  },
                              .reduce = {},
                              .apply = {}};
          for (int i = 0; i < 34; ++i) {
            const auto step = drop.run(gradients, work);
            ASSERT_TRUE(step.ok()) << step.status().to_string();
            ASSERT_NO_FATAL_FAILURE(expect_same(group, calls_of(group.counters()) + ", own: " + calls_of(drop.counters())));
          }
          // The program called one all-reduce in each of the 34 steps. expect_same() called two per step.
          EXPECT_EQ(group.counters().begun, 34u * 3) << calls_of(group.counters());
          ASSERT_TRUE(drop.drain(work).ok());
        },
        tcp);
  }
}

}  // namespace
}  // namespace unisono
