// Tests the two halves of a lossy all-reduce, in which each rank keeps one shard. A range that arrives is stored at its
// position, and a missing range is reported. A needed range always arrives.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/random.h"
#include "sim/udp/lossy_cluster_test_support.h"

namespace unisono::sim {
namespace {

using Floats = std::vector<float>;

constexpr float old_value = -7;

Floats random_floats(uint32_t seed, size_t count) {
  Floats values(count);
  Random random(seed + 1);
  for (auto& value : values) value = static_cast<float>(random.below(2001)) / 1000.0f - 1.0f;
  return values;
}

// One shard and one replica of the whole tensor per rank.
struct Shards {
  Shards(LossyCluster& with, uint32_t ranks, size_t elements, const CallOptions& call = {})
      : cluster(with), options(call), whole(elements) {
    options.delivery = Delivery::lossy;
    for (Rank rank = 0; rank < ranks; ++rank) {
      layout = shard_layout_of(ranks, ConstTensor(std::span<const float>(whole)),
                               options.codec ? options.codec->reduce : StepCodec(), options.shard_unit, 1472)
                   .value();
      inputs.push_back(random_floats(rank, elements));
      shards.emplace_back(layout.count(rank), old_value);
      replicas.emplace_back(elements, old_value);
    }
  }
  std::vector<std::shared_ptr<Completion>> run(auto&& request) {
    std::vector<std::shared_ptr<Completion>> completions;
    for (Rank rank = 0; rank < shards.size(); ++rank) completions.push_back(cluster.submit(rank, request(rank)));
    cluster.finish(completions);
    return completions;
  }
  Result<OperationRequest> reduce_request(Rank rank) {
    auto call = options;
    call.op = ReduceOp::avg;
    return reduce_shards_call(cluster.caller(rank), ConstTensor(std::span<const float>(inputs[rank])),
                              Tensor(std::span(shards[rank])), call);
  }
  Result<OperationRequest> gather_request(Rank rank) {
    return gather_shards_call(cluster.caller(rank), ConstTensor(std::span<const float>(shards[rank])),
                              Tensor(std::span(replicas[rank])), options);
  }
  std::vector<std::shared_ptr<Completion>> reduce() {
    return run([&](Rank rank) { return reduce_request(rank); });
  }
  std::vector<std::shared_ptr<Completion>> gather() {
    return run([&](Rank rank) { return gather_request(rank); });
  }

  LossyCluster& cluster;
  CallOptions options;
  Floats whole;
  ShardLayout layout;
  std::vector<Floats> inputs, shards, replicas;
};

bool every_tenth(Rank from, Rank to, uint32_t number) { return mix64(from * 1'000'003u + to * 7'919u + number) % 10 == 0; }

TEST(LossyShards, without_loss_reduce_and_gather_equal_an_all_reduce) {
  for (const uint32_t ranks : {2u, 3u, 8u}) {
    for (const size_t elements : {size_t{113}, size_t{1'003}, size_t{50'003}}) {
      LossyCluster cluster({.ranks = ranks});
      Shards shards(cluster, ranks, elements);
      auto expected = shards.inputs;
      for (const auto& outcome : cluster.all_reduce(expected, {.op = ReduceOp::avg, .delivery = Delivery::lossy}))
        ASSERT_TRUE(outcome.ok());
      for (const auto& done : shards.reduce()) {
        ASSERT_TRUE(done->status.ok()) << done->status.to_string();
        EXPECT_TRUE(std::ranges::all_of(done->report.delivery->contributors, [&](auto count) { return count == ranks; }));
      }
      for (const auto& done : shards.gather()) ASSERT_TRUE(done->status.ok()) << done->status.to_string();
      for (Rank rank = 0; rank < ranks; ++rank) EXPECT_EQ(shards.replicas[rank], expected[0]) << rank;
    }
  }
}

// Checks the replica against the new values of the owners. Ranges that the report lists as missing must keep their old values.
void expect_stale_where_said(const Shards& shards, Rank rank, const DeliveryReport& report) {
  for (Rank owner = 0; owner < shards.shards.size(); ++owner) {
    const auto& missing = report.result.streams[owner].missing_ranges;
    EXPECT_EQ(missing.size(), report.result.streams[owner].missing);
    for (uint64_t i = 0; i < shards.layout.count(owner); ++i) {
      const bool stale = std::ranges::binary_search(missing, static_cast<uint32_t>(i / shards.layout.range_elements));
      const float expected = stale ? old_value : shards.shards[owner][i];
      ASSERT_EQ(shards.replicas[rank][shards.layout.begin(owner) + i], expected)
          << "rank " << rank << ", owner " << owner << ", element " << i;
    }
  }
}

TEST(LossyShards, missing_ranges_keep_old_values_and_are_reported) {
  LossyCluster cluster({.ranks = 4, .loses = every_tenth});
  Shards shards(cluster, 4, 60'000, {.lossy = {.loss_budget = 1}});
  for (int round = 0; round < 25; ++round) {  // until all deadlines are learnt
    shards.reduce();
    shards.gather();
  }
  for (auto& replica : shards.replicas) replica.assign(replica.size(), old_value);
  for (auto& shard : shards.shards) shard = random_floats(77, shard.size());
  uint64_t missing = 0;
  const auto done = shards.gather();
  for (Rank rank = 0; rank < 4; ++rank) {
    ASSERT_TRUE(done[rank]->status.ok()) << done[rank]->status.to_string();
    expect_stale_where_said(shards, rank, *done[rank]->report.delivery);
    missing += done[rank]->report.delivery->stale_ranges;
  }
  EXPECT_NEAR(static_cast<double>(missing), 0.1 * 4 * 3 * shards.layout.ranges(0), 40);
}

TEST(LossyShards, a_range_without_contributions_is_held_and_reported) {
  LossyCluster cluster({.ranks = 2, .loses = every_tenth});
  Shards shards(cluster, 2, 60'000, {.lossy = {.loss_budget = 1, .on_empty = OnEmpty::hold}});
  for (int round = 0; round < 25; ++round) shards.reduce();
  for (auto& shard : shards.shards) shard.assign(shard.size(), old_value);
  const auto done = shards.reduce();
  uint64_t held = 0;
  for (Rank rank = 0; rank < 2; ++rank) {
    const auto& report = *done[rank]->report.delivery;
    ASSERT_EQ(report.contributors.size(), shards.layout.ranges(rank));
    for (uint64_t i = 0; i < shards.shards[rank].size(); ++i) {
      const bool empty = report.contributors[i / shards.layout.range_elements] == 1;
      const float mean =
          (shards.inputs[0][shards.layout.begin(rank) + i] + shards.inputs[1][shards.layout.begin(rank) + i]) / 2;
      ASSERT_EQ(shards.shards[rank][i], empty ? old_value : mean);
    }
    held += report.empty_ranges;
  }
  EXPECT_GT(held, 5u);
}

TEST(LossyShards, only_needed_ranges_are_repaired) {
  LossyCluster cluster({.ranks = 3, .loses = [](Rank from, Rank to, uint32_t number) {
                          return mix64(from * 31u + to * 17u + number * 1'000'003ull) % 2 == 0;
                        }});
  Shards shards(cluster, 3, 60'000, {.lossy = {.loss_budget = 1, .loss_off = 1}});
  for (int round = 0; round < 25; ++round) shards.gather();
  const std::vector<std::vector<uint32_t>> needed{{0, 3, 55}, {1, 2, 5, 8, 13, 21}, {56}};
  shards.options.needed_ranges = &needed;
  const auto repairs = cluster.network().counts().repairs;
  for (const auto& done : shards.gather()) {
    ASSERT_TRUE(done->status.ok()) << done->status.to_string();
    uint64_t missing = 0;
    for (Rank owner = 0; owner < 3; ++owner) {
      const auto& stream = done->report.delivery->result.streams[owner];
      missing += stream.missing;
      for (const auto range : needed[owner])
        EXPECT_FALSE(std::ranges::binary_search(stream.missing_ranges, range)) << owner << ", " << range;
    }
    EXPECT_GT(missing, 30u);
  }
  // Ten needed ranges go to two other ranks each, so at most 20 lost datagrams must be repaired. Half of all datagrams are
  // lost, so a repair arrives after two attempts on average. About 40 repairs are expected at most.
  EXPECT_LE(cluster.network().counts().repairs - repairs, 60u);
}

TEST(LossyShards, a_silent_owner_is_named_and_delays_no_rank_beyond_the_deadline) {
  LossyCluster cluster({.ranks = 4});
  Shards shards(cluster, 4, 20'000);
  for (int round = 0; round < 25; ++round) shards.reduce(), shards.gather();
  cluster.network().cut_off(2, true);
  const std::vector<std::vector<uint32_t>> needed{{}, {}, {0, 1}, {}};
  shards.options.needed_ranges = &needed;
  const auto start = cluster.now();
  const auto done = shards.gather();
  for (const Rank rank : {0u, 1u, 3u}) {
    ASSERT_TRUE(done[rank]->status.ok()) << done[rank]->status.to_string();
    const auto& report = *done[rank]->report.delivery;
    EXPECT_EQ(report.outcome.code(), Code::late);
    EXPECT_NE(report.outcome.message().find("results of rank 2 (process 2): "), std::string::npos) << report.outcome.message();
    EXPECT_LE(report.result.duration_us, report.result.hard_us * 11 / 10);
  }
  EXPECT_LE(cluster.now() - start, 6 * millisecond);
}

// Encoding loses precision. A rank must store its own shard in its replica with this loss, as the other ranks decode it.
TEST(LossyShards, a_ranks_replica_of_its_own_shard_equals_what_others_decode) {
  for (const auto* codec : {"bf16", "int4"}) {
    LossyCluster cluster({.ranks = 3});
    Shards shards(cluster, 3, 5'000, {.codec = Codec::parse(codec).value()});
    for (auto& shard : shards.shards) shard = random_floats(5, shard.size());
    for (const auto& done : shards.gather()) ASSERT_TRUE(done->status.ok()) << done->status.to_string();
    for (Rank rank = 0; rank < 3; ++rank) EXPECT_EQ(shards.replicas[rank], shards.replicas[0]) << codec;
    EXPECT_NE(shards.replicas[0][0], shards.shards[0][0]);
  }
}

// The ranks repeat two calls in turn, and announce each call only once. They must still detect that one rank is one call ahead.
TEST(LossyShards, calls_out_of_step_are_detected_by_the_datagrams_phase) {
  LossyCluster cluster({.ranks = 2});
  Shards shards(cluster, 2, 5'000);
  for (int round = 0; round < 3; ++round) shards.reduce(), shards.gather();
  const auto done =
      shards.run([&](Rank rank) { return rank == 0 ? shards.reduce_request(rank) : shards.gather_request(rank); });
  for (const auto& one : done) {
    EXPECT_EQ(one->status.code(), Code::invalid) << one->status.to_string();
    EXPECT_NE(one->status.message().find("calls differ: rank"), std::string::npos) << one->status.message();
  }
}

TEST(LossyShards, calls_of_different_sizes_that_were_announced_before_end_with_both_sizes) {
  LossyCluster cluster({.ranks = 3});
  Shards large(cluster, 3, 5'000), small(cluster, 3, 4'000);
  for (int round = 0; round < 3; ++round) large.reduce(), small.reduce();
  for (const Rank odd : {0u, 2u}) {
    const auto start = cluster.now();
    const auto done =
        large.run([&](Rank rank) { return rank == odd ? small.reduce_request(rank) : large.reduce_request(rank); });
    for (const auto& one : done) {
      EXPECT_EQ(one->status.code(), Code::invalid) << one->status.to_string();
      for (const auto* size : {"5000 elements", "4000 elements"})
        EXPECT_NE(one->status.message().find(size), std::string::npos) << one->status.message();
    }
    EXPECT_LE(cluster.now() - start, 10 * millisecond);
  }
}

TEST(LossyShards, invalid_sizes_and_options_are_refused) {
  const Caller caller{.self = 1, .world = 3, .timeout = second};
  Floats whole(1000), shard(336), wrong(335);
  const CallOptions lossy{.delivery = Delivery::lossy};
  const auto reduce = [&](const Floats& in, Floats& out, const CallOptions& options) {
    return reduce_shards_call(caller, ConstTensor(std::span<const float>(in)), Tensor(std::span(out)), options).status();
  };
  EXPECT_TRUE(reduce(whole, shard, lossy).ok()) << reduce(whole, shard, lossy).to_string();
  EXPECT_TRUE(reduce(whole, shard, {}).ok());
  EXPECT_EQ(reduce(whole, wrong, lossy).message(), "the shard has 335 elements, expected 336");
  Floats few(20), some(4);
  EXPECT_NE(reduce(few, some, lossy).message().find("would have no elements"), std::string::npos)
      << reduce(few, some, lossy).to_string();
  EXPECT_EQ(reduce(whole, shard, {.op = ReduceOp::max, .delivery = Delivery::lossy}).code(), Code::invalid);
  EXPECT_EQ(reduce(whole, shard, {.delivery = Delivery::lossy, .shard_unit = 24}).code(), Code::invalid);
  const std::vector<std::vector<uint32_t>> needed(3);
  EXPECT_EQ(reduce(whole, shard, {.delivery = Delivery::lossy, .needed_ranges = &needed}).message(),
            "needed_ranges is only for gather_shards");
  EXPECT_EQ(gather_shards_call(caller, ConstTensor(std::span<const float>(shard)), Tensor(std::span(whole)),
                               {.delivery = Delivery::lossy, .lossy = {.on_empty = OnEmpty::hold}})
                .status()
                .code(),
            Code::invalid);
}

}  // namespace
}  // namespace unisono::sim
