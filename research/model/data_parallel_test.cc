#include "research/model/data_parallel.h"

#include <gtest/gtest.h>

#include <cmath>
#include <iostream>
#include <random>
#include <vector>

#include "research/model/test_support.h"

namespace language_model {
namespace {

constexpr uint64_t seed = 7;

std::vector<float> gradients_of(uint32_t rank, size_t count, size_t step = 0) {
  std::mt19937_64 generator(seed + rank + 1000 * step);
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
    with_group(3, {.bucket_bytes = bucket_bytes}, [&](GradientExchange& exchange) {
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
  with_group(2, {.bucket_bytes = 10 * sizeof(float)}, [](GradientExchange& exchange) {
    auto gradients = gradients_of(exchange.rank(), 25);
    const auto untouched = gradients;
    exchange.begin(gradients);
    exchange.ready(16);  // 9 elements: less than a bucket of 10
    gradients[15] += 1;  // allowed: element 15 is not ready yet
    exchange.ready(0);   // 25 elements: buckets of 10, 10 and 5
    ASSERT_TRUE(exchange.finish().ok());
    EXPECT_EQ(exchange.statistics().operations, 3u);
    EXPECT_EQ(gradients[15], average_in_rank_order(2, 25)[15] + 1);
    EXPECT_NE(gradients, untouched);
  });
}

TEST(GroupExchange, statistics_count_gradients_only) {
  with_group(4, {.bucket_bytes = 1 << 16}, [](GradientExchange& exchange) {
    std::vector<float> gradients(100'000, 1.0f);
    ASSERT_TRUE(exchange.broadcast(gradients).ok());
    EXPECT_EQ(exchange.statistics().sent_bytes, 0u);
    exchange.begin(gradients);
    exchange.ready(0);
    ASSERT_TRUE(exchange.finish().ok());
    const double ideal = 2.0 * 3 / 4 * 400'000;
    EXPECT_GE(static_cast<double>(exchange.statistics().sent_bytes), ideal);
    const double in_one_shot = 3 * 400'000;  // a short bucket may be sent whole to each of the 3 other ranks, if that is faster
    EXPECT_LE(static_cast<double>(exchange.statistics().sent_bytes), 1.05 * in_one_shot);
    EXPECT_GT(exchange.statistics().waited_s, 0);
    EXPECT_GE(exchange.statistics().overlapped_s, 0);
  });
}

TEST(GroupExchange, broadcast_and_gather_reach_everyone) {
  with_group(3, {}, [](GradientExchange& exchange) {
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
  with_group(3, {.bucket_bytes = 1 << 10}, [](GradientExchange& exchange) {
    if (exchange.rank() == 2) return;  // the links of rank 2 close
    std::vector<float> gradients(1000, 1.0f);
    exchange.begin(gradients);
    exchange.ready(0);
    const auto done = exchange.finish();
    EXPECT_EQ(done.code(), unisono::Code::peer_lost) << done.to_string();
    EXPECT_NE(done.message().find('2'), std::string::npos) << done.to_string();
  });
}

// Results of some steps with a codec on all ranks. The last element is not encoded.
struct EncodedSteps {
  std::vector<std::vector<std::vector<float>>> results;  // [rank][step][element]
  std::vector<std::vector<float>> residuals;             // [rank][element]
  std::vector<uint64_t> sent_bytes;                      // [rank]
};

EncodedSteps encoded_steps(uint32_t ranks, size_t steps, size_t count, const ExchangeOptions& options) {
  EncodedSteps out{std::vector<std::vector<std::vector<float>>>(ranks), std::vector<std::vector<float>>(ranks),
                   std::vector<uint64_t>(ranks)};
  with_group(ranks, options, [&](GradientExchange& exchange) {
    const uint32_t rank = exchange.rank();
    for (size_t step = 0; step < steps; ++step) {
      auto gradients = gradients_of(rank, count, step);
      exchange.begin(gradients);
      for (const size_t first : {count - 1, count / 2, size_t{0}}) exchange.ready(first);
      const auto done = exchange.finish();
      ASSERT_TRUE(done.ok()) << done.to_string();
      out.results[rank].push_back(gradients);
    }
    out.residuals[rank].assign(exchange.residuals().begin(), exchange.residuals().end());
    out.sent_bytes[rank] = exchange.statistics().sent_bytes;
  });
  return out;
}

ExchangeOptions encoding(const char* codec, bool error_feedback) {
  return {.bucket_bytes = 1500 * sizeof(float),
          .codec = unisono::Codec::parse(codec).value(),
          .error_feedback = error_feedback,
          .exact_tail = 1};
}

// With error feedback, sum(inputs) = ranks * sum(averages) + sum(residuals) for each element. The inputs are those of all ranks
// and steps, the averages those of all steps, the residuals those of all ranks. Returns the largest deviation.
double largest_loss(const EncodedSteps& outcome, uint32_t ranks, size_t steps, size_t count) {
  double largest = 0;
  std::vector<double> missing(count);
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    for (size_t step = 0; step < steps; ++step) {
      const auto given = gradients_of(rank, count, step);
      for (size_t i = 0; i < count; ++i) missing[i] += given[i] - double{outcome.results[0][step][i]};
    }
    const auto& kept = outcome.residuals[rank];
    for (size_t i = 0; i < kept.size(); ++i) missing[i] -= kept[i];
  }
  for (const double value : missing) largest = std::max(largest, std::abs(value));
  return largest;
}

TEST(GroupExchange, with_error_feedback_all_steps_add_up_to_their_inputs_less_the_residuals) {
  std::cout << "seed " << seed << "\n";
  constexpr uint32_t ranks = 3;
  constexpr size_t steps = 20, count = 5000;
  for (const char* codec : {"int8", "int4", "int2", "bf16", "int4:own_exact=on"}) {
    const auto with = encoded_steps(ranks, steps, count, encoding(codec, true));
    EXPECT_EQ(with.residuals[0].size(), count);
    EXPECT_LT(largest_loss(with, ranks, steps, count), 1e-3) << codec;
    const auto without = encoded_steps(ranks, steps, count, encoding(codec, false));
    EXPECT_TRUE(without.residuals[0].empty());
    EXPECT_GT(largest_loss(without, ranks, steps, count), 2e-2) << codec;
  }
}

TEST(GroupExchange, encoded_averages_have_the_same_bits_on_all_ranks_and_in_every_run) {
  const auto first = encoded_steps(4, 5, 5000, encoding("int3", true));
  const auto second = encoded_steps(4, 5, 5000, encoding("int3", true));
  for (size_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(first.results[rank], first.results[0]) << "rank " << rank;
    EXPECT_EQ(first.results[rank], second.results[rank]) << "rank " << rank;
    EXPECT_EQ(first.residuals[rank], second.residuals[rank]) << "rank " << rank;
  }
  EXPECT_NE(first.residuals[0], first.residuals[1]);
}

TEST(GroupExchange, the_tail_is_averaged_exactly_and_is_in_no_residual) {
  const auto outcome = encoded_steps(3, 4, 5000, encoding("int2", true));
  for (size_t step = 0; step < 4; ++step) {
    float sum = 0;
    for (uint32_t rank = 0; rank < 3; ++rank) sum += gradients_of(rank, 5000, step).back();
    EXPECT_EQ(outcome.results[0][step].back(), sum / 3);
  }
  EXPECT_EQ(outcome.residuals[0].back(), 0.0f);
}

TEST(GroupExchange, a_codec_is_used_inside_a_host_too) {
  const auto plain = encoded_steps(2, 1, 100'000, {.bucket_bytes = 1 << 18});
  const auto int4 = encoded_steps(2, 1, 100'000, {.bucket_bytes = 1 << 18, .codec = unisono::Codec::quantized(4)});
  const double ratio = static_cast<double>(int4.sent_bytes[0]) / static_cast<double>(plain.sent_bytes[0]);
  EXPECT_NEAR(ratio, 4.25 / 32, 0.002);
}

TEST(LocalExchange, gathers_only_its_own_values) {
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
