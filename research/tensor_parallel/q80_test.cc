#include "research/tensor_parallel/q80.h"

#include <gtest/gtest.h>

#include <cmath>
#include <iostream>
#include <limits>
#include <random>
#include <vector>

#include "research/tensor_parallel/q80_kernels.h"

namespace tensor_parallel {
namespace {

constexpr uint64_t seed = 5;

std::vector<uint8_t> encoded(const std::vector<float>& values) {
  std::vector<uint8_t> out(q80_bytes(values.size()), 0xAA);
  q80_encode(values, out);
  return out;
}

std::vector<float> decoded(const std::vector<uint8_t>& bytes, size_t count) {
  std::vector<float> sums(count);
  q80_add(bytes, sums);
  return sums;
}

std::vector<float> round_trip(const std::vector<float>& values) { return decoded(encoded(values), values.size()); }

std::vector<float> random_values(size_t count, float deviation) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> values(count);
  for (float& value : values) value = normal(generator);
  return values;
}

TEST(Q80, a_block_is_a_scale_and_32_codes) {
  std::vector<float> values(32);
  values[0] = 127;  // largest magnitude 127, so the scale is 1: 0x3C00 in fp16
  values[1] = -127;
  values[2] = 2.5f;  // halves round away from zero: 2.5 becomes 3
  values[3] = -2.5f;
  values[31] = 1.25f;
  const auto bytes = encoded(values);
  ASSERT_EQ(bytes.size(), 34u);
  EXPECT_EQ(bytes[0], 0x00);
  EXPECT_EQ(bytes[1], 0x3C);
  const std::vector<int> codes{127, -127, 3, -3};
  for (size_t i = 0; i < codes.size(); ++i) EXPECT_EQ(static_cast<int8_t>(bytes[2 + i]), codes[i]) << i;
  EXPECT_EQ(bytes[33], 1);
  const auto back = decoded(bytes, 32);
  EXPECT_EQ(back[0], 127);
  EXPECT_EQ(back[3], -3);
  EXPECT_EQ(back[4], 0);
}

TEST(Q80, any_length_has_a_shorter_last_block) {
  std::cout << "seed " << seed << "\n";
  for (const size_t count : {0, 1, 2, 31, 32, 33, 63, 64, 65, 100, 4096, 4097}) {
    EXPECT_EQ(q80_bytes(count), count + 2 * ((count + 31) / 32));
    const auto values = random_values(count, 3);
    const auto back = round_trip(values);
    for (size_t i = 0; i < count; ++i) {
      float largest = 0;
      for (size_t j = i / 32 * 32; j < std::min(count, i / 32 * 32 + 32); ++j) largest = std::max(largest, std::abs(values[j]));
      // The error is at most half a step of largest / 127, plus 127 times the rounding error of the scale. fp16 has 11 bits, so
      // that error is at most 2^-11 of the scale.
      EXPECT_LE(std::abs(back[i] - values[i]), largest / 127 * (0.5f + 127.0f / 2048) * 1.0001f) << i << " of " << count;
    }
  }
}

TEST(Q80, add_accumulates) {
  const std::vector<float> values{127, 0, -127};
  std::vector<float> sums{1, 2, 3};
  q80_add(encoded(values), sums);
  q80_add(encoded(values), sums);
  EXPECT_EQ(sums, (std::vector<float>{255, 2, -251}));
}

TEST(Q80, zeros_and_values_too_small_for_a_scale_become_zero) {
  EXPECT_EQ(round_trip(std::vector<float>(33)), std::vector<float>(33));
  const float denormal = std::numeric_limits<float>::denorm_min();
  // The scale is 1e-7 / 127 = 8e-10. It is below 2^-25, so it rounds to 0.
  EXPECT_EQ(round_trip({denormal, -denormal, 1e-38f, 1e-7f}), std::vector<float>(4));
}

TEST(Q80, small_scales_are_halves_without_a_leading_one) {
  const float step = 0x1p-24f;
  const auto back = round_trip({127 * 3 * step, -127 * 3 * step, 3 * step});
  EXPECT_EQ(back, (std::vector<float>{127 * 3 * step, -127 * 3 * step, 3 * step}));
}

TEST(Q80, a_nan_spoils_its_block_and_no_other) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN(), infinity, -infinity, 1e8f}) {
    auto values = random_values(70, 1);
    const auto good = round_trip(values);
    values[40] = bad;  // for 1e8, the scale 1e8 / 127 exceeds the fp16 range
    const auto back = round_trip(values);
    for (size_t i = 0; i < values.size(); ++i) {
      if (i / 32 == 1) EXPECT_TRUE(std::isnan(back[i])) << i;
      else EXPECT_EQ(back[i], good[i]) << i;
    }
  }
}

TEST(Q80, the_largest_scale_is_fp16s_largest) {
  const float largest = 65504.0f * 127;
  EXPECT_EQ(round_trip({largest, -largest}), (std::vector<float>{largest, -largest}));
}

TEST(Q80, every_build_gives_the_same_bytes_and_sums) {
  auto values = random_values(4099, 1e-3f);
  values[100] = std::numeric_limits<float>::quiet_NaN();
  values[200] = 1e30f;
  values[300] = -1e-30f;
  const auto bytes = encoded(values);
  for (const Q80Kernels* kernels : supported_q80_kernels()) {
    std::vector<uint8_t> own(bytes.size());
    kernels->encode(values.data(), values.size(), own.data());
    EXPECT_EQ(own, bytes);
    auto sums = random_values(values.size(), 1);
    auto own_sums = sums;
    q80_add(bytes, sums);
    kernels->add(bytes.data(), values.size(), own_sums.data());
    for (size_t i = 0; i < sums.size(); ++i)
      EXPECT_TRUE(own_sums[i] == sums[i] || (std::isnan(own_sums[i]) && std::isnan(sums[i]))) << i;
  }
}

}  // namespace
}  // namespace tensor_parallel
