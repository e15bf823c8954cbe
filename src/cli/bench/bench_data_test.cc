#include "cli/bench/bench_data.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace unisono::cli {
namespace {

constexpr uint32_t n = 3;

template <typename T>
std::vector<T> input_of(const DataPlan& plan, uint32_t rank, size_t first, size_t count) {
  std::vector<T> out(count);
  fill_input(plan, rank, first, count, out.data());
  return out;
}

TEST(BenchData, a_right_sum_is_right_and_every_single_error_is_counted) {
  const DataPlan plan{.collective = Collective::all_reduce, .dtype = DType::f32, .op = ReduceOp::sum, .world_size = n};
  const size_t count = 10'001;
  std::vector<float> sum(count);
  for (uint32_t rank = 0; rank < n; ++rank) {
    const auto input = input_of<float>(plan, rank, 0, count);
    for (size_t i = 0; i < count; ++i) sum[i] += input[i];
  }
  EXPECT_EQ(count_wrong(plan, 0, count, sum.data()), 0u);
  for (const size_t at : {size_t{0}, size_t{4095}, size_t{4096}, count - 1}) sum[at] += 1;
  EXPECT_EQ(count_wrong(plan, 0, count, sum.data()), 4u);
}

TEST(BenchData, inputs_differ_between_ranks_and_do_not_depend_on_where_filling_starts) {
  for (const auto op : {ReduceOp::sum, ReduceOp::min, ReduceOp::prod}) {
    const DataPlan plan{.collective = Collective::all_reduce, .dtype = DType::i32, .op = op, .world_size = n};
    EXPECT_NE(input_of<int32_t>(plan, 0, 0, 100), input_of<int32_t>(plan, 1, 0, 100));
    const auto whole = input_of<int32_t>(plan, 2, 0, 100);
    EXPECT_EQ(input_of<int32_t>(plan, 2, 37, 63), std::vector<int32_t>(whole.begin() + 37, whole.end()));
  }
}

TEST(BenchData, sums_are_exact_in_the_narrowest_type_for_many_ranks) {
  for (const uint32_t world : {2u, 85u, 86u, 300u, 1000u}) {
    const DataPlan plan{.collective = Collective::all_reduce, .dtype = DType::f32, .op = ReduceOp::sum, .world_size = world};
    std::vector<float> sum(64);
    for (uint32_t rank = 0; rank < world; ++rank) {
      const auto input = input_of<float>(plan, rank, 0, sum.size());
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += input[i];
    }
    for (const float value : sum) EXPECT_LE(value, 256) << world;
  }
}

TEST(BenchData, averages_are_rounded_once_to_nearest_even) {
  // The inputs are 0 … 3, so the sums of three ranks are 0 … 9. Each table holds the averages 0, 1/3, 2/3, 1, …, rounded to
  // nearest even in one format.
  const DataPlan plan{.collective = Collective::all_reduce, .dtype = DType::f32, .op = ReduceOp::avg, .world_size = n};
  std::vector<int> sums(200);
  for (uint32_t rank = 0; rank < n; ++rank) {
    const auto input = input_of<float>(plan, rank, 0, sums.size());
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += static_cast<int>(input[i]);
  }
  const uint16_t bf16[] = {0, 0x3EAB, 0x3F2B, 0x3F80, 0x3FAB, 0x3FD5, 0x4000, 0x4015, 0x402B, 0x4040};
  const uint16_t f16[] = {0, 0x3555, 0x3955, 0x3C00, 0x3D55, 0x3EAB, 0x4000, 0x40AB, 0x4155, 0x4200};
  for (const auto& [dtype, table] : {std::pair{DType::bf16, bf16}, std::pair{DType::f16, f16}}) {
    auto narrow = plan;
    narrow.dtype = dtype;
    std::vector<uint16_t> expected;
    for (const int sum : sums) expected.push_back(table[sum]);
    EXPECT_EQ(count_wrong(narrow, 0, expected.size(), expected.data()), 0u) << name(dtype);
  }
  auto whole = plan;
  whole.dtype = DType::i8;
  std::vector<int8_t> cut;
  for (const int sum : sums) cut.push_back(static_cast<int8_t>(sum / 3));
  EXPECT_EQ(count_wrong(whole, 0, cut.size(), cut.data()), 0u);
}

TEST(BenchData, moved_blocks_are_checked_at_their_position) {
  const size_t block = 5;
  const DataPlan gather{.collective = Collective::all_gather, .dtype = DType::u16, .world_size = n};
  std::vector<uint16_t> all;
  for (uint32_t rank = 0; rank < n; ++rank) {
    const auto input = input_of<uint16_t>(gather, rank, 0, block);
    all.insert(all.end(), input.begin(), input.end());
  }
  EXPECT_EQ(count_wrong(gather, 1, block, all.data()), 0u);
  std::swap_ranges(all.begin(), all.begin() + block, all.begin() + block);
  EXPECT_GT(count_wrong(gather, 1, block, all.data()), 0u);

  const DataPlan exchange{.collective = Collective::all_to_all, .dtype = DType::u64, .world_size = n};
  std::vector<uint64_t> mine;
  for (uint32_t source = 0; source < n; ++source) {
    const auto input = input_of<uint64_t>(exchange, source, 2 * block, block);
    mine.insert(mine.end(), input.begin(), input.end());
  }
  EXPECT_EQ(count_wrong(exchange, 2, block, mine.data()), 0u);
  EXPECT_GT(count_wrong(exchange, 1, block, mine.data()), 0u);
}

TEST(BenchData, only_root_is_checked_where_only_root_has_a_result) {
  const DataPlan plan{.collective = Collective::reduce, .dtype = DType::f64, .op = ReduceOp::max, .world_size = n, .root = 2};
  const std::vector<double> garbage(7, -1);
  EXPECT_EQ(count_wrong(plan, 0, 7, garbage.data()), 0u);
  EXPECT_EQ(count_wrong(plan, 2, 7, garbage.data()), 7u);
}

TEST(BenchData, an_empty_result_has_no_wrong_elements) {
  for (int i = 0; i <= static_cast<int>(Collective::barrier); ++i) {
    const DataPlan plan{.collective = static_cast<Collective>(i), .dtype = DType::bf16, .world_size = n};
    EXPECT_EQ(count_wrong(plan, 0, 0, nullptr), 0u);
  }
}

}  // namespace
}  // namespace unisono::cli
