// DropCompute with failures in the middle of a step: errors while computing and reducing, and ranks that missed a step.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <vector>

#include "training/drop_compute/drop_compute_test_support.h"

namespace unisono {
namespace {

using test::constant_latency;
using test::in_group;
using test::ms;
using test::with_stalls;
using test::Worker;

TEST(DropComputeFailure, a_checkpoint_of_any_step_can_be_read) {
  in_group(2, [](Group& group) {
    Worker worker(group, 12, with_stalls);
    ASSERT_TRUE(worker.make("auto:warmup=2,calibration=4,min_calibration=4,max_drop=0.5,window=3").ok());
    for (int i = 0; i < 15; ++i) {
      worker.run(1);
      Worker other(group, 12, with_stalls);
      ASSERT_TRUE(other.make("auto:warmup=2,calibration=4,min_calibration=4,max_drop=0.5,window=3").ok());
      const auto loaded = other.drop->load(worker.drop->save());
      EXPECT_TRUE(loaded.ok()) << "step " << worker.steps << ": " << loaded.to_string();
      other.run(3);
    }
  });
}

TEST(DropComputeFailure, a_checkpoint_of_a_rank_with_a_finished_shard_can_be_read) {
  in_group(2, [](Group& group) {
    Worker worker(group, 4, constant_latency), other(group, 4, constant_latency);
    const uint64_t shard = group.rank() == 0 ? 4 : 12;
    ASSERT_TRUE(worker.make("off", shard).ok());
    ASSERT_TRUE(other.make("off", shard).ok());
    worker.run(1);
    const auto loaded = other.drop->load(worker.drop->save());
    ASSERT_TRUE(loaded.ok()) << loaded.to_string();
    EXPECT_EQ(other.run(1).planned, group.rank() == 0 ? 0u : 4u);
    EXPECT_TRUE(other.run(1).epoch_ended);
    Worker longer(group, 4, constant_latency);
    ASSERT_TRUE(longer.make("off", shard + 1).ok());
    EXPECT_EQ(longer.drop->load(worker.drop->save()).code(), Code::invalid);
  });
}

TEST(DropComputeFailure, a_checkpoint_of_one_rank_loads_on_two_and_vice_versa) {
  Bytes of_one, of_two;
  in_group(1, [&](Group& group) {
    Worker worker(group, 12, with_stalls);
    ASSERT_TRUE(worker.make("auto:max_drop=0.5").ok());
    worker.run(60);
    of_one = worker.drop->save();
  });
  in_group(2, [&](Group& group) {
    Worker worker(group, 12, with_stalls);
    ASSERT_TRUE(worker.make("auto:max_drop=0.5").ok());
    ASSERT_TRUE(worker.drop->load(of_one).ok());
    worker.run(150);
    EXPECT_EQ(worker.drop->report().state, "dropping") << worker.drop->report().to_string();
    if (group.rank() == 0) of_two = worker.drop->save();
  });
  in_group(1, [&](Group& group) {
    Worker worker(group, 12, with_stalls);
    ASSERT_TRUE(worker.make("auto:max_drop=0.5").ok());
    ASSERT_TRUE(worker.drop->load(of_two).ok());
    worker.run(150);
    EXPECT_EQ(worker.drop->report().state, "off") << worker.drop->report().to_string();
  });
}

TEST(DropComputeFailure, checkpoints_of_different_steps_are_refused) {
  in_group(2, [](Group& group) {
    Worker worker(group, 4, constant_latency);
    ASSERT_TRUE(worker.make("0.005").ok());
    worker.run(3);
    auto bytes = worker.drop->save();
    worker.run(1);
    if (group.rank() == 1) bytes = worker.drop->save();
    ASSERT_TRUE(worker.drop->load(bytes).ok());
    const auto step = worker.step();
    EXPECT_EQ(step.status().code(), Code::invalid);
    const auto text = step.status().message();
    EXPECT_TRUE(text.starts_with("config_mismatch: loaded checkpoints differ: rank ")) << text;
    for (const char* value : {"a checkpoint of step 3", "a checkpoint of step 4"})
      EXPECT_NE(text.find(value), std::string::npos) << text;
    EXPECT_FALSE(worker.step().ok()) << "still different";
  });
}

TEST(DropComputeFailure, a_group_that_breaks_during_the_exchange_of_times_records_on_and_drops) {
  std::atomic<uint32_t> survivors{0};
  in_group(3, [&](Group& group) {
    const uint32_t was = group.rank();
    Worker worker(group, 12, [was](uint32_t, uint64_t step, uint32_t m) { return with_stalls(was, step, m); });
    ASSERT_TRUE(worker.make("auto:warmup=1,calibration=20,max_drop=0.5").ok());
    worker.run(21);
    if (was == 1) return;  // rank 1 leaves the group
    ASSERT_FALSE(worker.drop->begin_step().ok());
    ASSERT_TRUE(group.reform().ok());
    const auto resumed = worker.drop->resume(group);
    ASSERT_TRUE(resumed.ok()) << resumed.to_string();
    worker.run(105);
    EXPECT_EQ(worker.drop->report().state, "dropping") << worker.drop->report().to_string();
    ++survivors;
  });
  EXPECT_EQ(survivors, 2u);
}

// Rank 1 misses end_step(): it is one step behind, although the averages contain its contribution.
TEST(DropComputeFailure, a_rank_one_step_behind_continues_at_the_right_shard_position) {
  for (const uint64_t shard : {10u, 4u}) {  // with a shard of 4, the missed step ends the epoch
    SCOPED_TRACE(shard);
    in_group(2, [&](Group& group) {
      Worker worker(group, 4, constant_latency);
      ASSERT_TRUE(worker.make("off", shard).ok());
      ASSERT_TRUE(worker.drop->begin_step().ok());
      while (worker.drop->next()) continue;
      if (group.rank() == 0) {
        EXPECT_EQ(worker.drop->end_step()->epoch_ended, shard == 4);
      }
      ASSERT_TRUE(group.barrier().ok());
      ASSERT_TRUE(group.reform().ok());
      const auto resumed = worker.drop->resume(group);
      ASSERT_TRUE(resumed.ok()) << resumed.to_string();
      std::vector<uint64_t> used;
      for (uint64_t step = 2; step <= 3; ++step) {
        const auto done = worker.step();
        ASSERT_TRUE(done.ok()) << done.status().to_string();
        EXPECT_EQ(done->step, step);
        EXPECT_EQ(done->epoch_ended, shard == 4 || step == 3);
        used.insert(used.end(), worker.positions.begin(), worker.positions.end());
      }
      EXPECT_EQ(used,
                shard == 4 ? (std::vector<uint64_t>{4, 5, 6, 7, 8, 9, 10, 11}) : (std::vector<uint64_t>{4, 5, 6, 7, 8, 9}));
    });
  }
}

TEST(DropComputeFailure, a_retried_step_excludes_gradients_computed_before_the_error) {
  for (const std::string options : {"off", "off:rule=at"}) {
    SCOPED_TRACE(options);
    in_group(1, [&](Group& group) {
      auto drop = DropCompute::make(group, 2, *DropOptions::parse(options));
      ASSERT_TRUE(drop.ok());
      std::vector<float> gradients(3), applied;
      int calls = 0;
      const DropWork work{
          .compute =
              [&](uint64_t, std::span<float> out) {
                for (float& value : out) value += 0.5f;
                return ++calls == 2 ? Status(Code::unavailable, "no data") : Status();
              },
          .reduce = {},
          .apply = [&](std::span<const float> averages, const DropStep&) { applied.assign(averages.begin(), averages.end()); }};
      EXPECT_FALSE(drop->run(gradients, work).ok());
      EXPECT_EQ(gradients, std::vector<float>(3));
      ASSERT_TRUE(drop->run(gradients, work).ok());
      EXPECT_EQ(applied, std::vector<float>(3, 1.0f));
    });
  }
}

// A step fails on rank 1, but rank 0 has its averages. Both ranks must call resume() before the next step.
TEST(DropComputeFailure, a_step_with_unknown_outcome_is_not_retried_before_resume) {
  for (const std::string options : {"off", "off:normalize=computed", "off:rule=at"}) {
    SCOPED_TRACE(options);
    in_group(2, [&](Group& group) {
      auto drop = DropCompute::make(group, 2, *DropOptions::parse(options));
      ASSERT_TRUE(drop.ok());
      std::vector<float> gradients(3);
      bool fails = group.rank() == 1;
      const DropWork work{.compute = [](uint64_t, std::span<float>) { return Status(); },
                          .reduce =
                              [&](std::span<float> out) {
                                auto reduced = group.all_reduce(out, {.op = ReduceOp::avg}).status();
                                return fails ? Status(Code::late, "no answer") : reduced;
                              },
                          .apply = {}};
      EXPECT_EQ(drop->run(gradients, work).ok(), !fails);
      if (fails) {
        EXPECT_NE(drop->run(gradients, work).status().message().find("resume()"), std::string::npos);
      }
      fails = false;
      ASSERT_TRUE(drop->resume(group).ok());
      EXPECT_EQ(drop->position(), 2u);
      const auto next = drop->run(gradients, work);
      ASSERT_TRUE(next.ok()) << next.status().to_string();
      EXPECT_EQ(next->step, 2u);
    });
  }
}

TEST(DropComputeFailure, at_refuses_replicas_of_several_processes) {
  in_group(2, [](Group& group) {
    const std::vector<uint32_t> mine{group.rank()};
    auto alone = group.split(mine);
    ASSERT_TRUE(alone.ok());
    EXPECT_EQ(DropCompute::make(*alone, 2, *DropOptions::parse("0.1:rule=at"), group).status().code(), Code::invalid);
  });
}

TEST(DropComputeFailure, at_refuses_gradients_of_another_size) {
  in_group(1, [](Group& group) {
    auto drop = DropCompute::make(group, 2, *DropOptions::parse("off:rule=at"));
    ASSERT_TRUE(drop.ok());
    const DropWork work{.compute = [](uint64_t, std::span<float>) { return Status(); }, .reduce = {}, .apply = {}};
    std::vector<float> gradients(300), fewer(200), more(400);
    ASSERT_TRUE(drop->run(gradients, work).ok());
    EXPECT_EQ(drop->run(fewer, work).status().code(), Code::invalid);
    EXPECT_EQ(drop->run(more, work).status().code(), Code::invalid);
    EXPECT_TRUE(drop->run(gradients, work).ok());
  });
}

// Gradients and counts are all-reduced in the background. The dropper's destructor must wait for the counts, because their
// all-reduce writes to the dropper's memory.
TEST(DropComputeFailure, destructor_waits_for_the_all_reduce_of_counts) {
  std::atomic<bool> failed{false}, joined{false};
  in_group(2, [&](Group& group) {
    {
      auto drop = DropCompute::make(group, 2, *DropOptions::parse("off:normalize=computed"));
      ASSERT_TRUE(drop.ok());
      std::vector<float> gradients(3);
      const bool fails = group.rank() == 0;
      const DropWork work{
          .compute = [](uint64_t, std::span<float>) { return Status(); },
          .reduce = [&](std::span<float>) { return fails ? Status(Code::unavailable, "no network") : Status(); },
          .apply = {}};
      if (!fails) {
        failed.wait(false);
        joined = true;
      }
      EXPECT_EQ(drop->run(gradients, work).ok(), !fails);
      if (fails) failed = true, failed.notify_all();
    }
    EXPECT_TRUE(joined);
  });
}

TEST(DropComputeFailure, a_replica_continues_with_a_new_group) {
  in_group(4, [](Group& group) {
    const uint32_t rank = group.rank(), first = rank & 2u;
    const std::vector<uint32_t> replica_ranks{first, first + 1}, even{0, 2}, odd{1, 3};
    auto replica = group.split(replica_ranks), data = group.split(rank % 2 == 0 ? even : odd);
    ASSERT_TRUE(replica.ok() && data.ok());
    Worker worker(*data, 4, [&](uint32_t, uint64_t, uint32_t) { return rank == 0 ? 3 * ms : rank == 3 ? 50 * ms : ms; });
    ASSERT_TRUE(worker.make("0.005:warmup=1", 0, {}, *replica).ok());
    EXPECT_EQ(worker.run(2).computed, rank < 2 ? 2u : 4u);
    ASSERT_TRUE(group.barrier().ok());
    ASSERT_TRUE(group.reform().ok());
    replica = group.split(replica_ranks), data = group.split(rank % 2 == 0 ? even : odd);
    ASSERT_TRUE(replica.ok() && data.ok());
    const auto resumed = worker.drop->resume(*data, *replica);
    ASSERT_TRUE(resumed.ok()) << resumed.to_string();
    EXPECT_EQ(worker.run(2).computed, rank < 2 ? 2u : 4u);
  });
}

// With a lag, only the first process of a replica may predict, from its clock, that the running micro-batch is the last. Rank 1
// is a second process with a slow clock: it must not predict this.
TEST(DropComputeFailure, only_the_first_process_of_a_replica_predicts_the_last_micro_batch) {
  in_group(2, [](Group& group) {
    const std::vector<uint32_t> both{0, 1}, mine{group.rank()};
    auto replica = group.split(both), alone = group.split(mine);
    ASSERT_TRUE(replica.ok() && alone.ok());
    const bool follows = group.rank() == 1;
    Worker worker(*alone, 4, [&](uint32_t, uint64_t, uint32_t) { return follows ? 50 * ms : ms; });
    worker.inside = [&] { EXPECT_FALSE(worker.drop->last()); };
    ASSERT_TRUE(worker.make("0.005:warmup=0,lag=1", 0, {}, *replica).ok());
    EXPECT_EQ(worker.run(1).computed, 4u);
  });
}

// With the rule `at`, a step begins at the end of the previous all-reduce, so the time of apply() is counted once. A step here
// takes 2 ms for micro-batches, 1 ms for the all-reduce and 5 ms for apply().
TEST(DropComputeFailure, durations_of_steps_with_rule_at_are_measured) {
  in_group(1, [](Group& group) {
    std::atomic<int64_t> now{1000 * ms};
    auto drop =
        internal::Dropper::make(group, 2, *DropOptions::parse("off:rule=at,warmup=0,window=3"), {}, [&] { return now.load(); });
    ASSERT_TRUE(drop.ok());
    const DropWork work{.compute = [&](uint64_t, std::span<float>) { return now += ms, Status(); },
                        .reduce = [&](std::span<float>) { return now += ms, Status(); },
                        .apply = [&](std::span<const float>, const DropStep&) { now += 5 * ms; }};
    std::vector<float> gradients(3);
    for (int step = 0; step < 7; ++step) ASSERT_TRUE((*drop)->run(gradients, work).ok());
    EXPECT_EQ((*drop)->total().steps, 6u);
    EXPECT_NEAR((*drop)->total().step_mean, 0.008, 1e-9);
  });
}

}  // namespace
}  // namespace unisono
