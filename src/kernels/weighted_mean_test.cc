#include "kernels/weighted_mean.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/random.h"
#include "kernels/dispatch.h"
#include "kernels/test_support.h"

namespace unisono::kernels {
namespace {

std::vector<uint32_t> bits_of(const std::vector<float>& values) {
  std::vector<uint32_t> bits;
  for (const auto value : values) bits.push_back(std::bit_cast<uint32_t>(value));
  return bits;
}

// Owns the vectors to which its sources point.
struct Inputs {
  std::vector<std::vector<float>> vectors;
  std::vector<WeightedSource> sources;
  double total = 0;
};

Inputs random_inputs(size_t source_count, size_t count, size_t shift, Random& random, const auto& draw) {
  Inputs inputs;
  for (size_t s = 0; s < source_count; ++s) {
    auto& vector = inputs.vectors.emplace_back(count + shift);
    for (auto& value : vector) value = draw(random);
    const double weight = 0.1 + 16 * random.unit();
    inputs.sources.push_back({.values = nullptr, .weight = weight, .beside_previous = random.chance(0.3)});
    inputs.total += weight;
  }
  for (size_t s = 0; s < source_count; ++s) inputs.sources[s].values = inputs.vectors[s].data() + shift;
  return inputs;
}

float plain(Random& random) { return static_cast<float>(random.unit() - 0.5) * static_cast<float>(1 << random.below(12)); }
float odd(Random& random) {
  constexpr float values[] = {0.0f, -0.0f, 1.0f, inf, -inf, nan, -nan, 1e-45f, -1e-45f, 3.4e38f, -3.4e38f, 1e-38f};
  return random.chance(0.5) ? values[random.below(std::size(values))]
                            : std::bit_cast<float>(static_cast<uint32_t>(random.next()));
}

double mean_of(double (*function)(const WeightedMeanTask&), const Inputs& inputs, size_t count, std::vector<float>& mean,
               bool variance = true) {
  mean.assign(count + 3, 77);
  return function(
      {.sources = inputs.sources, .total_weight = inputs.total, .mean = mean.data() + 1, .count = count, .variance = variance});
}

TEST(WeightedMean, equals_the_reference_to_the_bit_on_every_target) {
  for (const char* target : targets()) {
    ASSERT_TRUE(force_target(target));
    Random random(1);
    for (const size_t count : {0, 1, 7, 8, 15, 16, 17, 31, 32, 33, 64, 65, 100, 1000, 65'541}) {
      for (const size_t source_count : {1, 2, 3, 5, 33}) {
        const auto inputs = random_inputs(source_count, count, count % 5, random, plain);
        std::vector<float> got, expected;
        const auto variance = mean_of(weighted_mean, inputs, count, got);
        const auto expected_variance = mean_of(weighted_mean_reference, inputs, count, expected);
        ASSERT_EQ(bits_of(got), bits_of(expected)) << target << ", " << count << " elements of " << source_count << " sources";
        ASSERT_NEAR(variance, expected_variance, 1e-12 * expected_variance);
        ASSERT_EQ(mean_of(weighted_mean, inputs, count, got, false), 0);
        ASSERT_EQ(bits_of(got), bits_of(expected)) << target << ", without variance";
      }
    }
  }
  force_target("");
}

TEST(WeightedMean, equals_the_reference_for_unusual_values_on_every_target) {
  for (const char* target : targets()) {
    ASSERT_TRUE(force_target(target));
    Random random(2);
    for (int trial = 0; trial < 200; ++trial) {
      const auto inputs = random_inputs(1 + random.below(6), 133, 0, random, odd);
      std::vector<float> got, expected;
      mean_of(weighted_mean, inputs, 133, got);
      mean_of(weighted_mean_reference, inputs, 133, expected);
      ASSERT_EQ(bits_of(got), bits_of(expected)) << target << ", trial " << trial;
    }
  }
  force_target("");
}

// Computes the mean and the variance independently, with one sum per element.
TEST(WeightedMean, mean_and_variance_have_their_definitions) {
  const std::vector<float> a = {1, 2, 3}, b = {5, 2, -3}, c = {2, 2, 9};
  const WeightedSource sources[] = {{a.data(), 1}, {b.data(), 2}, {c.data(), 5}};
  std::vector<float> mean(3);
  const auto variance =
      weighted_mean_reference({.sources = sources, .total_weight = 8, .mean = mean.data(), .count = 3, .variance = true});
  EXPECT_EQ(mean, (std::vector<float>{21.0f / 8, 2, 42.0f / 8}));
  const auto expected = [](double m, double x, double y, double z) {
    return ((x - m) * (x - m) + 2 * (y - m) * (y - m) + 5 * (z - m) * (z - m)) / 8;
  };
  EXPECT_NEAR(variance, expected(21.0 / 8, 1, 5, 2) + expected(42.0 / 8, 3, -3, 9), 1e-14);
}

TEST(WeightedMean, sources_of_one_position_are_added_first) {
  // 2^53 + 1 + 1 - 2^53. If the numbers are added one by one, each 1 is rounded away, and the sum is 0. If the ones are added
  // first, the sum is 2.
  const std::vector<float> large(70, 0x1.0p53f), one(70, 1), negative(70, -0x1.0p53f);
  std::vector<float> mean(70);
  for (const bool together : {false, true}) {
    const WeightedSource sources[] = {{large.data(), 1}, {one.data(), 1}, {one.data(), 1, together}, {negative.data(), 1}};
    const WeightedMeanTask task{.sources = sources, .total_weight = 1, .mean = mean.data(), .count = 70};
    const std::vector<float> expected(70, together ? 2 : 0);
    weighted_mean_reference(task);
    EXPECT_EQ(mean, expected);
    for (const char* target : targets()) {
      ASSERT_TRUE(force_target(target));
      weighted_mean(task);
      EXPECT_EQ(mean, expected) << target;
    }
    force_target("");
  }
}

TEST(WeightedMean, rounds_products_before_it_adds_them) {
  // Exactly, (1 + 2^-30) * (1 + 2^-23) is the nearest double + 2^-53. If the product were not rounded, the sum of both sources
  // would be 2^-53, not 0.
  const double weight = 1 + 0x1.0p-30, rounded = weight * (1 + 0x1.0p-23);
  ASSERT_NE(std::fma(weight, 1 + 0x1.0p-23, -rounded), 0);
  const std::vector<float> x(70, 1 + 0x1.0p-23f), minus_one(70, -1), zeros(70);
  std::vector<float> mean(70);
  for (const bool together : {false, true}) {
    const WeightedSource sources[] = {{minus_one.data(), rounded}, {x.data(), weight, together}};
    const WeightedMeanTask task{.sources = sources, .total_weight = 1, .mean = mean.data(), .count = 70};
    weighted_mean_reference(task);
    EXPECT_EQ(mean, zeros);
    for (const char* target : targets()) {
      ASSERT_TRUE(force_target(target));
      weighted_mean(task);
      EXPECT_EQ(mean, zeros) << target;
    }
    force_target("");
  }
}

TEST(WeightedMean, two_half_sources_at_one_position_equal_the_whole_source) {
  Random random(3);
  for (int trial = 0; trial < 100; ++trial) {
    const auto whole = random_inputs(2 + random.below(8), 100, 0, random, plain);
    auto halved = whole;
    halved.sources.clear();
    for (auto source : whole.sources) {
      source.beside_previous = false;
      if (random.chance(0.5)) {
        source.weight /= 2;
        halved.sources.push_back(source);
        source.beside_previous = true;
      }
      halved.sources.push_back(source);
    }
    auto apart = whole;
    for (auto& source : apart.sources) source.beside_previous = false;
    std::vector<float> got, expected;
    mean_of(weighted_mean, halved, 100, got);
    mean_of(weighted_mean, apart, 100, expected);
    ASSERT_EQ(bits_of(got), bits_of(expected)) << "trial " << trial;
  }
}

TEST(WeightedMean, the_mean_may_overwrite_a_source) {
  for (const char* target : targets()) {
    ASSERT_TRUE(force_target(target));
    for (const size_t count : {5, 64, 203}) {
      Random random(4);
      auto inputs = random_inputs(4, count, 0, random, plain);
      std::vector<float> expected;
      mean_of(weighted_mean_reference, inputs, count, expected);
      weighted_mean(
          {.sources = inputs.sources, .total_weight = inputs.total, .mean = inputs.vectors[2].data(), .count = count});
      ASSERT_EQ(bits_of(inputs.vectors[2]), bits_of({expected.begin() + 1, expected.end() - 2})) << target;
    }
  }
  force_target("");
}

TEST(WeightedMean, every_nan_result_is_the_same_nan) {
  const uint32_t payload = 0xFFC12345;
  for (const char* target : targets()) {
    ASSERT_TRUE(force_target(target));
    std::vector<float> bad(70, std::bit_cast<float>(payload)), good(70, 1), mean(70);
    const WeightedSource sources[] = {{good.data(), 1}, {bad.data(), 2}};
    const auto variance =
        weighted_mean({.sources = sources, .total_weight = 3, .mean = mean.data(), .count = 70, .variance = true});
    for (const auto bits : bits_of(mean)) ASSERT_EQ(bits, 0x7FC00000u) << target;
    EXPECT_TRUE(std::isnan(variance));
  }
  force_target("");
}

}  // namespace
}  // namespace unisono::kernels
