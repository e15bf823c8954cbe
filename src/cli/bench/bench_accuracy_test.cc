#include "cli/bench/bench_accuracy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/dispatch.h"

namespace unisono::cli {
namespace {

DataPlan plan_of(Collective collective, DType dtype = DType::f32) {
  return {
      .collective = collective, .dtype = dtype, .op = ReduceOp::sum, .world_size = 3, .root = 0, .codec = Codec::quantized(8)};
}

TEST(BenchAccuracy, inputs_are_normal_and_every_type_holds_them) {
  for (const auto dtype : {DType::f32, DType::f16, DType::bf16}) {
    const auto plan = plan_of(Collective::all_reduce, dtype);
    const size_t count = 100'000;
    std::vector<float> values(count);
    std::vector<std::byte> bytes(count * element_bytes(dtype));
    fill_normal(plan, 1, 0, count, bytes.data());
    if (dtype == DType::f32) std::memcpy(values.data(), bytes.data(), bytes.size());
    else kernels::convert(DType::f32, values.data(), dtype, bytes.data(), count);
    double sum = 0, squares = 0;
    for (size_t i = 0; i < count; ++i) {
      ASSERT_EQ(values[i], normal_element(plan, 1, i)) << i;
      sum += values[i], squares += double{values[i]} * values[i];
    }
    EXPECT_NEAR(sum / static_cast<double>(count), 0, 0.02);
    EXPECT_NEAR(squares / static_cast<double>(count), 1, 0.02);
    std::vector<std::byte> part(10 * element_bytes(dtype));
    fill_normal(plan, 1, 700, 10, part.data());
    EXPECT_EQ(std::memcmp(part.data(), bytes.data() + 700 * element_bytes(dtype), part.size()), 0);
  }
}

TEST(BenchAccuracy, an_exact_result_has_no_noise_and_every_change_is_seen) {
  const auto plan = plan_of(Collective::all_reduce);
  std::vector<float> sum(5000);
  for (size_t i = 0; i < sum.size(); ++i) {
    for (uint32_t rank = 0; rank < 3; ++rank) sum[i] += static_cast<float>(normal_element(plan, rank, i));
  }
  const auto exact = accuracy_of(plan, 0, sum.size(), sum.data());
  EXPECT_EQ(exact.wrong, 0u);
  EXPECT_GT(exact.snr_db(), 120);
  auto noisy = sum;
  for (size_t i = 0; i < noisy.size(); ++i) noisy[i] += i % 2 == 0 ? 0.01f : -0.01f;
  EXPECT_NEAR(accuracy_of(plan, 0, noisy.size(), noisy.data()).snr_db(), 10 * std::log10(exact.signal / (5000 * 1e-4)), 0.01);
  EXPECT_NE(accuracy_of(plan, 0, noisy.size(), noisy.data()).bits, exact.bits);
  for (const float off : {1.0f, NAN}) {
    auto wrong = sum;
    wrong[17] += off;
    EXPECT_EQ(accuracy_of(plan, 0, wrong.size(), wrong.data()).wrong, 1u);
  }
}

TEST(BenchAccuracy, every_block_is_compared_with_the_values_of_its_rank) {
  for (const auto collective : {Collective::reduce_scatter, Collective::all_gather, Collective::all_to_all}) {
    const auto plan = plan_of(collective);
    const size_t block = 100;
    for (uint32_t rank = 0; rank < 3; ++rank) {
      std::vector<float> result;
      for (uint32_t source = 0; source < (collective == Collective::reduce_scatter ? 1u : 3u); ++source) {
        for (size_t i = 0; i < block; ++i) {
          double value = 0;
          if (collective == Collective::reduce_scatter)
            for (uint32_t r = 0; r < 3; ++r) value += normal_element(plan, r, rank * block + i);
          else value = normal_element(plan, source, (collective == Collective::all_to_all ? rank * block : 0) + i);
          result.push_back(static_cast<float>(value));
        }
      }
      EXPECT_EQ(accuracy_of(plan, rank, block, result.data()).wrong, 0u);
      result[3] += 1;
      EXPECT_EQ(accuracy_of(plan, rank, block, result.data()).wrong, 1u);
    }
  }
}

}  // namespace
}  // namespace unisono::cli
