// Check 24 of docs/design/methods/drop_compute.md, in virtual time: a group of 8 ranks, with latencies by model L. The library
// measures, searches, drops and reports as in production; only the clocks are simulated. bench/drop_compute does the same in
// real time.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <mutex>

#include "base/concat.h"
#include "lab/drop_compute/delay_model.h"
#include "training/drop_compute/drop_compute_test_support.h"

namespace unisono::sim {
namespace {

using test::ms;
using test::Worker;
using unisono::test::in_group;

constexpr uint32_t world = 8, micro_batches = 12;
// numbers of steps: 5 for warm-up and 44 for recording, then the measured steps
constexpr uint64_t before = 49, measured = 300;

// Returns the report of the measured steps. Expects that all ranks have the same report, and that it agrees with the clocks and
// with counted micro-batches.
DropReport report_of(uint64_t seed, const std::string& options) {
  const auto model = *DelayModel::parse("L:mu=0.002");
  const auto latency = [&](uint32_t rank, uint64_t step, uint32_t micro_batch) {
    auto random = random_of(seed, step, rank, micro_batch);
    return std::llround(model.latency(random, rank) * 1e9);
  };
  std::mutex mutex;
  DropReport report;
  in_group(world, [&](Group& group) {
    Worker worker(group, micro_batches, latency);
    worker.parameters.resize(1);
    worker.other = ms;
    ASSERT_TRUE(worker.make(options).ok());
    worker.run(before);
    const auto began = worker.now;
    uint64_t computed = 0;
    for (uint64_t i = 0; i < measured; ++i) computed += worker.run(1).computed;
    const double seconds = static_cast<double>(worker.now - began) * 1e-9;
    ASSERT_TRUE(group.all_reduce(std::span(&computed, 1)).ok());
    ASSERT_TRUE(worker.drop->begin_step().ok());  // this call finishes the report of the window
    const auto& mine = worker.drop->report();
    EXPECT_EQ(mine.first_step, before + 1);
    EXPECT_EQ(mine.steps, measured);
    EXPECT_NEAR(mine.per_second, static_cast<double>(computed) / seconds, 1e-6 * mine.per_second);
    EXPECT_NEAR(mine.drop, 1 - static_cast<double>(computed) / (measured * world * micro_batches), 1e-12);
    const std::lock_guard lock(mutex);
    if (report.steps > 0) {
      EXPECT_EQ(mine.to_string(), report.to_string());
    }
    report = mine;
  });
  return report;
}

TEST(DropComputeGroup, check_24_gains_what_it_predicts_drops_no_more_than_12_percent_and_evens_out_steps) {
  for (const uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE(concat("seed ", seed));
    const auto without = report_of(seed, "off:warmup=49,window=300"), with = report_of(seed, "auto:window=300");
    EXPECT_EQ(without.drop, 0);
    EXPECT_EQ(with.state, "dropping");
    EXPECT_EQ(with.rule, "after");
    EXPECT_GT(with.drop, 0);
    EXPECT_LE(with.drop, 0.12);
    const double gain = with.per_second / without.per_second, evened = without.compute_deviation / with.compute_deviation;
    std::printf(
        "    seed %llu: threshold %.4g ms, dropped %.2f %% (predicted %.2f), gain %.4f (predicted %.4f), deviation %.2f to "
        "%.2f ms: %.2f times less\n",
        static_cast<unsigned long long>(seed), with.threshold * 1e3, 100 * with.drop, 100 * with.predicted_drop, gain,
        with.predicted_total, without.compute_deviation * 1e3, with.compute_deviation * 1e3, evened);
    EXPECT_GT(gain, 1);
    EXPECT_NEAR(gain, with.predicted_total, 0.05 * with.predicted_total);
    EXPECT_GE(evened, 1.5);
  }
}

}  // namespace
}  // namespace unisono::sim
