// Relayed one-shot sums, in which ranks forward values of other ranks: the results must have the same bits as without relaying.
#include <gtest/gtest.h>

#include <cstring>

#include "base/random.h"
#include "engine/test_cluster.h"

namespace unisono {
namespace {

constexpr auto relayed = "one_shot_relayed";

// Makes a cluster in which messages are expensive. Relaying sends fewer messages, so it is faster there.
std::unique_ptr<TestCluster> cluster_of(uint32_t world, const Tuning& tuning = {}) {
  auto cluster = std::make_unique<TestCluster>(world, FaultPlan{}, EngineLimits{}, 1);
  auto between = network_tcp_profile(2);
  between.per_batch_cpu_us = 100;
  for (Rank r = 0; r < world; ++r)
    cluster->engine(r).set_topology({.inside = shared_memory_profile(2), .between = between, .tuning = tuning});
  return cluster;
}

using Bytes = std::vector<std::byte>;

// Values whose sum depends on the order of additions, so that a wrong order changes the bits.
Bytes values_of(Rank rank, DType dtype, size_t count) {
  Random random(100 + rank);
  std::vector<float> values(count);
  for (auto& value : values)
    value =
        static_cast<float>(static_cast<double>(random.next() >> 11) * 0x1p-53 - 0.5) * (random.below(2) == 0 ? 1e-2f : 1e2f);
  Bytes bytes(count * element_bytes(dtype));
  if (count == 0) return bytes;
  if (dtype == DType::f32) std::memcpy(bytes.data(), values.data(), bytes.size());
  else kernels::convert(dtype, bytes.data(), DType::f32, reinterpret_cast<const std::byte*>(values.data()), count);
  return bytes;
}

struct RelayOutcome {
  std::vector<Bytes> results;
  Report report;
};

RelayOutcome sum(uint32_t world, DType dtype, size_t count, CallOptions options, bool in_place) {
  const auto cluster = cluster_of(world);
  std::vector<Bytes> inputs;
  RelayOutcome outcome;
  std::vector<std::shared_ptr<Completion>> done;
  for (Rank r = 0; r < world; ++r) {
    inputs.push_back(values_of(r, dtype, count));
    outcome.results.push_back(in_place ? inputs.back() : Bytes(inputs.back().size()));
  }
  for (Rank r = 0; r < world; ++r) {
    const auto& input = in_place ? outcome.results[r] : inputs[r];
    done.push_back(cluster->submit(r, all_reduce_call(cluster->caller(r), ConstTensor(input.data(), count, dtype),
                                                      Tensor(outcome.results[r].data(), count, dtype), options)));
  }
  cluster->finish(done);
  for (Rank r = 0; r < world; ++r) {
    EXPECT_TRUE(done[r]->status.ok()) << done[r]->status.to_string();
    EXPECT_EQ(cluster->engine(r).held_bytes(), 0u);
    EXPECT_TRUE(in_place || inputs[r] == values_of(r, dtype, count)) << "an input was written to";
  }
  outcome.report = done[0]->report;
  return outcome;
}

TEST(EngineRelay, relayed_sums_have_the_bits_of_direct_sums) {
  for (const uint32_t world : {7u, 8u, 13u, 16u}) {
    for (const auto dtype : {DType::f32, DType::bf16, DType::f16}) {
      for (const size_t count : {1, 7, 1000}) {
        for (const bool in_place : {true, false}) {
          for (const auto op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::max}) {
            const auto ours = sum(world, dtype, count, {.op = op, .order = Order::in_rank_order}, in_place);
            ASSERT_EQ(ours.report.schedule, relayed);
            const auto direct = sum(world, dtype, count,
                                    {.op = op, .order = Order::in_rank_order, .schedule = ScheduleKind::one_shot}, in_place);
            ASSERT_EQ(direct.report.schedule, "one_shot");
            EXPECT_EQ(ours.results, direct.results) << world << " ranks, " << count << " elements";
          }
        }
      }
    }
  }
}

TEST(EngineRelay, sends_one_message_per_round_and_reports_it) {
  const auto report = sum(13, DType::f32, 1000, {}, true).report;
  EXPECT_EQ(report.schedule, relayed);
  EXPECT_EQ(report.sent_messages, 4u);
  EXPECT_EQ(report.received_messages, 4u);
  EXPECT_EQ(report.sent_payload, 12u * 4000);
  EXPECT_EQ(report.sent_elements, 12u * 1000);
  EXPECT_EQ(report.sent_bytes, 12u * 4000 + 4 * sizeof(FrameHeader));
  EXPECT_EQ(report.contributors, 13u);
}

TEST(EngineRelay, sends_in_slices_if_requested) {
  const CallOptions sliced{.order = Order::in_rank_order, .slice_bytes = 1024};
  const auto ours = sum(9, DType::f32, 1000, sliced, false);
  EXPECT_EQ(ours.report.schedule, relayed);
  EXPECT_EQ(ours.report.sent_messages, 4u * 4);
  EXPECT_EQ(ours.results,
            sum(9, DType::f32, 1000, {.order = Order::in_rank_order, .schedule = ScheduleKind::one_shot}, false).results);
}

TEST(EngineRelay, is_chosen_for_few_bytes_and_many_ranks) {
  EXPECT_EQ(sum(3, DType::f32, 100, {}, true).report.schedule, "one_shot");
  EXPECT_NE(sum(9, DType::f32, 10'000, {}, true).report.schedule, relayed) << "360 kB at each";
  EXPECT_EQ(sum(9, DType::f32, 0, {}, true).report.schedule, "one_shot");
}

// Tuning files contain only schedules that callers can request, hence one_shot. The planner then chooses its relayed form.
TEST(EngineRelay, is_used_for_a_tuned_one_shot) {
  const auto schedule_of = [](ScheduleKind tuned) {
    TunedGroup group{.host_groups = {0, 1, 2, 3, 4, 5, 6, 7}, .calls = {{.kind = tuned}}};
    const auto cluster = cluster_of(8, {.groups = {group}});
    std::vector<std::vector<float>> data(8, std::vector<float>(10, 1));
    std::vector<std::shared_ptr<Completion>> done;
    for (Rank r = 0; r < 8; ++r)
      done.push_back(cluster->submit(
          r, all_reduce_call(cluster->caller(r), std::span<const float>(data[r]), std::span<float>(data[r]), {})));
    cluster->finish(done);
    return std::string(done[0]->report.schedule);
  };
  EXPECT_EQ(schedule_of(ScheduleKind::one_shot), relayed);
  EXPECT_EQ(schedule_of(ScheduleKind::two_step), "two_step");
}

// All eight ranks except `silent` begin a sum of 10 elements each. silent = 8: all eight ranks begin.
std::vector<std::shared_ptr<Completion>> all_but(Rank silent, TestCluster& cluster, std::vector<float>& data,
                                                 const CallOptions& options) {
  std::vector<std::shared_ptr<Completion>> done;
  for (Rank r = 0; r < 8; ++r) {
    const auto own = std::span(data).subspan(10 * r, 10);
    if (r != silent)
      done.push_back(cluster.submit(r, all_reduce_call(cluster.caller(r), std::span<const float>(own), own, options)));
  }
  return done;
}

TEST(EngineRelay, a_dead_rank_is_named_by_the_ranks_that_wait_for_it_and_reported_to_the_others) {
  const auto cluster = cluster_of(8);
  std::vector<float> data(8 * 10, 1);
  const auto done = all_but(5, *cluster, data, {});
  cluster->settle();
  cluster->hub().kill(5);
  cluster->settle();
  for (const auto& completion : done) {
    ASSERT_TRUE(completion->done);
    EXPECT_EQ(completion->status.code(), Code::peer_lost);
    EXPECT_NE(completion->status.message().find("rank 5 was lost"), std::string::npos) << completion->status.to_string();
  }
}

// The victim dies after every possible number of polls. So it sometimes dies between two rounds: after its frames of one round,
// before those of the next.
TEST(EngineRelay, after_a_death_between_rounds_each_rank_has_the_right_sum_or_names_the_dead_rank) {
  constexpr Rank victim = 5;
  bool some_failed = false, some_finished = false, both = false;
  for (size_t polls = 0;; ++polls) {
    const auto cluster = cluster_of(8);
    std::vector<float> data(8 * 10, 1);
    auto done = all_but(8, *cluster, data, {});
    for (size_t poll = 0; poll < polls; ++poll) cluster->engine(static_cast<Rank>(poll % 8)).poll(cluster->now());
    const bool over = std::all_of(done.begin(), done.end(), [](const auto& completion) { return completion->done; });
    cluster->hub().kill(victim);
    cluster->settle();
    size_t finished = 0;
    for (Rank r = 0; r < 8; ++r) {
      if (r == victim) continue;
      ASSERT_TRUE(done[r]->done) << "rank " << r << " waits, after " << polls << " polls";
      EXPECT_EQ(cluster->engine(r).held_bytes(), 0u);
      if (done[r]->status.ok()) {
        ++finished;
        for (size_t i = 0; i < 10; ++i) EXPECT_EQ(data[10 * r + i], 8) << "rank " << r << " after " << polls << " polls";
      } else {
        EXPECT_EQ(done[r]->status.code(), Code::peer_lost);
        EXPECT_NE(done[r]->status.message().find("rank 5 was lost"), std::string::npos) << done[r]->status.to_string();
      }
    }
    some_failed |= finished < 7;
    some_finished |= finished > 0;
    both |= finished > 0 && finished < 7;
    if (over) break;
  }
  EXPECT_TRUE(some_failed && some_finished && both) << "no death came between";
}

TEST(EngineRelay, a_silent_rank_is_to_blame_not_the_ranks_that_wait_for_it) {
  const auto cluster = cluster_of(8);
  std::vector<float> data(8 * 10, 1);
  const auto done = all_but(3, *cluster, data, {.timeout = Milliseconds(100)});
  cluster->finish(done);
  for (const auto& completion : done) {
    ASSERT_TRUE(completion->done);
    EXPECT_EQ(completion->status.code(), Code::late);
    EXPECT_NE(completion->status.message().find("rank 3"), std::string::npos) << completion->status.to_string();
  }
}

}  // namespace
}  // namespace unisono
