// DropCompute with random options and times and simulated clocks: invariants that must hold whatever ranks drop.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "base/concat.h"
#include "base/random.h"
#include "training/drop_compute/drop_compute_test_support.h"

namespace unisono {
namespace {

using test::in_group;
using test::ms;
using test::Worker;

uint64_t some_seed() { return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count()) & 0xFFFFFF; }

// Random options, equal on all ranks.
struct Drawn {
  uint32_t micro_batches = 1, lag = 0;
  bool before = false, automatic = false;
  int64_t threshold = ms, quiet = 0;  // quiet: number of steps at the start without drops
  std::string options;
};
Drawn drawn(Random& shared, bool with_counts) {
  Drawn drawn{.micro_batches = 2 + static_cast<uint32_t>(shared.below(5)),
              .before = shared.below(2) == 0,
              .automatic = shared.below(2) == 0,
              .options = {}};
  drawn.threshold = static_cast<int64_t>((1 + shared.below(2 * drawn.micro_batches)) * ms);
  drawn.lag = drawn.before ? 0 : static_cast<uint32_t>(shared.below(2));
  const auto warmup = shared.below(4), calibration = 2 + shared.below(8);
  drawn.quiet = static_cast<int64_t>(warmup + (drawn.automatic || drawn.before ? calibration : 0));
  drawn.options =
      concat(drawn.automatic ? "auto" : std::to_string(static_cast<double>(drawn.threshold) * 1e-9), ":warmup=", warmup,
             ",calibration=", calibration, ",min_calibration=2,max_drop=0.6,rule=", drawn.before ? "before" : "after",
             ",lag=", drawn.lag, ",window=", 1 + shared.below(12), with_counts ? ",normalize=computed" : "",
             shared.below(3) == 0 ? concat(",recalibrate=", 5 + shared.below(30)) : "");
  return drawn;
}

int64_t latency(uint64_t seed, uint32_t rank, uint64_t step, uint32_t micro_batch) {
  const auto dice = mix64(seed ^ mix64(step * 1000 + rank * 40 + micro_batch));
  return dice % 10 == 0 ? static_cast<int64_t>(1 + dice / 10 % 9) * ms : ms;
}

// Sanitizers make a step about thirty times slower.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int rounds = 3;
#else
constexpr int rounds = 25;
#endif

// Checks 19 and 20 of docs/design/methods/drop_compute.md: 10 000 steps, in four tests of 25 rounds of 100 steps.
class DropComputeQuarter : public ::testing::TestWithParam<uint64_t> {};
INSTANTIATE_TEST_SUITE_P(DropComputeRandom, DropComputeQuarter, ::testing::Range<uint64_t>(0, 4));

TEST_P(DropComputeQuarter, keeps_ranks_together_and_within_the_rules_bounds) {
  const uint64_t seed = some_seed() + GetParam() * rounds;
  SCOPED_TRACE(concat("seed ", seed));
  in_group(8, [seed](Group& group) {
    Random shared(seed);
    for (int round = 0; round < rounds; ++round) {
      const auto options = drawn(shared, round % 3 == 0);
      SCOPED_TRACE(concat(options.options, ", ", options.micro_batches, " micro-batches"));
      int64_t longest = 0, sum = 0;
      Worker worker(group, options.micro_batches, [&](uint32_t rank, uint64_t step, uint32_t micro_batch) {
        const auto takes = latency(seed + static_cast<uint64_t>(round), rank, step, micro_batch);
        longest = std::max(longest, takes), sum += takes;
        return takes;
      });
      ASSERT_TRUE(worker.make(options.options).ok());
      uint64_t position = 0;
      for (int64_t number = 1; number <= 100; ++number) {
        longest = sum = 0;
        const auto step = worker.step();
        ASSERT_TRUE(step.ok()) << step.status().to_string();
        ASSERT_EQ(worker.positions.size(), step->computed);
        for (size_t i = 0; i < worker.positions.size(); ++i) ASSERT_EQ(worker.positions[i], position + i);
        position += step->computed;
        EXPECT_GE(step->computed, 1u);
        if (number <= options.quiet) {
          EXPECT_EQ(step->computed, options.micro_batches);
        }
        if (!options.automatic && number > options.quiet) {
          EXPECT_LE(sum, options.threshold + (1 + options.lag) * longest);
        }
        auto most = worker.parameters;
        ASSERT_TRUE(group.all_reduce(std::span(most), {.op = ReduceOp::max}).ok());
        ASSERT_EQ(most, worker.parameters) << "step " << number;
      }
    }
  });
}

// Sometimes a rank misses the end of a step, and all ranks call resume().
TEST(DropComputeRandom, each_micro_batch_of_an_epoch_is_used_once_whatever_fails) {
  const uint64_t seed = some_seed();
  SCOPED_TRACE(concat("seed ", seed));
  in_group(3, [seed](Group& group) {
    Random shared(seed);
    const uint32_t rank = group.rank();
    for (int round = 0; round < 10; ++round) {
      const auto options = drawn(shared, false);
      const uint64_t shards[] = {1 + shared.below(40), 1 + shared.below(40), 1 + shared.below(40)};
      SCOPED_TRACE(concat(options.options, ", ", options.micro_batches, " micro-batches, shard ", shards[rank]));
      Worker worker(group, options.micro_batches, {});
      ASSERT_TRUE(worker.make(options.options, shards[rank]).ok());
      uint64_t next = 0, epoch_end = shards[rank];
      for (uint64_t step = 1; step <= 150; ++step) {
        const auto behind = shared.below(15) == 0 ? shared.below(3) : 3;  // the rank that misses the end of the step; 3: none
        ASSERT_TRUE(worker.drop->begin_step().ok());
        while (worker.drop->next()) {
          ASSERT_EQ(worker.drop->position(), next++) << "step " << step;
          ASSERT_LE(next, epoch_end) << "step " << step;
          worker.now += latency(seed, rank, step, static_cast<uint32_t>(next % options.micro_batches));
        }
        ASSERT_TRUE(group.all_reduce(std::span(&worker.now, 1), {.op = ReduceOp::max}).ok());
        worker.now += ms;
        uint64_t epoch_ended = 0;
        if (behind != rank) {
          const auto ended = worker.drop->end_step();
          ASSERT_TRUE(ended.ok()) << ended.status().to_string();
          EXPECT_EQ(ended->step, step);
          epoch_ended = ended->epoch_ended ? 1 : 0;
        }
        ASSERT_TRUE(group.all_reduce(std::span(&epoch_ended, 1), {.op = ReduceOp::max}).ok());
        if (behind < 3) {
          ASSERT_TRUE(group.reform().ok());
          ASSERT_EQ(group.world_size(), 3u);
          const auto resumed = worker.drop->resume(group);
          ASSERT_TRUE(resumed.ok()) << resumed.to_string();
        }
        uint64_t through = next == epoch_end ? 1 : 0;
        ASSERT_TRUE(group.all_reduce(std::span(&through, 1)).ok());
        ASSERT_EQ(epoch_ended != 0, through == 3) << "step " << step;
        if (epoch_ended != 0) epoch_end += shards[rank];
      }
    }
  });
}

}  // namespace
}  // namespace unisono
