// Tests lossy operations of whole groups over virtual links: the order of calls, learnt deadlines, and loss. Ranks may be
// silent or late.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdlib>

#include "base/random.h"
#include "group/api/calls.h"
#include "kernels/dispatch.h"
#include "sim/udp/lossy_cluster_test_support.h"

namespace unisono::sim {
namespace {

const CallOptions lossy_mean{.op = ReduceOp::avg, .delivery = Delivery::lossy};

TEST(LossyGroup, without_loss_results_equal_a_reliable_two_step_to_the_bit) {
  for (const uint32_t ranks : {2u, 3u, 5u, 8u}) {
    LossyCluster cluster({.ranks = ranks});
    for (const size_t count : {size_t{1}, size_t{5}, size_t{1000}, size_t{100'003}}) {
      auto values = random_values(ranks, count, count);
      const auto expected = mean_of(values);
      const auto outcomes = cluster.all_reduce(values, lossy_mean);
      for (Rank rank = 0; rank < ranks; ++rank) {
        ASSERT_TRUE(outcomes[rank].ok()) << outcomes[rank].status().to_string();
        EXPECT_EQ(values[rank], expected) << "rank " << rank << " of " << ranks << ", " << count << " elements";
        EXPECT_EQ(outcomes[rank]->delivery->short_ranges, 0u);
      }
    }
  }
}

TEST(LossyGroup, all_ranks_get_equal_bits_whatever_is_lost) {
  LossyCluster cluster({.ranks = 4, .loses = [](Rank from, Rank to, uint32_t number) {
                          return mix64(from * 1'000'003u + to * 7'919u + number) % 10 == 0;
                        }});
  const size_t count = 40'000;
  uint64_t shortened = 0;
  for (int round = 0; round < 60; ++round) {
    auto values = random_values(4, count, static_cast<uint64_t>(round) + 1);
    auto options = lossy_mean;
    options.lossy.loss_budget = 0.5;
    const auto outcomes = cluster.all_reduce(values, options);
    for (Rank rank = 0; rank < 4; ++rank) {
      ASSERT_TRUE(outcomes[rank].ok()) << outcomes[rank].status().to_string();
      EXPECT_EQ(values[rank], values[0]) << "rank " << rank << " in round " << round;
      shortened += outcomes[rank]->delivery->short_ranges;
    }
  }
  // Each of the 4 shards has 29 ranges. The first 20 rounds learn the deadlines and repair all losses. In the last 40 rounds, a
  // range counts as short if its owner misses any contribution of the three other ranks. Each contribution is lost with
  // probability 0.1.
  EXPECT_NEAR(static_cast<double>(shortened), 40 * 4 * 29 * (1 - std::pow(0.9, 3)), 250);
}

TEST(LossyGroup, operations_are_repaired_to_completion_while_learning_and_without_a_budget) {
  LossyCluster cluster({.ranks = 3, .loses = [](Rank from, Rank to, uint32_t number) {
                          return mix64(from * 31u + to * 17u + number * 1'000'003ull) % 5 == 0;
                        }});
  for (int round = 0; round < 30; ++round) {
    auto values = random_values(3, 20'000, static_cast<uint64_t>(round) + 1);
    const auto expected = mean_of(values);
    auto options = lossy_mean;
    options.lossy.loss_budget = 0;
    const auto outcomes = cluster.all_reduce(values, options);
    for (Rank rank = 0; rank < 3; ++rank) {
      ASSERT_TRUE(outcomes[rank].ok()) << outcomes[rank].status().to_string();
      EXPECT_EQ(values[rank], expected) << "rank " << rank << " in round " << round;
    }
  }
  // 20 % of all datagrams are lost, repairs included. So about 0.2 / (1 - 0.2) = 25 % of the original data must be repaired.
  // The test permits twice that.
  EXPECT_LT(static_cast<double>(cluster.network().counts().repairs),
            2.0 * 0.25 * static_cast<double>(cluster.network().counts().data));
}

TEST(LossyGroup, missing_ranges_are_requested_as_soon_as_all_was_sent) {
  LossyCluster cluster({.ranks = 2, .loses = [](Rank from, Rank, uint32_t number) { return from == 0 && number == 3; }});
  auto values = random_values(2, 20'000, 5);
  const auto expected = mean_of(values);
  const auto outcomes = cluster.all_reduce(values, lossy_mean);
  for (Rank rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(outcomes[rank].ok()) << outcomes[rank].status().to_string();
    EXPECT_EQ(values[rank], expected);
  }
  EXPECT_EQ(outcomes[1]->delivery->contribute.streams[0].repaired, 1u);
  EXPECT_LT(outcomes[1]->delivery->contribute.duration_us, 2500)
      << "the end comes after 0.4 ms; without it nothing would be asked for during 5 ms";
}

TEST(LossyGroup, an_operation_ends_by_the_hard_deadline_and_names_the_silent_rank) {
  LossyCluster cluster({.ranks = 4});
  const size_t count = 10'000;
  for (int round = 0; round < 25; ++round) {
    auto values = random_values(4, count, static_cast<uint64_t>(round) + 1);
    for (const auto& outcome : cluster.all_reduce(values, lossy_mean)) ASSERT_TRUE(outcome.ok());
  }
  cluster.network().cut_off(3, true);
  auto values = random_values(4, count, 99);
  auto options = lossy_mean;
  options.timeout = Milliseconds(200);
  const auto start = cluster.now();
  const auto outcomes = cluster.all_reduce(values, options);
  for (Rank rank = 0; rank < 3; ++rank) {
    // The results of rank 3's shard are missing. A result is never estimated, so the call fails.
    ASSERT_FALSE(outcomes[rank].ok());
    EXPECT_EQ(outcomes[rank].status().code(), Code::late);
    EXPECT_NE(outcomes[rank].status().message().find("rank 3 (process 3)"), std::string::npos)
        << outcomes[rank].status().message();
    EXPECT_NE(outcomes[rank].status().message().find("bytes, missing, no datagram received"), std::string::npos)
        << outcomes[rank].status().message();
  }
  EXPECT_LE(cluster.now() - start, 201 * millisecond);
}

TEST(LossyGroup, early_datagrams_are_kept_for_their_operation) {
  LossyCluster cluster({.ranks = 3});
  auto values = random_values(3, 5'000, 1);
  const auto expected = mean_of(values);
  std::vector<std::shared_ptr<Completion>> completions;
  for (Rank rank = 1; rank < 3; ++rank) completions.push_back(cluster.submit(rank, values[rank], lossy_mean));
  cluster.pass(50 * millisecond);
  completions.push_back(cluster.submit(0, values[0], lossy_mean));
  cluster.finish(completions);
  for (Rank rank = 0; rank < 3; ++rank) EXPECT_EQ(values[rank], expected) << rank;
}

TEST(LossyGroup, different_calls_end_with_invalid_on_all_ranks_and_are_named) {
  LossyCluster cluster({.ranks = 3});
  for (int round = 0; round < 3; ++round) {
    auto values = random_values(3, 1000, 1);
    for (const auto& outcome : cluster.all_reduce(values, lossy_mean)) ASSERT_TRUE(outcome.ok());
  }
  auto values = random_values(3, 1000, 2);
  // Ranks 1 and 2 change their calls. Rank 0, with the old call, gets a notification from both.
  values[1].resize(900), values[2].resize(900);
  auto outcomes = cluster.all_reduce(values, lossy_mean);
  for (const auto& outcome : outcomes) {
    ASSERT_FALSE(outcome.ok());
    EXPECT_EQ(outcome.status().code(), Code::invalid) << outcome.status().to_string();
    EXPECT_NE(outcome.status().message().find("900"), std::string::npos) << outcome.status().message();
    EXPECT_NE(outcome.status().message().find("1000"), std::string::npos) << outcome.status().message();
  }
  // The group continues.
  values = random_values(3, 1000, 3);
  const auto expected = mean_of(values);
  outcomes = cluster.all_reduce(values, lossy_mean);
  for (Rank rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(outcomes[rank].ok()) << outcomes[rank].status().to_string();
    EXPECT_EQ(values[rank], expected);
  }
}

TEST(LossyGroup, a_rank_that_was_away_skips_to_the_newest_operation) {
  LossyCluster cluster({.ranks = 4});
  auto options = lossy_mean;
  options.timeout = Milliseconds(100);
  for (int round = 0; round < 25; ++round) {
    auto values = random_values(4, 10'000, static_cast<uint64_t>(round) + 1);
    for (const auto& outcome : cluster.all_reduce(values, options)) ASSERT_TRUE(outcome.ok());
  }
  // Rank 3 is stopped. The other ranks execute two operations. Both fail, because the results of rank 3 are missing and are
  // never estimated.
  auto values = random_values(4, 10'000, 77);
  const auto others_call = [&] {
    std::vector<std::shared_ptr<Completion>> completions;
    for (Rank rank = 0; rank < 3; ++rank) completions.push_back(cluster.submit(rank, values[rank], options));
    return completions;
  };
  for (int round = 0; round < 2; ++round) {
    const auto completions = others_call();
    cluster.finish(completions);
    for (const auto& completion : completions)
      EXPECT_EQ(completion->status.code(), Code::late) << completion->status.to_string();
  }
  // Rank 3 missed operations 25 and 26, and returns while the others execute operation 27.
  values = random_values(4, 10'000, 78);
  const auto expected = mean_of(values);
  auto completions = others_call();
  cluster.pass(millisecond);  // less than the learnt deadline
  const auto first = cluster.submit(3, values[3], options);
  cluster.finish({first});
  EXPECT_EQ(first->status.code(), Code::late) << first->status.to_string();
  ASSERT_NE(first->report.delivery, nullptr);
  EXPECT_EQ(first->report.delivery->behind, 2u);
  completions.push_back(cluster.submit(3, values[3], options));
  cluster.finish(completions);
  for (Rank rank = 0; rank < 4; ++rank) {
    EXPECT_TRUE(completions[rank]->status.ok()) << rank << ": " << completions[rank]->status.to_string();
    EXPECT_EQ(values[rank], expected) << rank;
  }
  EXPECT_EQ(completions[3]->report.number, 27u);
}

TEST(LossyGroup, a_silent_rank_delays_an_operation_only_to_the_learnt_deadlines) {
  LossyCluster cluster({.ranks = 4});
  for (int round = 0; round < 25; ++round) {
    auto values = random_values(4, 10'000, static_cast<uint64_t>(round) + 1);
    for (const auto& outcome : cluster.all_reduce(values, lossy_mean)) ASSERT_TRUE(outcome.ok());
  }
  cluster.network().cut_off(3, true);
  auto values = random_values(4, 10'000, 99);
  std::vector<std::shared_ptr<Completion>> completions;
  for (Rank rank = 0; rank < 3; ++rank) completions.push_back(cluster.submit(rank, values[rank], lossy_mean));
  const auto start = cluster.now();
  cluster.finish(completions);
  for (const auto& completion : completions) {
    EXPECT_EQ(completion->status.code(), Code::late) << completion->status.to_string();
    const auto& delivery = *completion->report.delivery;
    // The phase of contributions ends by the learnt deadline t_hard. The phase of results takes at most the same time. The test
    // adds 10 % to both.
    EXPECT_LE(delivery.contribute.duration_us, delivery.contribute.hard_us * 11 / 10);
    EXPECT_LE(delivery.result.duration_us, delivery.contribute.hard_us * 11 / 10);
    EXPECT_EQ(delivery.contribute.streams[3].end, DeliveryReport::End::silent);
    EXPECT_EQ(delivery.result.streams[3].missing, delivery.result.streams[3].expected);
  }
  EXPECT_LE(cluster.now() - start, 25 * millisecond);
}

TEST(LossyGroup, a_rank_that_dies_during_an_operation_delays_others_no_longer_than_a_silent_one) {
  for (const Nanos after : {100 * microsecond, 200 * microsecond, 400 * microsecond}) {
    LossyCluster cluster({.ranks = 4});
    for (int round = 0; round < 25; ++round) {
      auto values = random_values(4, 10'000, static_cast<uint64_t>(round) + 1);
      for (const auto& outcome : cluster.all_reduce(values, lossy_mean)) ASSERT_TRUE(outcome.ok());
    }
    auto values = random_values(4, 10'000, 99);
    std::vector<std::shared_ptr<Completion>> completions;
    for (Rank rank = 0; rank < 4; ++rank) completions.push_back(cluster.submit(rank, values[rank], lossy_mean));
    const auto start = cluster.now();
    cluster.pass(after);  // rank 3 sends contributions for 0.25 ms, then results for 0.25 ms
    cluster.network().cut_off(3, true);
    completions.pop_back();
    cluster.finish(completions);
    for (const auto& completion : completions) {
      EXPECT_EQ(completion->status.code(), Code::late) << completion->status.to_string();
      EXPECT_NE(completion->status.message().find("rank 3 (process 3)"), std::string::npos) << completion->status.message();
    }
    EXPECT_LE(cluster.now() - start, 5 * millisecond + lossy_silence_min + 2 * millisecond) << after;
  }
}

TEST(LossyGroup, all_calls_including_queued_ones_end_with_the_group) {
  LossyCluster cluster({.ranks = 2});
  auto values = random_values(2, 1000, 1);
  std::vector<std::shared_ptr<Completion>> completions;
  for (int i = 0; i < 3; ++i) completions.push_back(cluster.submit(0, values[0], lossy_mean));
  cluster.group(0).fail_all({Code::unavailable, "over"}, cluster.now());
  for (const auto& completion : completions) {
    EXPECT_TRUE(completion->done);
    EXPECT_EQ(completion->status.code(), Code::unavailable);
  }
  EXPECT_EQ(cluster.group(0).active(), 0u);
}

TEST(LossyGroup, a_queued_call_ends_at_its_own_deadline) {
  LossyCluster cluster({.ranks = 2});
  auto values = random_values(2, 1000, 1);
  auto short_one = lossy_mean;
  short_one.timeout = Milliseconds(20);
  auto first = cluster.submit(0, values[0], lossy_mean), second = cluster.submit(0, values[0], short_one);
  cluster.pass(30 * millisecond);
  EXPECT_FALSE(first->done);
  ASSERT_TRUE(second->done);
  EXPECT_EQ(second->status.code(), Code::late) << second->status.to_string();
  // The failed call has used operation number 1. So the third call has number 2 on both ranks.
  auto third = cluster.submit(0, values[0], lossy_mean);
  std::vector<std::shared_ptr<Completion>> completions{first, third, cluster.submit(1, values[1], lossy_mean),
                                                       cluster.submit(1, values[1], short_one),
                                                       cluster.submit(1, values[1], lossy_mean)};
  cluster.finish(completions);
  EXPECT_TRUE(first->status.ok()) << first->status.to_string();
  EXPECT_TRUE(third->status.ok()) << third->status.to_string();
  EXPECT_EQ(third->report.number, 2u);
}

TEST(LossyGroup, a_queued_call_keeps_its_codec) {
  LossyCluster cluster({.ranks = 2});
  auto values = random_values(2, 5000, 1);
  auto more = random_values(2, 5000, 2);
  std::vector<std::shared_ptr<Completion>> completions;
  for (Rank rank = 0; rank < 2; ++rank) {
    completions.push_back(cluster.submit(rank, values[rank], lossy_mean));
    auto options = std::make_unique<CallOptions>(lossy_mean);
    options->codec = *Codec::parse("int8");
    completions.push_back(cluster.submit(rank, more[rank], *options));
  }
  cluster.finish(completions);
  for (const auto& completion : completions) EXPECT_TRUE(completion->status.ok()) << completion->status.to_string();
  EXPECT_EQ(more[0], more[1]);
}

TEST(LossyGroup, a_fixed_deadline_holds_from_the_first_operation_on) {
  LossyCluster cluster({.ranks = 3});
  cluster.network().cut_off(2, true);
  auto options = lossy_mean;
  options.lossy.deadline = std::chrono::milliseconds(8);
  auto values = random_values(3, 1000, 1);
  std::vector<std::shared_ptr<Completion>> completions;
  for (Rank rank = 0; rank < 2; ++rank) completions.push_back(cluster.submit(rank, values[rank], options));
  const auto start = cluster.now();
  cluster.finish(completions);
  for (const auto& completion : completions) EXPECT_EQ(completion->status.code(), Code::late) << completion->status.to_string();
  EXPECT_LE(cluster.now() - start, 17 * millisecond);
}

TEST(LossyGroup, calls_without_elements_use_no_number) {
  LossyCluster cluster({.ranks = 2});
  std::vector<float> nothing;
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(cluster.submit(0, nothing, lossy_mean)->done);
  auto values = random_values(2, 1000, 1);
  for (const auto& outcome : cluster.all_reduce(values, lossy_mean)) {
    ASSERT_TRUE(outcome.ok()) << outcome.status().to_string();
    EXPECT_EQ(outcome->number, 0u);
  }
}

TEST(LossyGroup, calls_beyond_the_memory_limit_are_refused) {
  LossyCluster cluster({.ranks = 3});
  auto options = lossy_mean;
  options.lossy.staging_bytes_max = 1u << 20;
  // a rank must hold 134,000 elements of each of the two other ranks, which is above the limit
  auto values = random_values(3, 400'000, 1);
  for (const auto& outcome : cluster.all_reduce(values, options)) {
    ASSERT_FALSE(outcome.ok());
    EXPECT_EQ(outcome.status().code(), Code::invalid);
    EXPECT_NE(outcome.status().message().find("staging=1048576"), std::string::npos) << outcome.status().message();
  }
  values = random_values(3, 300'000, 1);
  for (const auto& outcome : cluster.all_reduce(values, options)) EXPECT_TRUE(outcome.ok()) << outcome.status().to_string();
}

TEST(LossyGroup, averages_of_16_bit_and_encoded_tensors_are_equal_on_all_ranks) {
  for (const auto* codec : {"plain", "int8", "int4:group=64"}) {
    LossyCluster cluster({.ranks = 4, .loses = [](Rank from, Rank to, uint32_t number) {
                            return mix64(from * 31u + to * 17u + number * 77'777ull) % 8 == 0;
                          }});
    for (int round = 0; round < 25; ++round) {
      auto values = random_values(4, 20'000, static_cast<uint64_t>(round) + 1);
      const auto expected = mean_of(values);
      auto options = lossy_mean;
      options.codec = *Codec::parse(codec);
      options.lossy.loss_budget = 0.6;
      const auto outcomes = cluster.all_reduce(values, options);
      for (Rank rank = 0; rank < 4; ++rank) {
        ASSERT_TRUE(outcomes[rank].ok()) << outcomes[rank].status().to_string();
        EXPECT_EQ(values[rank], values[0]) << codec << ", rank " << rank << " in round " << round;
      }
      double error = 0;
      for (size_t i = 0; i < expected.size(); ++i)
        error += std::abs(values[0][i] - expected[i]) / static_cast<double>(expected.size());
      // The inputs have a standard deviation of 0.58. The error bound covers both the loss and the codec.
      EXPECT_LT(error, 0.15) << codec;
    }
  }
}

TEST(LossyGroup, a_rank_without_pending_data_is_not_needed) {
  LossyCluster cluster({.ranks = 3, .loses = [](Rank from, Rank to, uint32_t number) {
                          return mix64(from * 31u + to * 17u + number * 1'313ull) % 3 == 0;
                        }});
  uint64_t pending = 0;
  for (int round = 0; round < 20; ++round) {
    auto values = random_values(3, 20'000, static_cast<uint64_t>(round) + 1);
    std::vector<std::shared_ptr<Completion>> completions;
    for (Rank rank = 0; rank < 3; ++rank) completions.push_back(cluster.submit(rank, values[rank], lossy_mean));
    for (int turn = 0; turn < 100'000 && (!completions[0]->done || cluster.group(0).has_pending()); ++turn) {
      pending += completions[0]->done;
      cluster.pass(50 * microsecond);
    }
    ASSERT_FALSE(cluster.group(0).has_pending());
    cluster.network().cut_off(0, true);
    cluster.finish(completions);
    for (Rank rank = 0; rank < 3; ++rank)
      EXPECT_TRUE(completions[rank]->status.ok())
          << "rank " << rank << ", round " << round << ": " << completions[rank]->status.to_string();
    cluster.network().cut_off(0, false);
  }
  EXPECT_GT(pending, 0u) << "the rank was never the first to end";
}

TEST(LossyGroup, three_silent_operations_in_a_row_end_with_peer_lost) {
  LossyCluster cluster({.ranks = 3});
  cluster.network().cut_off(1, true);
  auto options = lossy_mean;
  options.timeout = Milliseconds(50);
  for (int round = 0; round < 3; ++round) {
    auto values = random_values(3, 1000, 1);
    const auto outcomes = cluster.all_reduce(values, options);
    EXPECT_EQ(outcomes[0].status().code(), round < 2 ? Code::late : Code::peer_lost) << outcomes[0].status().to_string();
    EXPECT_NE(outcomes[2].status().message().find("rank 1 (process 1)"), std::string::npos) << outcomes[2].status().message();
  }
}

// Rank 1 is ahead: rank 0 gets datagrams from it, but none for the operation of rank 0. Rank 0 must not consider rank 1 lost.
TEST(LossyGroup, a_rank_that_is_ahead_is_not_silent) {
  LossyCluster cluster({.ranks = 4});
  cluster.network().cut_off(1, true);
  auto options = lossy_mean;
  options.timeout = Milliseconds(50);
  for (uint32_t round = 0; round < 5; ++round) {
    auto values = random_values(4, 1000, 1);
    std::vector<std::shared_ptr<Completion>> completions;
    for (Rank rank = 0; rank < 4; ++rank) completions.push_back(cluster.submit(rank, values[rank], options));
    const DatagramHeader ahead{.op = round + 3, .sender = 1, .receiver = 0};
    EXPECT_EQ(cluster.group(0).datagram(1, 1, ahead, {}, cluster.now()), DatagramFault::op_ahead);
    cluster.finish(completions);
    EXPECT_EQ(completions[0]->status.code(), Code::late) << completions[0]->status.to_string();
    EXPECT_TRUE(completions[0]->report.delivery->contribute.streams[1].present);
    EXPECT_FALSE(completions[0]->report.delivery->contribute.streams[1].missing == 0);
    EXPECT_EQ(completions[2]->status.code(), round < 2 ? Code::late : Code::peer_lost) << completions[2]->status.to_string();
    EXPECT_FALSE(completions[2]->report.delivery->contribute.streams[1].present);
  }
}

TEST(LossyGroup, several_calls_run_in_order) {
  LossyCluster cluster({.ranks = 3});
  std::vector<std::vector<std::vector<float>>> tensors;
  std::vector<std::vector<float>> expected;
  std::vector<std::shared_ptr<Completion>> completions;
  for (uint64_t i = 0; i < 5; ++i) {
    tensors.push_back(random_values(3, 1000 * (i + 1), i + 1));
    expected.push_back(mean_of(tensors.back()));
  }
  for (auto& tensor : tensors) {
    for (Rank rank = 0; rank < 3; ++rank) completions.push_back(cluster.submit(rank, tensor[rank], lossy_mean));
  }
  cluster.finish(completions);
  for (size_t i = 0; i < tensors.size(); ++i) {
    for (Rank rank = 0; rank < 3; ++rank) EXPECT_EQ(tensors[i][rank], expected[i]) << "tensor " << i << ", rank " << rank;
  }
}

}  // namespace
}  // namespace unisono::sim
