// DropCompute after a failed step, and with checkpoints at difficult times. Such times are between recording and search, and
// after a step that has ended on only one of two ranks.
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>

#include "training/drop_compute/drop_compute_test_support.h"
#include "unisono/drop_compute.h"

namespace unisono {
namespace {

using test::constant_latency;
using test::in_group;
using test::ms;
using test::Worker;

int64_t sometimes_slow(uint32_t rank, uint64_t step, uint32_t micro_batch) {
  return (7 * step + 3 * rank + micro_batch) % 23 == 0 ? 9 * ms : ms;
}

const std::string recording = "auto:warmup=2,calibration=10,min_calibration=10,max_drop=0.5";

TEST(DropComputeResume, searches_after_one_more_step_if_the_group_is_re_formed_before_ranks_exchanged_records) {
  in_group(3, [](Group& group) {
    Worker worker(group, 12, sometimes_slow);
    ASSERT_TRUE(worker.make(recording).ok());
    worker.run(12);
    ASSERT_EQ(worker.drop->total().state, "calibrating");
    ASSERT_TRUE(group.reform().ok());
    const auto resumed = worker.drop->resume(group);
    ASSERT_TRUE(resumed.ok()) << resumed.to_string();
    EXPECT_EQ(worker.step()->computed, 12u);
    EXPECT_EQ(worker.drop->total().state, "calibrating");
    ASSERT_TRUE(worker.step().ok());
    EXPECT_EQ(worker.drop->total().state, "dropping") << worker.drop->total().to_string();
  });
}

TEST(DropComputeResume, loads_a_checkpoint_of_the_last_recorded_step_and_records_again) {
  in_group(2, [](Group& group) {
    Worker worker(group, 12, sometimes_slow), other(group, 12, sometimes_slow);
    ASSERT_TRUE(worker.make(recording).ok());
    ASSERT_TRUE(other.make(recording).ok());
    worker.run(12);
    const auto loaded = other.drop->load(worker.drop->save());
    ASSERT_TRUE(loaded.ok()) << loaded.to_string();
    for (int i = 0; i < 12; ++i) ASSERT_EQ(other.step()->computed, 12u);
    EXPECT_EQ(other.drop->total().state, "calibrating");
    ASSERT_TRUE(other.step().ok());
    EXPECT_NE(other.drop->total().state, "calibrating") << other.drop->total().to_string();
    EXPECT_GT(other.drop->total().micro_batch, 0);
  });
}

TEST(DropComputeResume, reports_are_equal_on_all_ranks_after_a_join) {
  std::mutex mutex;
  std::vector<std::string> said;
  const auto say = [&](Worker& worker) {
    const std::lock_guard lock(mutex);
    said.push_back(worker.drop->report().to_string());
    EXPECT_EQ(worker.drop->report().steps, 0u);
    EXPECT_EQ(worker.drop->report().first_step, 6u);
    EXPECT_EQ(worker.drop->report().threshold, 0.0025);
  };
  in_group(
      2,
      [&](Group& group) {
        Worker worker(group, 4, constant_latency);
        ASSERT_TRUE(worker.make("0.0025:warmup=1,window=2").ok());
        worker.run(5);
        EXPECT_EQ(worker.drop->report().steps, 2u);
        while (group.world_size() < 3) ASSERT_TRUE(group.reform().ok());
        ASSERT_TRUE(worker.drop->resume(group).ok());
        say(worker);
      },
      {},
      [&](Group& group) {
        Worker worker(group, 4, constant_latency);
        ASSERT_TRUE(worker.make("0.0025:warmup=1,window=2").ok());
        say(worker);
      });
  ASSERT_EQ(said.size(), 3u);
  EXPECT_EQ(said[0], said[1]);
  EXPECT_EQ(said[0], said[2]);
}

// Rank 1 fails after the all-reduce, before end_step(). Rank 0 ends the step and uses the result. The step is in the middle of
// a shard, or at its end.
TEST(DropComputeResume, a_locally_failed_step_used_by_others_advances_the_shard) {
  for (const uint64_t steps_before : {1, 2}) {
    SCOPED_TRACE(steps_before);
    in_group(2, [&](Group& group) {
      auto now = [] { return int64_t{ms}; };
      auto options = *DropOptions::parse("off");
      options.shard = 10;
      auto drop = *internal::Dropper::make(group, 4, options, {}, now);
      const auto step = [&](bool fails) {
        uint32_t computed = 0;
        EXPECT_TRUE(drop->begin_step().ok());
        while (drop->next()) ++computed;
        if (!fails) {
          const auto ended = drop->end_step();
          EXPECT_TRUE(ended.ok()) << ended.status().to_string();
        }
        return computed;
      };
      for (uint64_t i = 0; i < steps_before; ++i) EXPECT_EQ(step(false), 4u);
      EXPECT_EQ(step(group.rank() == 1), steps_before == 1 ? 4u : 2u);
      ASSERT_TRUE(group.reform().ok());
      ASSERT_TRUE(drop->resume(group).ok());
      EXPECT_EQ(drop->position(), steps_before == 1 ? 8u : 10u);
      EXPECT_EQ(step(false), steps_before == 1 ? 2u : 4u);
      EXPECT_EQ(step(false), 4u);
    });
  }
}

TEST(DropComputeResume, clears_the_gradients_when_a_step_fails) {
  for (const std::string options : {"off", "1000:warmup=0,rule=at"}) {
    in_group(1, [&](Group& group) {
      auto drop = DropCompute::make(group, 2, *DropOptions::parse(options));
      ASSERT_TRUE(drop.ok());
      std::vector<float> gradients(3);
      const auto compute = [](uint64_t position, std::span<float> out) {
        return out[0] += 1, position == 1 ? Status(Code::unavailable, "no data") : Status();
      };
      const auto add = [](uint64_t, std::span<float> out) { return out[0] += 1, Status(); };
      EXPECT_FALSE(drop->run(gradients, {.compute = compute, .reduce = {}, .apply = {}}).ok());
      EXPECT_EQ(gradients, std::vector<float>(3)) << options;
      EXPECT_FALSE(drop->run(gradients, {.compute = add,
                                         .reduce = [](std::span<float>) { return Status(Code::unavailable, "no network"); },
                                         .apply = {}})
                       .ok());
      EXPECT_EQ(gradients, std::vector<float>(3)) << options;
    });
  }
}

}  // namespace
}  // namespace unisono
