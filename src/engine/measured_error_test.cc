// Tests CallOptions::measure_error in groups of threads over shared memory.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/random.h"
#include "kernels/dispatch.h"
#include "testing/group_of_threads.h"
#include "unisono/unisono.h"

namespace unisono {
namespace {

using test::in_group;

std::vector<float> noise(size_t count, uint64_t seed) {
  Random random(seed);
  std::vector<float> values(count);
  for (auto& v : values) v = static_cast<float>(random.unit() - 0.5);
  return values;
}

constexpr auto two_step = ScheduleKind::two_step;

// The reported error must equal the error computed here from all ranks' inputs.
TEST(MeasuredError, compares_the_result_with_the_exact_sum) {
  constexpr size_t count = 10'000;
  constexpr uint32_t world = 3;
  for (const auto op : {ReduceOp::sum, ReduceOp::avg}) {
    in_group(world, [&](Group& group) {
      std::vector<double> exact(count);
      for (uint32_t r = 0; r < world; ++r) {
        const auto values = noise(count, r);
        for (size_t i = 0; i < count; ++i) exact[i] += values[i] / (op == ReduceOp::avg ? world : 1.0);
      }
      double previous = 1e9;
      for (const auto* codec : {"bf16", "int8", "int5", "int4"}) {
        auto values = noise(count, group.rank());
        const auto report =
            group.all_reduce(std::span<float>(values),
                             {.op = op, .schedule = two_step, .codec = Codec::parse(codec).value(), .measure_error = true});
        ASSERT_TRUE(report.ok()) << report.status().to_string();
        EXPECT_EQ(report->codec, Codec::parse(codec).value());
        double wrong = 0, right = 0;
        for (size_t i = 0; i < count; ++i)
          wrong += (values[i] - exact[i]) * (values[i] - exact[i]), right += exact[i] * exact[i];
        EXPECT_NEAR(report->measured_error, wrong / right, 1e-5 * wrong / right) << codec;
        EXPECT_NEAR(report->snr_db(), 10 * std::log10(right / wrong), 1e-3) << codec;
        EXPECT_LT(report->snr_db(), previous) << codec;
        previous = report->snr_db();
        EXPECT_NE(report->to_string().find(" dB"), std::string::npos) << report->to_string();
      }
    });
  }
}

TEST(MeasuredError, is_zero_for_a_plain_sum_and_the_rounding_for_16_bit_tensors) {
  in_group(2, [](Group& group) {
    auto values = noise(5000, group.rank());
    const auto plain = group.all_reduce(std::span<float>(values), {.measure_error = true});
    ASSERT_TRUE(plain.ok()) << plain.status().to_string();
    EXPECT_EQ(plain->measured_error, 0);
    EXPECT_TRUE(std::isinf(plain->snr_db()));
    const auto wide = noise(5000, group.rank());
    std::vector<bfloat16> narrow(wide.size());
    kernels::convert(DType::bf16, narrow.data(), DType::f32, wide.data(), wide.size());
    const auto rounded = group.all_reduce(std::span<bfloat16>(narrow), {.measure_error = true});
    ASSERT_TRUE(rounded.ok()) << rounded.status().to_string();
    EXPECT_NEAR(rounded->snr_db(), 56, 4);
    const auto unasked = group.all_reduce(std::span<float>(values), {});
    ASSERT_TRUE(unasked.ok());
    EXPECT_EQ(unasked->measured_error, -1);
    EXPECT_TRUE(std::isnan(unasked->snr_db()));
    std::vector<float> none;
    const auto empty = group.all_reduce(std::span<float>(none), {.measure_error = true});
    ASSERT_TRUE(empty.ok()) << empty.status().to_string();
    EXPECT_EQ(empty->measured_error, 0);
  });
}

TEST(MeasuredError, is_refused_for_calls_that_do_not_support_it) {
  in_group(1, [](Group& group) {
    std::vector<float> values(8), other(8);
    std::vector<int32_t> integers(8);
    const std::span<float> tensor(values);
    const CallOptions measured{.measure_error = true};
    EXPECT_EQ(group.all_reduce_async(tensor, measured).wait().status().code(), Code::invalid);
    EXPECT_EQ(group.all_reduce(std::span<int32_t>(integers), measured).status().code(), Code::invalid);
    EXPECT_EQ(group.all_reduce(tensor, {.op = ReduceOp::max, .measure_error = true}).status().code(), Code::invalid);
    EXPECT_EQ(group.all_reduce(tensor, {.id = 5, .measure_error = true}).status().code(), Code::invalid);
    EXPECT_EQ(group.reduce_scatter(ConstTensor(Tensor(tensor)), std::span<float>(other), {}, measured).status().code(),
              Code::invalid);
    EXPECT_EQ(group.broadcast(tensor, 0, measured).status().code(), Code::invalid);
    EXPECT_TRUE(group.all_reduce(tensor, measured).ok());
  });
}

// measure_error adds a second, exact sum, which is an ordinary call. If a rank does not take part in it, the error names that
// rank.
TEST(MeasuredError, a_call_fails_if_only_some_ranks_request_it) {
  in_group(2, [](Group& group) {
    std::vector<float> values(2000, 1.0f);
    const bool asks = group.rank() == 0;
    const auto report = group.all_reduce(std::span<float>(values), {.timeout = Milliseconds(200), .measure_error = asks});
    EXPECT_EQ(report.ok(), !asks);
    if (asks) EXPECT_NE(report.status().message().find("rank 1"), std::string::npos) << report.status().to_string();
    // Keeps rank 1 in the group until rank 0's deadline has passed.
    else EXPECT_FALSE(group.barrier({.timeout = Milliseconds(1000)}).ok());
  });
}

}  // namespace
}  // namespace unisono
