// Tests the reference against independent arithmetic. Other tests compare the kernels with the reference, so they cannot find
// its errors.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/dispatch.h"
#include "kernels/test_support.h"

namespace unisono::kernels {
namespace {

template <typename T>
T reduced(ReduceOp op, std::vector<T> values, uint32_t divisor = 1) {
  std::vector<const void*> sources;
  for (const auto& value : values) sources.push_back(&value);
  T result{};
  reduce_reference(
      {.dtype = dtype_of<T>(), .op = op, .sources = sources, .destination = &result, .count = 1, .divisor = divisor});
  return result;
}

uint16_t narrowed(DType to, float value) {
  uint16_t bits = 0;
  convert_reference(to, &bits, DType::f32, &value, 1);
  return bits;
}

float widened(DType from, uint16_t bits) {
  float value = 0;
  convert_reference(DType::f32, &value, from, &bits, 1);
  return value;
}

// Returns the value of a finite or infinite 16-bit float, computed from its definition in IEEE 754. The definition of bf16 is
// the same, with 8 exponent bits.
double value_of(uint16_t bits, int mantissa_bits) {
  const int exponent_bits = 15 - mantissa_bits, bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const double mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) return sign * static_cast<double>(inf);
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

struct Format {
  DType dtype;
  int mantissa_bits;
  uint16_t infinity_bits;
};
constexpr Format narrow_formats[] = {{DType::f16, 10, 0x7C00}, {DType::bf16, 7, 0x7F80}};

TEST(Reference, widens_every_16_bit_value_exactly) {
  for (const auto& format : narrow_formats) {
    for (uint32_t bits = 0; bits < 65536; ++bits) {
      const auto value = widened(format.dtype, static_cast<uint16_t>(bits));
      if ((bits & 0x7FFF) > format.infinity_bits) {
        ASSERT_TRUE(std::isnan(value));
        ASSERT_TRUE((std::bit_cast<uint32_t>(value) & 0x00400000u) != 0) << "signalling";
        ASSERT_EQ(std::signbit(value), (bits & 0x8000) != 0);
      } else {
        ASSERT_EQ(static_cast<double>(value), value_of(static_cast<uint16_t>(bits), format.mantissa_bits)) << bits;
        ASSERT_EQ(std::signbit(value), (bits & 0x8000) != 0);
      }
    }
  }
}

// Between two adjacent 16-bit values, numbers below the midpoint round down, and numbers above it round up. The midpoint itself
// rounds to the even value. Half a step above the largest value, rounding to infinity begins.
TEST(Reference, narrows_to_nearest_even_between_all_neighbours) {
  for (const auto& format : narrow_formats) {
    for (uint32_t bits = 0; bits < format.infinity_bits; ++bits) {
      const auto low = static_cast<uint16_t>(bits), high = static_cast<uint16_t>(bits + 1);
      const double below = value_of(low, format.mantissa_bits);
      const double lower =
          bits == 0 ? -value_of(high, format.mantissa_bits) : value_of(static_cast<uint16_t>(bits - 1), format.mantissa_bits);
      // Without infinity, there would be a value `above` the largest finite one.
      const double step = below - lower;
      const double above = high == format.infinity_bits ? below + step : value_of(high, format.mantissa_bits);
      const auto middle = static_cast<float>((below + above) / 2);
      const auto even = (bits & 1) == 0 ? low : high;
      ASSERT_EQ(narrowed(format.dtype, middle), even) << bits;
      ASSERT_EQ(narrowed(format.dtype, std::nextafter(middle, 0.0f)), low) << bits;
      ASSERT_EQ(narrowed(format.dtype, std::nextafter(middle, inf)), high) << bits;
      ASSERT_EQ(narrowed(format.dtype, -middle), even | 0x8000) << bits;
      ASSERT_EQ(narrowed(format.dtype, static_cast<float>(below)), low) << bits;
    }
    EXPECT_EQ(narrowed(format.dtype, inf), format.infinity_bits);
    EXPECT_EQ(narrowed(format.dtype, -inf), format.infinity_bits | 0x8000);
    EXPECT_EQ(narrowed(format.dtype, std::numeric_limits<float>::max()), format.infinity_bits);
    EXPECT_EQ(narrowed(format.dtype, -0.0f), 0x8000);
  }
}

TEST(Reference, narrowed_nan_stays_a_quiet_nan_with_sign_and_top_payload) {
  EXPECT_EQ(narrowed(DType::bf16, std::bit_cast<float>(0xFF812345u)), 0xFFC1);
  EXPECT_EQ(narrowed(DType::bf16, std::bit_cast<float>(0x7F800001u)), 0x7FC0);
  EXPECT_EQ(narrowed(DType::f16, std::bit_cast<float>(0xFF812345u)), 0xFE09);
  EXPECT_EQ(narrowed(DType::f16, std::bit_cast<float>(0x7F800001u)), 0x7E00);
}

TEST(Reference, folds_from_the_left_in_the_order_given) {
  EXPECT_EQ(reduced<float>(ReduceOp::sum, {0x1p24f, 1.0f, 1.0f}), 0x1p24f);
  EXPECT_EQ(reduced<float>(ReduceOp::sum, {1.0f, 1.0f, 0x1p24f}), 0x1p24f + 2.0f);
}

TEST(Reference, sums_of_16_bit_floats_are_rounded_once) {
  // 256 + 0.75 + 0.75 is 257.5, which rounds to 258 in bf16 (unit 2 above 256). Rounding after each addition would give 256.
  const bfloat16 large{0x4380}, small{0x3F40};
  EXPECT_EQ(reduced<bfloat16>(ReduceOp::sum, {large, small, small}).bits, 0x4381);
  const float16 big{0x6800}, little{0x3A00};  // 2048 + 0.75 + 0.75 in f16, unit 2
  EXPECT_EQ(reduced<float16>(ReduceOp::sum, {big, little, little}).bits, 0x6801);
}

TEST(Reference, average_of_16_bit_floats_does_not_overflow_before_the_division) {
  const float16 largest{0x7BFF};
  EXPECT_EQ(reduced<float16>(ReduceOp::avg, {largest, largest}, 2).bits, 0x7BFF);
  EXPECT_EQ(reduced<float16>(ReduceOp::avg, {largest, largest}).bits, 0x7C00);
}

TEST(Reference, minimum_and_maximum_keep_the_left_of_equal_values) {
  EXPECT_TRUE(std::signbit(reduced<float>(ReduceOp::min, {-0.0f, 0.0f})));
  EXPECT_FALSE(std::signbit(reduced<float>(ReduceOp::min, {0.0f, -0.0f})));
  EXPECT_TRUE(std::signbit(reduced<float>(ReduceOp::max, {-0.0f, 0.0f})));
  EXPECT_FALSE(std::signbit(reduced<float>(ReduceOp::max, {0.0f, -0.0f})));
}

TEST(Reference, a_nan_anywhere_gives_the_positive_quiet_nan) {
  const auto odd_nan = std::bit_cast<float>(0xFFA12345u);
  for (const auto op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::min, ReduceOp::max, ReduceOp::prod}) {
    for (size_t position = 0; position < 3; ++position) {
      std::vector<float> values = {1.0f, -inf, 3.0f};
      values[position] = odd_nan;
      EXPECT_EQ(std::bit_cast<uint32_t>(reduced<float>(op, values)), 0x7FC00000u) << name(op);
    }
  }
  EXPECT_EQ(std::bit_cast<uint32_t>(reduced<float>(ReduceOp::sum, {inf, -inf})), 0x7FC00000u);
  EXPECT_EQ(std::bit_cast<uint32_t>(reduced<float>(ReduceOp::min, {odd_nan})), 0x7FC00000u) << "one source";
  const auto double_nan = reduced<double>(ReduceOp::sum, {-std::numeric_limits<double>::quiet_NaN(), 1.0});
  EXPECT_EQ(std::bit_cast<uint64_t>(double_nan), 0x7FF8000000000000u);
  EXPECT_EQ(reduced<float16>(ReduceOp::sum, {float16{0xFC01}, float16{0}}).bits, 0x7E00);
  EXPECT_EQ(reduced<bfloat16>(ReduceOp::max, {bfloat16{0}, bfloat16{0xFFFF}}).bits, 0x7FC0);
}

TEST(Reference, integers_wrap) {
  EXPECT_EQ(reduced<int8_t>(ReduceOp::sum, {100, 100}), -56);
  EXPECT_EQ(reduced<int8_t>(ReduceOp::prod, {-128, -1}), -128);
  EXPECT_EQ(reduced<int32_t>(ReduceOp::sum, {INT32_MAX, 1}), INT32_MIN);
  EXPECT_EQ(reduced<int64_t>(ReduceOp::prod, {INT64_MIN, -1}), INT64_MIN);
  EXPECT_EQ(reduced<uint16_t>(ReduceOp::prod, {65535, 65535}), 1);
}

TEST(Reference, integers_divide_towards_zero) {
  EXPECT_EQ(reduced<int32_t>(ReduceOp::avg, {-7, 0}, 2), -3);
  EXPECT_EQ(reduced<int8_t>(ReduceOp::avg, {-128}, 3), -42);
  EXPECT_EQ(reduced<int8_t>(ReduceOp::avg, {-128}, 0xFFFFFFFFu), 0);
  EXPECT_EQ(reduced<uint64_t>(ReduceOp::avg, {UINT64_MAX}, 2), INT64_MAX);
}

TEST(Reference, order_of_integers_follows_their_sign) {
  EXPECT_EQ(reduced<int8_t>(ReduceOp::min, {1, -1}), -1);
  EXPECT_EQ(reduced<uint8_t>(ReduceOp::min, {1, 255}), 1);
  EXPECT_EQ(reduced<int64_t>(ReduceOp::max, {INT64_MIN, INT64_MAX}), INT64_MAX);
  EXPECT_EQ(reduced<uint64_t>(ReduceOp::max, {uint64_t{1} << 63, 1}), uint64_t{1} << 63);
}

}  // namespace
}  // namespace unisono::kernels
