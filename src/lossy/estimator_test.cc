#include "lossy/estimator.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/concat.h"
#include "base/random.h"
#include "kernels/dispatch.h"

namespace unisono {
namespace {

const WireCodec plain_f32{.block = {}}, plain_f64{.dtype = DType::f64, .block = {}};

// One range with one value per rank. Rank r has contributed if bit r of `mask` is set.
template <typename T>
struct OneValue {
  OneValue(const std::vector<T>& from, Rank of) : values(from), owner(of) {}

  RangeKind estimate(uint32_t mask, const std::function<void(RangeTask&)>& change = {}) {
    std::vector<const std::byte*> contributions(values.size(), nullptr);
    for (Rank rank = 0; rank < values.size(); ++rank) {
      if (rank != owner && (mask >> rank & 1) != 0) contributions[rank] = reinterpret_cast<const std::byte*>(&values[rank]);
    }
    RangeTask task{.codec = sizeof(T) == 8 ? plain_f64 : plain_f32,
                   .dtype = dtype_of<T>(),
                   .contributions = contributions,
                   .own = (mask >> owner & 1) != 0 ? &values[owner] : nullptr,
                   .owner = owner,
                   .count = 1,
                   .mean = true,
                   .output = &result};
    if (change) change(task);
    return estimator.estimate(task);
  }

  RangeEstimator estimator;
  std::vector<T> values;
  Rank owner;
  T result = std::numeric_limits<T>::quiet_NaN();
};

struct Moments {
  double mean = 0, variance = 0;
};

// Computes mean and variance of the estimate over all sets of arrivals, in double. given_any: true leaves out the set in which
// nothing arrives.
Moments enumerate(const std::vector<double>& values, Rank owner, double loss, Estimator estimator, OnEmpty on_empty,
                  bool given_any) {
  OneValue<double> one(values, owner);
  const bool own_can_be_missing = estimator == Estimator::count_all;
  const auto links = static_cast<int>(values.size()) - (own_can_be_missing ? 0 : 1);
  std::vector<std::pair<double, double>> outcomes;  // pairs of probability and result
  double weight = 0;
  for (uint32_t mask = 0; mask < 1u << values.size(); ++mask) {
    if (!own_can_be_missing && (mask >> owner & 1) == 0) continue;
    const auto others = std::popcount(mask) - (own_can_be_missing ? 0 : 1);
    if (given_any && others == 0) continue;
    one.estimate(mask, [&](RangeTask& task) { task.estimator = estimator, task.on_empty = on_empty, task.loss = loss; });
    outcomes.emplace_back(std::pow(1 - loss, others) * std::pow(loss, links - others), one.result);
    weight += outcomes.back().first;
  }
  Moments moments;
  for (const auto& [probability, result] : outcomes) moments.mean += probability / weight * result;
  for (const auto& [probability, result] : outcomes)
    moments.variance += probability / weight * (result - moments.mean) * (result - moments.mean);
  return moments;
}

struct Row {
  std::vector<double> values;
  Rank owner;
  double loss, mean, variance, count_mean, count_variance, zero_mean, zero_variance, all_variance;
};

// Expected values of check A1 of docs/design/methods/packet_loss.md.
const std::vector<Row>& table() {
  static const std::vector<Row> rows{
      {{1, 2, 4, 8}, 2, 0.1, 3.75, 0.472128378378, 3.75925, 0.3228519375, 3.475, 0.388125, 0.375225022502},
      {{1, 2, 4, 8}, 2, 0.2, 3.75, 1.040322580645, 3.770666666667, 0.638072888889, 3.2, 0.69, 0.880519943020},
      {{1, 2, 4, 8, 16, 32, 64, 128},
       0,
       0.1,
       31.875,
       30.543648032802,
       31.384920683929,
       28.396808370713,
       28.7,
       30.718125,
       31.708101707636},
      {{3, 5}, 0, 0.2, 4, 0, 3.8, 0.16, 3.5, 1, 0.333333333333},
  };
  return rows;
}

// 6e-13 covers the rounding of the table to twelve decimals.
void expect_close(double found, double wanted) { EXPECT_NEAR(found, wanted, 1e-9 * std::abs(wanted) + 6e-13); }

TEST(Estimator, a1_stratified_is_exactly_unbiased_for_fixed_contributions) {
  for (const auto& row : table()) {
    const auto found = enumerate(row.values, row.owner, row.loss, Estimator::stratified, OnEmpty::own, true);
    expect_close(found.mean, row.mean);
    expect_close(found.variance, row.variance);
    expect_close(estimator_variance(Estimator::stratified, row.values, row.owner, row.loss), row.variance);
  }
}

TEST(Estimator, a1_count_all_is_exactly_unbiased_given_that_anything_arrived) {
  for (const auto& row : table()) {
    const auto found = enumerate(row.values, row.owner, row.loss, Estimator::count_all, OnEmpty::own, true);
    expect_close(found.mean, row.mean);
    expect_close(found.variance, row.all_variance);
    expect_close(estimator_variance(Estimator::count_all, row.values, row.owner, row.loss), row.all_variance);
  }
}

// Negative control: `count` is biased by exactly the amounts in the table.
TEST(Estimator, a1_count_is_biased_by_exactly_the_weight_of_the_owner) {
  for (const auto& row : table()) {
    const auto found = enumerate(row.values, row.owner, row.loss, Estimator::count, OnEmpty::own, false);
    expect_close(found.mean, row.count_mean);
    expect_close(found.variance, row.count_variance);
    expect_close(estimator_variance(Estimator::count, row.values, row.owner, row.loss), row.count_variance);
    EXPECT_GT(std::abs(found.mean - row.mean), 1e-3 * row.mean);
  }
}

TEST(Estimator, a1_zero_fill_shrinks_the_mean_by_exactly_the_missing_share) {
  for (const auto& row : table()) {
    const auto found = enumerate(row.values, row.owner, row.loss, Estimator::zero_fill, OnEmpty::own, false);
    expect_close(found.mean, row.zero_mean);
    expect_close(found.variance, row.zero_variance);
    expect_close(estimator_variance(Estimator::zero_fill, row.values, row.owner, row.loss), row.zero_variance);
    EXPECT_LT(found.mean, row.mean - 0.05 * row.mean);
  }
}

TEST(Estimator, horvitz_thompson_is_unbiased_over_everything_that_can_happen) {
  for (const auto& row : table()) {
    const auto found = enumerate(row.values, row.owner, row.loss, Estimator::horvitz_thompson, OnEmpty::own, false);
    expect_close(found.mean, row.mean);
    expect_close(found.variance, estimator_variance(Estimator::horvitz_thompson, row.values, row.owner, row.loss));
  }
}

// The table is exact in double. Training uses the same formula in fp32, so both results must agree within fp32 rounding.
TEST(Estimator, a1_fp32_estimates_equal_those_in_double) {
  for (const auto& row : table()) {
    OneValue<double> wide(row.values, row.owner);
    OneValue<float> narrow({row.values.begin(), row.values.end()}, row.owner);
    for (const auto estimator :
         {Estimator::stratified, Estimator::count, Estimator::count_all, Estimator::horvitz_thompson, Estimator::zero_fill}) {
      for (uint32_t mask = 0; mask < 1u << row.values.size(); ++mask) {
        if (estimator != Estimator::count_all && (mask >> row.owner & 1) == 0) continue;
        const auto change = [&](RangeTask& task) {
          task.estimator = estimator, task.loss = row.loss, task.mean = mask % 3 != 0;
        };
        EXPECT_EQ(wide.estimate(mask, change), narrow.estimate(mask, change));
        EXPECT_NEAR(narrow.result, wide.result, 4e-7 * std::abs(wide.result)) << mask;
      }
    }
  }
}

// `stratified` suits parameters: its variance depends on the differences between the values, not on their size.
TEST(Estimator, stratified_does_not_change_its_variance_when_a_constant_is_added) {
  const std::vector<double> values{1, 2, 4, 8}, far{1025, 1026, 1028, 1032};
  const auto near_zero = enumerate(values, 2, 0.2, Estimator::stratified, OnEmpty::own, true);
  const auto shifted = enumerate(far, 2, 0.2, Estimator::stratified, OnEmpty::own, true);
  EXPECT_NEAR(shifted.mean, near_zero.mean + 1024, 1e-9);
  EXPECT_NEAR(shifted.variance, near_zero.variance, 1e-8);
  EXPECT_GT(estimator_variance(Estimator::horvitz_thompson, far, 2, 0.2),
            1000 * estimator_variance(Estimator::horvitz_thompson, values, 2, 0.2));
}

struct Inflation {
  Estimator estimator;
  uint32_t world;
  double expected[4];
};
constexpr double losses[] = {0.01, 0.05, 0.10, 0.20};
const Inflation inflations[] = {{Estimator::stratified, 4, {1.01147, 1.06146, 1.13176, 1.29032}},
                                {Estimator::stratified, 8, {1.01033, 1.05431, 1.11610, 1.26987}},
                                {Estimator::stratified, 16, {1.01015, 1.05308, 1.11258, 1.25616}},
                                {Estimator::count_all, 8, {1.01156, 1.06069, 1.12945, 1.29906}}};

TEST(Estimator, a2_noise_grows_as_the_formula_says) {
  for (const auto& row : inflations) {
    for (size_t i = 0; i < 4; ++i)
      EXPECT_NEAR(noise_inflation(row.estimator, row.world, losses[i]), row.expected[i], 1e-5)
          << row.world << ", loss " << losses[i];
  }
}

// Draws 1e5 arrival masks per case. Contributions are -1 or 1 (variance 1), and the fp32 estimator averages them.
TEST(Estimator, a2_noise_grows_as_measured) {
  constexpr uint64_t seed = 2;
  constexpr size_t elements = 4, masks = 100'000;
  Random random(seed);
  SCOPED_TRACE(concat("seed ", seed));
  for (const auto& row : inflations) {
    for (size_t i = 0; i < 4; ++i) {
      std::vector<std::array<float, elements>> values(row.world);
      std::vector<const std::byte*> contributions(row.world);
      RangeEstimator estimator;
      double squares = 0;
      size_t counted = 0;
      for (size_t k = 0; k < masks; ++k) {
        auto signs = random.next();
        for (auto& rank : values) {
          for (auto& value : rank) value = (signs & 1) != 0 ? 1.0f : -1.0f, signs >>= 1;
        }
        for (Rank rank = 0; rank < row.world; ++rank)
          contributions[rank] = random.chance(losses[i]) ? nullptr : reinterpret_cast<const std::byte*>(values[rank].data());
        std::array<float, elements> result{};
        const bool own_missing = row.estimator == Estimator::count_all && contributions[1] == nullptr;
        const auto kind = estimator.estimate({.codec = plain_f32,
                                              .contributions = contributions,
                                              .own = own_missing ? nullptr : values[1].data(),
                                              .owner = 1,
                                              .count = elements,
                                              .mean = true,
                                              .estimator = row.estimator,
                                              .output = result.data()});
        if (kind == RangeKind::empty) continue;
        for (const auto value : result) squares += double{value} * value;
        counted += elements;
      }
      EXPECT_NEAR(squares / static_cast<double>(counted) * row.world / row.expected[i], 1, 0.02)
          << row.world << ", loss " << losses[i];
    }
  }
}

TEST(Estimator, a2_six_of_seven_contributions_give_the_specified_effective_contributors) {
  EffectiveContributors some(8), all(8), none(8), own(8);
  some.add(6, 352, OnEmpty::hold);
  EXPECT_NEAR(some.value(), 6.98182, 1e-5);
  EXPECT_EQ(all.value(), 8);
  all.add(7, 352, OnEmpty::hold);
  all.add(0, 352, OnEmpty::hold);
  EXPECT_DOUBLE_EQ(all.value(), 8);
  none.add(0, 352, OnEmpty::fail);
  EXPECT_EQ(none.value(), 0);
  own.add(0, 352, OnEmpty::own);
  EXPECT_EQ(own.value(), 1);
  own.add(7, 3 * 352, OnEmpty::own);
  EXPECT_DOUBLE_EQ(own.value(), 4 / (1 + 3 / 8.0));
  EffectiveContributors alone(1);
  alone.add(0, 10, OnEmpty::hold);
  EXPECT_EQ(alone.value(), 1);
}

TEST(Estimator, inverse_received_is_the_sum_over_the_binomial) {
  EXPECT_DOUBLE_EQ(inverse_received(7, 0), 1.0 / 7);
  EXPECT_DOUBLE_EQ(inverse_received(7, 1), 1);
  EXPECT_EQ(inverse_received(0, 0.5), 0);
  EXPECT_NEAR(inverse_received(2, 0.5), (2 * 0.25 * 1 + 0.25 / 2) / 0.75, 1e-15);
  // For many draws E[1/R] is slightly above 1/E[R] = 1/3000, and no weight underflows.
  EXPECT_NEAR(inverse_received(30'000, 0.9) * 3000, 1, 1e-3);
}

// Check A3 of docs/design/methods/packet_loss.md: under unequal loss, ranks with good links weigh more. Only rank `counted`
// contributes 1, all others 0. So the estimate is the weight of rank `counted`.
TEST(Estimator, a3_weights_of_contributions_under_unequal_loss) {
  const double loss[] = {0, 0.1, 0.4};
  const double expected[] = {1 / 3.0, 0.4375, 0.229166666666667};
  for (Rank counted = 0; counted < 3; ++counted) {
    std::vector<double> values(3, 0);
    values[counted] = 1;
    OneValue<double> one(values, 0);
    double weight = 0, sum = 0;
    for (uint32_t mask = 3; mask < 8; ++mask) {
      if ((mask & 1) == 0) continue;
      const double probability = ((mask & 2) != 0 ? 1 - loss[1] : loss[1]) * ((mask & 4) != 0 ? 1 - loss[2] : loss[2]);
      one.estimate(mask);
      weight += probability;
      sum += probability * one.result;
    }
    EXPECT_NEAR(sum / weight, expected[counted], 1e-9);
  }
}

TEST(Estimator, a4_an_empty_range_follows_on_empty) {
  expect_close(enumerate({3, 5}, 0, 0.2, Estimator::stratified, OnEmpty::own, false).mean, 3.8);
  expect_close(enumerate({3, 5}, 0, 0.2, Estimator::stratified, OnEmpty::automatic, false).mean, 3.8);
  expect_close(enumerate({3, 5}, 0, 0.2, Estimator::stratified, OnEmpty::zero, false).mean, 3.2);
  expect_close(enumerate({1, 2, 4, 8}, 2, 0.2, Estimator::stratified, OnEmpty::own, false).mean, 3.752);
}

TEST(Estimator, a4_an_empty_range_that_is_held_or_fails_is_not_written) {
  for (const auto on_empty : {OnEmpty::hold, OnEmpty::fail}) {
    for (const auto estimator :
         {Estimator::stratified, Estimator::count, Estimator::count_all, Estimator::horvitz_thompson, Estimator::zero_fill}) {
      OneValue<float> one({3, 5, 7}, 0);
      one.result = 42;
      const uint32_t mask = estimator == Estimator::count_all ? 0 : 1;
      EXPECT_EQ(one.estimate(mask, [&](RangeTask& task) { task.on_empty = on_empty, task.estimator = estimator; }),
                RangeKind::empty);
      EXPECT_EQ(one.result, 42);
    }
  }
}

TEST(Estimator, a4_the_sum_of_an_empty_range_is_n_times_its_mean) {
  OneValue<float> one({3, 5, 7}, 1);
  for (const auto estimator : {Estimator::stratified, Estimator::count}) {
    EXPECT_EQ(one.estimate(2, [&](RangeTask& task) { task.mean = false, task.estimator = estimator; }), RangeKind::empty);
    EXPECT_EQ(one.result, 15);
  }
}

uint32_t bits(float value) { return std::bit_cast<uint32_t>(value); }

class EstimatorOnEveryTarget : public testing::Test {
 protected:
  ~EstimatorOnEveryTarget() override { kernels::force_target(""); }
  void each(const std::function<void()>& check) {
    for (const char* target : kernels::targets()) {
      SCOPED_TRACE(target);
      ASSERT_TRUE(kernels::force_target(target));
      check();
    }
  }
};

TEST_F(EstimatorOnEveryTarget, a5_values_are_those_specified_bit_for_bit) {
  each([] {
    OneValue<float> powers({1, 2, 4, 8}, 2), owner1({1, 2, 4, 8}, 1);
    const auto sum = [](RangeTask& task) { task.mean = false; };
    EXPECT_EQ(powers.estimate(0b1111, sum), RangeKind::full);
    EXPECT_EQ(powers.result, 15);
    powers.estimate(0b1111);
    EXPECT_EQ(powers.result, 3.75f);
    EXPECT_EQ(owner1.estimate(0b1011, sum), RangeKind::reduced);
    EXPECT_EQ(owner1.result, 15.5f);
    owner1.estimate(0b1011);
    EXPECT_EQ(owner1.result, 3.875f);
    OneValue<float> tenths({.1f, .2f, .3f, .4f, .5f}, 2);
    tenths.estimate(0b11111);
    EXPECT_EQ(bits(tenths.result), 0x3e99999au);
    tenths.estimate(0b10111, sum);
    EXPECT_EQ(bits(tenths.result), 0x3faeeef0u);
    tenths.estimate(0b10111);
    EXPECT_EQ(bits(tenths.result), 0x3e8bf25au);
  });
}

// Computes the estimate element by element, as docs/design/methods/packet_loss.md, "The estimator", specifies.
float by_hand(const std::vector<std::vector<float>>& values, uint32_t mask, Rank owner, size_t i) {
  const auto world = static_cast<uint32_t>(values.size());
  float sum = 0;
  uint32_t received = 0;
  for (Rank rank = 0; rank < world; ++rank) {
    if (rank == owner || (mask >> rank & 1) == 0) continue;
    sum = received == 0 ? values[rank][i] : sum + values[rank][i];
    ++received;
  }
  const float factor = static_cast<float>(world - 1) / static_cast<float>(received);
  const float scaled = sum * factor;
  const float total = scaled + values[owner][i];
  return total / static_cast<float>(world);
}

TEST_F(EstimatorOnEveryTarget, a5_short_ranges_of_any_length_are_equal_to_plain_arithmetic) {
  static constexpr uint64_t seed = 5;
  each([] {
    Random random(seed);
    RangeEstimator estimator;
    for (int round = 0; round < 60; ++round) {
      const auto world = static_cast<uint32_t>(3 + random.below(7));
      const auto owner = static_cast<Rank>(random.below(world));
      std::vector<std::vector<float>> values(world, std::vector<float>(1 + random.below(400)));
      for (auto& rank : values) rank.resize(values[0].size());
      for (auto& rank : values) {
        for (auto& value : rank)
          value = static_cast<float>((random.unit() - 0.5) * std::exp2(static_cast<double>(random.below(20))));
      }
      auto mask = static_cast<uint32_t>(1 + random.below((1u << world) - 1)) & ~(1u << owner);
      if (mask == 0) mask = owner == 0 ? 2 : 1;
      if (std::popcount(mask) + 1 == static_cast<int>(world)) mask &= mask - 1;
      std::vector<const std::byte*> contributions(world);
      for (Rank rank = 0; rank < world; ++rank)
        contributions[rank] = (mask >> rank & 1) != 0 ? reinterpret_cast<const std::byte*>(values[rank].data()) : nullptr;
      std::vector<float> output(values[0].size());
      EXPECT_EQ(estimator.estimate({.codec = plain_f32,
                                    .contributions = contributions,
                                    .own = values[owner].data(),
                                    .owner = owner,
                                    .count = output.size(),
                                    .mean = true,
                                    .output = output.data()}),
                RangeKind::reduced);
      for (size_t i = 0; i < output.size(); ++i)
        ASSERT_EQ(bits(output[i]), bits(by_hand(values, mask, owner, i)))
            << "seed " << seed << ", round " << round << ", element " << i;
    }
  });
}

TEST_F(EstimatorOnEveryTarget, every_nan_becomes_the_canonical_nan) {
  each([] {
    const auto strange = std::bit_cast<float>(0xFFC12345u);
    for (const uint32_t mask : {0b001u, 0b011u, 0b101u, 0b111u}) {
      for (const auto estimator : {Estimator::stratified, Estimator::count}) {
        OneValue<float> one({strange, strange, 1}, 0);
        one.estimate(mask, [&](RangeTask& task) { task.estimator = estimator; });
        EXPECT_EQ(bits(one.result), 0x7FC00000u) << mask;
      }
    }
  });
}

}  // namespace
}  // namespace unisono
