// Tests FP8: the number of each code, rounding (against a search over all codes), the bytes of blocks, and the SIMD kernels
// (against the reference).
#include "kernels/fp8.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/random.h"
#include "kernels/dispatch.h"
#include "kernels/golden_test_support.h"
#include "kernels/test_support.h"

namespace unisono::kernels {
namespace {

BlockBytes encoded(const Floats& values, BlockCounts& counts) {
  const auto layout = fp8_layout_of(fp8_format, values.size());
  BlockBytes block(layout.bytes, 0xEE);
  fp8_encode_part_reference(fp8_format, layout, {0, values.size()}, DType::f32, values.data(), block.data(), counts);
  return block;
}

Floats decoded(const BlockBytes& block, size_t count) {
  BlockCounts counts;
  Floats values(count, -77.0f);
  fp8_decode_part_reference(fp8_format, fp8_layout_of(fp8_format, count), {0, count}, block.data(), DType::f32, values.data(),
                            counts);
  return values;
}

// The expected numbers are in table 1 of the OCP 8-bit Floating Point Specification.
TEST(E4m3, has_the_numbers_of_its_specification) {
  EXPECT_EQ(number_of_e4m3(0x00), 0.0f);
  EXPECT_TRUE(std::signbit(number_of_e4m3(0x80)));
  EXPECT_EQ(number_of_e4m3(0x01), 0x1p-9f);
  EXPECT_EQ(number_of_e4m3(0x07), 0.875f * 0x1p-6f);
  EXPECT_EQ(number_of_e4m3(0x08), 0x1p-6f);
  EXPECT_EQ(number_of_e4m3(0x38), 1.0f);
  EXPECT_EQ(number_of_e4m3(0x7E), 448.0f);
  EXPECT_EQ(number_of_e4m3(0xFE), -448.0f);
  EXPECT_TRUE(std::isnan(number_of_e4m3(0x7F)) && std::isnan(number_of_e4m3(0xFF)));
}

TEST(E4m3, every_code_survives_and_numbers_round_to_nearest_even) {
  for (uint32_t code = 0; code < 256; ++code) {
    if ((code & 0x7F) != 0x7F) EXPECT_EQ(e4m3_of(number_of_e4m3(static_cast<uint8_t>(code))), code);
  }
  for (uint32_t code = 0; code < 0x7E; ++code) {
    const float low = number_of_e4m3(static_cast<uint8_t>(code)), high = number_of_e4m3(static_cast<uint8_t>(code + 1)),
                middle = (low + high) / 2;
    EXPECT_EQ(e4m3_of(middle), code + (code & 1));
    EXPECT_EQ(e4m3_of(std::nextafter(middle, 0.0f)), code);
    EXPECT_EQ(e4m3_of(std::nextafter(middle, 448.0f)), code + 1);
    EXPECT_EQ(e4m3_of(-middle), 0x80 | (code + (code & 1)));
  }
}

TEST(Fp8, blocks_byte_by_byte) {
  BlockCounts counts;
  EXPECT_EQ(encoded({448, 1, -1, 0.5f, 0}, counts), (BlockBytes{0x7E, 0x38, 0xB8, 0x30, 0x00, 0x00, 0x80, 0x3F}));
  // 1/448 is 0x3b124925, and the next larger bf16 is 0x3b13. So 1 becomes 445.8, which rounds to 448.
  EXPECT_EQ(encoded({1, -0.5f}, counts), (BlockBytes{0x7E, 0xF6, 0x13, 0x3B}));
  EXPECT_EQ(encoded({0, 0x1p-101f}, counts), (BlockBytes{0, 0, 0, 0}));
  EXPECT_EQ(counts.nonfinite_groups + counts.saturated, 0u);
  EXPECT_EQ(encoded({1, inf}, counts), (BlockBytes{0, 0, 0xC0, 0x7F}));
  EXPECT_EQ(encoded({nan, 1}, counts), (BlockBytes{0, 0, 0xC0, 0x7F}));
  EXPECT_EQ(counts.nonfinite_groups, 2u);
  encoded({3e38f, -3e38f}, counts);
  EXPECT_EQ(counts.saturated, 2u);
  for (const float value : decoded({0, 0, 0xC0, 0x7F}, 2)) EXPECT_EQ(std::bit_cast<uint32_t>(value), 0x7FC00000u);
}

TEST(Fp8, the_error_stays_within_a_28th_of_the_largest_value_of_the_group) {
  const auto values = gold(5000, 7);
  BlockCounts counts;
  const auto back = decoded(encoded(values, counts), values.size());
  for (size_t first = 0; first < values.size(); first += fp8_group) {
    const size_t end = std::min(values.size(), first + fp8_group);
    float largest = 0;
    for (size_t i = first; i < end; ++i) largest = std::max(largest, std::fabs(values[i]));
    for (size_t i = first; i < end; ++i) {
      const float error = std::fabs(back[i] - values[i]);
      EXPECT_LE(error, 1.01f * largest / 28);
      EXPECT_LE(error, 1.01f * std::max(std::fabs(values[i]) / 16, largest / 448 * 0x1p-10f)) << i;
    }
  }
}

TEST(Fp8, signal_to_noise_of_one_pass) {
  std::mt19937 engine(3);
  std::normal_distribution<float> normal;
  Floats values(1u << 18);
  for (auto& value : values) value = normal(engine);
  BlockCounts counts;
  const auto back = decoded(encoded(values, counts), values.size());
  double signal = 0, noise = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    signal += double{values[i]} * values[i];
    noise += (double{values[i]} - back[i]) * (double{values[i]} - back[i]);
  }
  EXPECT_NEAR(10 * std::log10(signal / noise), 31.8, 0.1);
}

TEST(Fp8, bytes_that_no_encoder_writes_are_refused) {
  BlockCounts counts;
  const auto good = encoded(gold(129, 1), counts);
  const auto is_block = [](const BlockBytes& block, size_t count) {
    return is_fp8_block(fp8_format, block.data(), block.size(), count);
  };
  EXPECT_EQ(good.size(), 130u + 4u);
  EXPECT_TRUE(is_block(good, 129));
  EXPECT_FALSE(is_block(good, 127));
  const std::pair<size_t, uint8_t> damages[] = {{5, 0x7F}, {5, 0xFF}, {129, 1}, {131, 0x80}, {131, 0xFF}};
  for (const auto& [at, byte] : damages) {
    auto bad = good;
    bad[at] = byte;
    EXPECT_FALSE(is_block(bad, 129)) << at;
  }
}

Floats any_values(size_t count, Random& random) {
  Floats values(count);
  const int kind = static_cast<int>(random.below(4));
  for (auto& value : values) {
    const auto bits = static_cast<uint32_t>(random.next());
    if (kind == 0) value = std::bit_cast<float>(bits);
    else if (kind == 1) value = std::ldexp(static_cast<float>(bits) / 0x1p32f - 0.5f, static_cast<int>(random.below(40)) - 20);
    else if (kind == 2) value = number_of_e4m3(static_cast<uint8_t>(bits)) * 0.25f + static_cast<float>(bits >> 31) * 0x1p-8f;
    else value = static_cast<float>(bits) / 0x1p32f - 0.5f;
  }
  return values;
}

TEST(Fp8Kernels, equal_the_reference_for_all_values_lengths_and_alignments) {
  Random random(11);
  for (const char* target : targets()) {
    ASSERT_TRUE(force_target(target));
    for (int round = 0; round < 300; ++round) {
      const size_t count = random.below(700), shift = random.below(16);
      const auto type = std::vector{DType::f32, DType::f16, DType::bf16}[random.below(3)];
      const auto wide = any_values(count, random);
      BlockBytes elements(count * element_bytes(type) + 16);
      if (type == DType::f32 && count > 0) std::memcpy(elements.data() + shift, wide.data(), count * 4);
      else if (count > 0) convert_reference(type, elements.data() + shift, DType::f32, wide.data(), count);
      auto format = fp8_format;
      format.poison = random.chance(0.3);
      const auto layout = fp8_layout_of(format, count);
      BlockBytes expected(layout.bytes + 16, 0xEE), actual = expected;
      BlockCounts wanted, got;
      fp8_encode_part_reference(format, layout, {0, count}, type, elements.data() + shift, expected.data() + shift, wanted);
      fp8_encode_part(format, layout, {0, count}, type, elements.data() + shift, actual.data() + shift, got);
      ASSERT_EQ(expected, actual) << target << " " << count << " " << name(type);
      ASSERT_EQ(wanted.saturated, got.saturated);
      ASSERT_EQ(wanted.nonfinite_groups, got.nonfinite_groups);
      if (random.chance(0.3)) {  // random bytes instead of an encoded block
        for (auto& byte : actual) byte = static_cast<uint8_t>(random.next());
      }
      BlockBytes there(elements.size()), here = there;
      fp8_decode_part_reference(format, layout, {0, count}, actual.data() + shift, type, there.data() + shift, wanted);
      fp8_decode_part(format, layout, {0, count}, actual.data() + shift, type, here.data() + shift, got);
      ASSERT_EQ(there, here) << target << " " << count << " " << name(type);
      ASSERT_EQ(wanted.saturated, got.saturated);
      Floats sums = any_values(count, random), other = sums;
      fp8_decode_add_part_reference(format, layout, {0, count}, actual.data() + shift, sums.data());
      fp8_decode_add_part(format, layout, {0, count}, actual.data() + shift, other.data());
      ASSERT_TRUE(count == 0 || std::memcmp(sums.data(), other.data(), count * 4) == 0) << target << " " << count;
    }
  }
  force_target("");
}

}  // namespace
}  // namespace unisono::kernels
