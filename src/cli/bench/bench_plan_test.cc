#include "cli/bench/bench_plan.h"

#include <gtest/gtest.h>

namespace unisono::cli {
namespace {

TEST(BenchPlan, collectives_are_found_in_every_spelling) {
  for (const char* text : {"all-reduce", "all_reduce", "allreduce"})
    EXPECT_EQ(parse_collective(text).value(), Collective::all_reduce);
  EXPECT_EQ(parse_collective("barrier").value(), Collective::barrier);
  EXPECT_NE(parse_collective("all-redcue").status().message().find("did you mean 'all_reduce'"), std::string::npos);
  EXPECT_NE(parse_collective("x").status().message().find("there are all_reduce, "), std::string::npos);
}

TEST(BenchPlan, every_collective_describes_itself) {
  for (int i = 0; i <= static_cast<int>(Collective::barrier); ++i) {
    const auto collective = static_cast<Collective>(i);
    EXPECT_EQ(facts_of(collective).collective, collective);
    EXPECT_EQ(parse_collective(facts_of(collective).name).value(), collective);
    EXPECT_TRUE(facts_of(collective).in_place || facts_of(collective).out_of_place);
  }
}

TEST(BenchPlan, sizes_multiply_up_to_the_end) {
  EXPECT_EQ(parse_sizes({.begin = "1K", .end = "64K", .factor = 4}).value(), (std::vector<uint64_t>{1024, 4096, 16384, 65536}));
  EXPECT_EQ(parse_sizes({.begin = "3", .end = "10", .factor = 2}).value(), (std::vector<uint64_t>{3, 6}));
  EXPECT_EQ(parse_sizes({.begin = "0", .end = "4", .factor = 2}).value(), (std::vector<uint64_t>{0, 1, 2, 4}));
  EXPECT_EQ(parse_sizes({.begin = "8", .end = "8"}).value(), (std::vector<uint64_t>{8}));
}

TEST(BenchPlan, sizes_may_be_stepped_or_listed) {
  EXPECT_EQ(parse_sizes({.begin = "10", .end = "35", .step = "10"}).value(), (std::vector<uint64_t>{10, 20, 30}));
  EXPECT_EQ(parse_sizes({.list = "1M,7,0"}).value(), (std::vector<uint64_t>{1u << 20, 7, 0}));
}

TEST(BenchPlan, endless_or_empty_ranges_are_refused) {
  EXPECT_FALSE(parse_sizes({.begin = "2K", .end = "1K"}).ok());
  EXPECT_FALSE(parse_sizes({.factor = 1}).ok());
  EXPECT_FALSE(parse_sizes({.factor = 0}).ok());
  EXPECT_FALSE(parse_sizes({.step = "0"}).ok());
  EXPECT_FALSE(parse_sizes({.begin = "1", .end = "1G", .step = "1"}).ok());
  EXPECT_FALSE(parse_sizes({.list = "1K,,2K"}).ok());
  EXPECT_FALSE(parse_sizes({.begin = "x"}).ok());
}

TEST(BenchPlan, bus_factors_are_those_of_nccl_tests) {
  EXPECT_DOUBLE_EQ(bus_factor(Collective::all_reduce, 4), 1.5);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::all_gather, 4), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::reduce_scatter, 2), 0.5);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::broadcast, 8), 1);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::all_reduce, 1), 0);
}

TEST(BenchPlan, blocks_share_the_size_and_remainders_are_left_out) {
  const auto gather = extent_of(Collective::all_gather, 1000, DType::f32, 4);
  EXPECT_EQ(gather.block_count, 62u);
  EXPECT_EQ(gather.tensor_count, 248u);
  EXPECT_EQ(gather.bytes, 992u);
  EXPECT_EQ(extent_of(Collective::all_reduce, 7, DType::f64, 4).bytes, 0u);
  EXPECT_EQ(extent_of(Collective::barrier, 1024, DType::f32, 4).bytes, 0u);
}

TEST(BenchPlan, percentiles_are_of_the_nearest_rank) {
  std::vector<double> durations;
  for (int i = 100; i >= 1; --i) durations.push_back(i);
  const auto timing = summarise(durations);
  EXPECT_DOUBLE_EQ(timing.mean_us, 50.5);
  EXPECT_DOUBLE_EQ(timing.p25_us, 25);
  EXPECT_DOUBLE_EQ(timing.p50_us, 50);
  EXPECT_DOUBLE_EQ(timing.p75_us, 75);
  EXPECT_DOUBLE_EQ(timing.p99_us, 99);
  EXPECT_DOUBLE_EQ(timing.min_us, 1);
  EXPECT_DOUBLE_EQ(timing.max_us, 100);
  std::vector<double> one{7};
  EXPECT_DOUBLE_EQ(summarise(one).p99_us, 7);
  std::vector<double> none;
  EXPECT_DOUBLE_EQ(summarise(none).mean_us, 0);
}

}  // namespace
}  // namespace unisono::cli
