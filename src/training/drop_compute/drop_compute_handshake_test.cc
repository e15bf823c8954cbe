// DropCompute's handshake between ranks: different options, checkpoints, re-formed groups, replicas of several processes, and
// collectives inside a micro-batch.
#include <gtest/gtest.h>

#include <atomic>

#include "training/drop_compute/drop_compute_test_support.h"

namespace unisono {
namespace {

using test::constant_latency;
using test::in_group;
using test::ms;
using test::with_stalls;
using test::Worker;

TEST(DropComputeHandshake, refuses_differing_options_and_allows_differing_shards) {
  in_group(2, [](Group& group) {
    Worker worker(group, 4, constant_latency);
    const auto made = worker.make(group.rank() == 0 ? "auto" : "auto:lag=1");
    EXPECT_EQ(made.code(), Code::invalid);
    EXPECT_TRUE(made.message().starts_with("config_mismatch: options of DropCompute differ: rank ")) << made.message();
    EXPECT_NE(made.message().find("lag=1"), std::string::npos) << made.message();
    EXPECT_TRUE(worker.make("auto", 10 + group.rank()).ok());
  });
}

TEST(DropComputeHandshake, reports_that_the_rule_at_needs_a_second_buffer) {
  in_group(2, [](Group& group) {
    Worker worker(group, 4, constant_latency);
    ASSERT_TRUE(worker.make("0.002:rule=at").ok());
    const auto step = worker.step();
    EXPECT_EQ(step.status().code(), Code::invalid);
    EXPECT_NE(step.status().message().find("rule_needs_second_buffer"), std::string::npos);
  });
}

TEST(DropComputeHandshake, reports_collectives_inside_a_micro_batch) {
  in_group(2, [](Group& group) {
    Worker worker(group, 3, constant_latency);
    worker.inside = [&] { EXPECT_TRUE(group.barrier().ok()); };
    ASSERT_TRUE(worker.make("auto").ok());
    const auto step = worker.step();
    EXPECT_EQ(step.status().code(), Code::invalid);
    EXPECT_NE(step.status().message().find("collective_inside_micro_batch"), std::string::npos) << step.status().to_string();
  });
}

TEST(DropComputeHandshake, continues_from_a_checkpoint_at_its_data_position_and_warms_up_again) {
  in_group(2, [](Group& group) {
    const auto latency = [](uint32_t rank, uint64_t, uint32_t) { return (1 + rank) * ms; };
    Worker worker(group, 4, latency), other(group, 4, latency);
    ASSERT_TRUE(worker.make("0.005:warmup=3").ok());
    ASSERT_TRUE(other.make("0.005:warmup=3").ok());
    worker.run(10);
    const auto bytes = worker.drop->save();
    EXPECT_EQ(worker.drop->position(), group.rank() == 0 ? 40u : 33u);
    ASSERT_TRUE(other.drop->load(bytes).ok());
    for (int i = 0; i < 3; ++i) {
      const auto step = other.step();
      EXPECT_EQ(step->step, 11u + static_cast<uint64_t>(i));
      EXPECT_EQ(step->computed, 4u);
    }
    EXPECT_EQ(other.step()->computed, group.rank() == 0 ? 4u : 3u);
    EXPECT_EQ(other.positions[0], group.rank() == 0 ? 52u : 45u);
  });
}

TEST(DropComputeHandshake, refuses_damaged_and_foreign_checkpoints_and_changes_nothing) {
  in_group(1, [](Group& group) {
    Worker worker(group, 4, constant_latency);
    ASSERT_TRUE(worker.make("0.005", 100).ok());
    worker.run(3);
    const auto good = worker.drop->save();
    for (size_t i = 0; i < good.size(); ++i) {
      auto bytes = good;
      bytes[i] ^= std::byte{1};
      EXPECT_FALSE(worker.drop->load(bytes).ok()) << i;
      EXPECT_EQ(worker.drop->load({good.data(), i}).code(), Code::corrupt) << i;
    }
    Worker other(group, 5, constant_latency);
    ASSERT_TRUE(other.make("0.005", 100).ok());
    EXPECT_EQ(other.drop->load(good).code(), Code::invalid);
    EXPECT_EQ(worker.drop->save(), good);
    ASSERT_TRUE(worker.drop->begin_step().ok());
    EXPECT_EQ(worker.drop->load(good).code(), Code::invalid);
  });
}

// Check 23 of docs/design/methods/drop_compute.md: recorded times are sent exactly, even if gradients use a lossy codec or
// delivery.
TEST(DropComputeHandshake, exchanges_times_without_a_lossy_codec) {
  for (const auto* transport : {"shm", "udp"}) {
    SCOPED_TRACE(transport);
    Options options;
    options.codec = "int4";
    options.transport = transport;
    constexpr int64_t long_time = (int64_t{1} << 53) - 1;
    in_group(
        2,
        [&](Group& group) {
          Worker worker(group, 2, [](uint32_t rank, uint64_t step, uint32_t m) {
            return rank == 0 && step == 2 && m == 1 ? long_time : 3 + rank;
          });
          if (options.transport == "udp") worker.averaging.delivery = Delivery::lossy;
          ASSERT_TRUE(worker.make("auto:warmup=1,calibration=2,min_calibration=2").ok());
          worker.other = 1;
          worker.run(3);
          ASSERT_TRUE(worker.drop->begin_step().ok());
          const auto trace = worker.drop->trace_of(2, 4, false);
          ASSERT_TRUE(trace.ok());
          ASSERT_EQ((*trace)->steps(), 2u);
          EXPECT_EQ((*trace)->ends, (std::vector<int64_t>{long_time, long_time + 3, 4, 8, 3, 6, 4, 8}));
          EXPECT_EQ((*trace)->walls, (std::vector<int64_t>{long_time + 4, long_time + 4, 9, 9}));
        },
        options);
  }
}

TEST(DropComputeHandshake, the_first_process_of_a_replica_decides) {
  in_group(4, [](Group& group) {
    // Ranks 0 and 1 form one replica, ranks 2 and 3 another. Gradients are averaged between 0 and 2, and between 1 and 3.
    const uint32_t rank = group.rank(), mate = rank ^ 1u, first = rank & 2u;
    const std::vector<uint32_t> replica_ranks{first, first + 1};
    auto replica = group.split(replica_ranks);
    const std::vector<uint32_t> even{0, 2}, odd{1, 3};
    auto data = group.split(rank % 2 == 0 ? even : odd);
    ASSERT_TRUE(replica.ok() && data.ok()) << mate;
    // Ranks 1 and 3 are the second processes of their replicas. Their clocks would lead to other decisions.
    Worker worker(*data, 4, [&](uint32_t, uint64_t, uint32_t) { return rank == 0 ? 3 * ms : rank == 3 ? 50 * ms : ms; });
    ASSERT_TRUE(worker.make("0.005:warmup=1", 0, {}, *replica).ok());
    EXPECT_EQ(worker.step()->computed, 4u);
    EXPECT_EQ(worker.step()->computed, rank < 2 ? 2u : 4u);
  });
}

TEST(DropComputeHandshake, keeps_the_threshold_and_updates_the_prediction_when_a_rank_is_lost) {
  std::atomic<uint32_t> survivors{0};
  in_group(4, [&](Group& group) {
    const uint32_t was = group.rank();
    Worker worker(group, 12, [was](uint32_t, uint64_t step, uint32_t m) { return with_stalls(was, step, m); });
    ASSERT_TRUE(worker.make("auto:max_drop=0.5").ok());
    worker.run(151);
    const auto before = worker.drop->report();
    ASSERT_EQ(before.state, "dropping");
    if (was == 1) return;  // rank 1 leaves the group
    const auto failed = worker.step();
    ASSERT_FALSE(failed.ok());
    ASSERT_TRUE(group.reform().ok());
    const auto resumed = worker.drop->resume(group);
    ASSERT_TRUE(resumed.ok()) << resumed.to_string();
    worker.run(101);
    const auto& after = worker.drop->report();
    EXPECT_EQ(after.threshold, before.threshold);
    EXPECT_NE(after.predicted_total, before.predicted_total);
    EXPECT_GT(after.predicted_total, 1);
    EXPECT_EQ(after.steps, 100u);
    worker.run(100);
    // Three ranks compute fewer micro-batches per second than four. This must not switch dropping off.
    EXPECT_EQ(after.state, "dropping") << after.to_string();
    ++survivors;
  });
  EXPECT_EQ(survivors, 3u);
}

TEST(DropComputeHandshake, a_joining_rank_drops_nothing_while_it_warms_up) {
  std::atomic<uint32_t> done{0};
  const auto latency = [](uint32_t, uint64_t, uint32_t) { return 2 * ms; };
  const auto continue_training = [&](Worker& worker, bool fresh) {
    for (uint32_t i = 0; i < 8; ++i) {
      const auto step = worker.step();
      ASSERT_TRUE(step.ok()) << step.status().to_string();
      EXPECT_EQ(step->step, 8u + i);
      EXPECT_EQ(step->computed, fresh && i < 5 ? 4u : 3u);
    }
    ++done;
  };
  in_group(
      2,
      [&](Group& group) {
        Worker worker(group, 4, latency);
        ASSERT_TRUE(worker.make("0.005").ok());
        worker.run(7);
        while (group.world_size() < 3) ASSERT_TRUE(group.reform().ok());
        const auto resumed = worker.drop->resume(group);
        ASSERT_TRUE(resumed.ok()) << resumed.to_string();
        ASSERT_NO_FATAL_FAILURE(continue_training(worker, false));
      },
      {},
      [&](Group& group) {
        Worker worker(group, 4, latency);
        const auto made = worker.make("0.005");
        ASSERT_TRUE(made.ok()) << made.to_string();
        ASSERT_NO_FATAL_FAILURE(continue_training(worker, true));
      });
  EXPECT_EQ(done, 3u);
}

TEST(DropComputeHandshake, extends_the_recording_if_a_rank_joins_meanwhile) {
  std::atomic<uint32_t> done{0};
  const auto continue_training = [&](Worker& worker, int recording) {
    for (int i = 0; i < recording; ++i) ASSERT_EQ(worker.step()->computed, 12u);
    worker.run(101);
    EXPECT_EQ(worker.drop->report().state, "dropping") << worker.drop->report().to_string();
    ++done;
  };
  in_group(
      2,
      [&](Group& group) {
        Worker worker(group, 12, with_stalls);
        ASSERT_TRUE(worker.make("auto:warmup=2,calibration=12,min_calibration=10,max_drop=0.5").ok());
        worker.run(8);
        while (group.world_size() < 3) ASSERT_TRUE(group.reform().ok());
        ASSERT_TRUE(worker.drop->resume(group).ok());
        // The old ranks record steps 9 to 14. The new rank warms up until step 10, so all ranks have recorded four steps.
        // Recording goes on for six steps, because the minimum is ten.
        ASSERT_NO_FATAL_FAILURE(continue_training(worker, 12));
      },
      {},
      [&](Group& group) {
        Worker worker(group, 12, with_stalls);
        worker.now = 5'000 * ms;
        ASSERT_TRUE(worker.make("auto:warmup=2,calibration=12,min_calibration=10,max_drop=0.5").ok());
        ASSERT_NO_FATAL_FAILURE(continue_training(worker, 12));
      });
  EXPECT_EQ(done, 3u);
}

}  // namespace
}  // namespace unisono
