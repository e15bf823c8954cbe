// DropCompute with failures in the middle of a step: errors while computing and reducing, ranks that are one step apart,
// checkpoints of any step.
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

TEST(DropComputeFailure, a_checkpoint_of_a_rank_whose_shard_is_through_can_be_read) {
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

TEST(DropComputeFailure, a_checkpoint_of_one_rank_goes_on_with_two_and_the_other_way_round) {
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

TEST(DropComputeFailure, checkpoints_of_different_steps_are_found_out) {
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
    EXPECT_NE(step.status().message().find("config_mismatch"), std::string::npos) << step.status().to_string();
    EXPECT_FALSE(worker.step().ok()) << "still different";
  });
}

TEST(DropComputeFailure, a_group_that_breaks_while_times_are_told_records_on_and_drops) {
  std::atomic<uint32_t> survivors{0};
  in_group(3, [&](Group& group) {
    const uint32_t was = group.rank();
    Worker worker(group, 12, [was](uint32_t, uint64_t step, uint32_t m) { return with_stalls(was, step, m); });
    ASSERT_TRUE(worker.make("auto:warmup=1,calibration=20,max_drop=0.5").ok());
    worker.run(21);
    if (was == 1) return;  // this rank leaves
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

// Rank 1 does not learn that a step ended, although its contribution is in the averages.
TEST(DropComputeFailure, a_rank_that_was_a_step_behind_goes_on_at_the_right_place_of_its_shard) {
  for (const uint64_t shard : {10u, 4u}) {  // 4: the step that it misses ends the epoch
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

TEST(DropComputeFailure, what_was_computed_before_an_error_is_not_in_the_step_that_is_tried_again) {
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

// The other ranks have the averages of a step that failed here; only together can they continue.
TEST(DropComputeFailure, a_step_that_others_may_have_done_is_not_tried_again_before_all_resume) {
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

// The counts that are reduced together with the gradients must stay valid until that is done.
TEST(DropComputeFailure, does_not_end_before_its_counts_are_through) {
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

TEST(DropComputeFailure, a_replica_goes_on_with_a_new_group) {
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

// With a lag, the first process knows the step's last micro-batch before it runs; the other processes' clocks do not matter.
TEST(DropComputeFailure, only_the_first_of_a_replica_foresees_the_last_micro_batch_by_the_time) {
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

// The step's time begins at the previous all-reduce, so the time between is counted once.
TEST(DropComputeFailure, steps_of_the_rule_at_take_as_long_as_they_take) {
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
