#include "language_model/data_parallel.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <functional>
#include <iostream>
#include <random>
#include <thread>
#include <vector>

namespace language_model {
namespace {

constexpr uint64_t seed = 7;

// Runs body(exchange) for every rank of a new group, each in a thread of its own.
void with_group(uint32_t ranks, size_t bucket_bytes, const std::function<void(GradientExchange&)>& body) {
  static std::atomic<int> group_count{0};
  const auto place = std::filesystem::temp_directory_path() /
                     ("language_model_exchange_" + std::to_string(getpid()) + "_" + std::to_string(group_count++));
  std::filesystem::create_directory(place);
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      unisono::Options join;
      join.rank = static_cast<int32_t>(rank);
      join.world_size = static_cast<int32_t>(ranks);
      join.rendezvous = "file://" + place.string();
      auto exchange = make_group_exchange({.bucket_bytes = bucket_bytes, .join = join});
      ASSERT_TRUE(exchange.ok()) << exchange.status().to_string();
      ASSERT_EQ((*exchange)->rank(), rank);
      body(**exchange);
    });
  }
  for (auto& thread : threads) thread.join();
  std::filesystem::remove_all(place);
}

std::vector<float> gradients_of(uint32_t rank, size_t count) {
  std::mt19937_64 generator(seed + rank);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(generator);
  return values;
}

std::vector<float> average_in_rank_order(uint32_t ranks, size_t count) {
  auto sum = gradients_of(0, count);
  for (uint32_t rank = 1; rank < ranks; ++rank) {
    const auto values = gradients_of(rank, count);
    for (size_t i = 0; i < count; ++i) sum[i] += values[i];
  }
  for (float& value : sum) value /= static_cast<float>(ranks);
  return sum;
}

TEST(GroupExchange, buckets_of_any_size_give_the_average_in_rank_order_to_the_bit) {
  std::cout << "seed " << seed << "\n";
  for (const size_t bucket_bytes : {4u, 28u, 4096u, 1u << 20}) {
    with_group(3, bucket_bytes, [&](GradientExchange& exchange) {
      for (const size_t count : {0, 1, 2, 100, 257}) {
        auto gradients = gradients_of(exchange.rank(), count);
        exchange.begin(gradients);
        for (size_t first = count; first > 0;) {
          first -= std::min<size_t>(first, 13);
          exchange.ready(first);
        }
        const auto done = exchange.finish();
        ASSERT_TRUE(done.ok()) << done.to_string();
        EXPECT_EQ(gradients, average_in_rank_order(3, count)) << count << " elements, buckets of " << bucket_bytes;
      }
    });
  }
}

TEST(GroupExchange, a_bucket_leaves_as_soon_as_it_is_complete_and_not_before) {
  with_group(2, 10 * sizeof(float), [](GradientExchange& exchange) {
    auto gradients = gradients_of(exchange.rank(), 25);
    const auto untouched = gradients;
    exchange.begin(gradients);
    exchange.ready(16);  // 9 elements: no bucket yet
    gradients[15] += 1;  // so this still belongs to us
    exchange.ready(0);   // 10, 10 and 5
    ASSERT_TRUE(exchange.finish().ok());
    EXPECT_EQ(exchange.statistics().operations, 3u);
    EXPECT_EQ(gradients[15], average_in_rank_order(2, 25)[15] + 1);
    EXPECT_NE(gradients, untouched);
  });
}

TEST(GroupExchange, statistics_count_the_gradients_alone) {
  with_group(4, 1 << 16, [](GradientExchange& exchange) {
    std::vector<float> gradients(100'000, 1.0f);
    ASSERT_TRUE(exchange.broadcast(gradients).ok());
    EXPECT_EQ(exchange.statistics().sent_bytes, 0u);
    exchange.begin(gradients);
    exchange.ready(0);
    ASSERT_TRUE(exchange.finish().ok());
    const double ideal = 2.0 * 3 / 4 * 400'000;
    EXPECT_GE(static_cast<double>(exchange.statistics().sent_bytes), ideal);
    const double in_one_shot = 3 * 400'000;  // short buckets may go whole to everybody, where that is faster
    EXPECT_LE(static_cast<double>(exchange.statistics().sent_bytes), 1.05 * in_one_shot);
    EXPECT_GT(exchange.statistics().waited_s, 0);
    EXPECT_GE(exchange.statistics().overlapped_s, 0);
  });
}

TEST(GroupExchange, broadcast_and_gather_reach_everyone) {
  with_group(3, 1 << 20, [](GradientExchange& exchange) {
    std::vector<float> values(5, static_cast<float>(exchange.rank() + 1));
    ASSERT_TRUE(exchange.broadcast(values).ok());
    EXPECT_EQ(values, std::vector<float>(5, 1.0f));
    const std::vector<uint64_t> mine{exchange.rank(), ~uint64_t{0} - exchange.rank()};
    std::vector<uint64_t> all(6);
    ASSERT_TRUE(exchange.gather(mine, all).ok());
    EXPECT_EQ(all, (std::vector<uint64_t>{0, ~uint64_t{0}, 1, ~uint64_t{0} - 1, 2, ~uint64_t{0} - 2}));
  });
}

TEST(GroupExchange, a_rank_that_leaves_ends_the_step_of_the_others_with_an_error) {
  with_group(3, 1 << 10, [](GradientExchange& exchange) {
    if (exchange.rank() == 2) return;  // its links close
    std::vector<float> gradients(1000, 1.0f);
    exchange.begin(gradients);
    exchange.ready(0);
    const auto done = exchange.finish();
    EXPECT_EQ(done.code(), unisono::Code::peer_lost) << done.to_string();
    EXPECT_NE(done.message().find('2'), std::string::npos) << done.to_string();
  });
}

TEST(LocalExchange, moves_nothing_and_gathers_itself) {
  const auto exchange = make_local_exchange();
  std::vector<float> values{1, 2, 3};
  exchange->begin(values);
  exchange->ready(0);
  EXPECT_TRUE(exchange->finish().ok());
  EXPECT_EQ(values, (std::vector<float>{1, 2, 3}));
  const std::vector<uint64_t> mine{5};
  std::vector<uint64_t> all(1), wrong(2);
  EXPECT_TRUE(exchange->gather(mine, all).ok());
  EXPECT_EQ(all, mine);
  EXPECT_FALSE(exchange->gather(mine, wrong).ok());
  EXPECT_EQ(exchange->statistics().operations, 0u);
}

}  // namespace
}  // namespace language_model
