#include "cli/bench/bench_options.h"

#include <gtest/gtest.h>

namespace unisono::cli {
namespace {

Result<BenchPlan> bench_plan_of(const std::vector<std::string>& words) {
  BenchOptions options;
  const auto app = make_app(bench_text);
  add_bench_options(*app, options);
  EXPECT_EQ(parse_arguments(*app, words), std::nullopt);
  return make_bench_plan(options);
}
std::string refusal(const std::vector<std::string>& words) { return bench_plan_of(words).status().message(); }

TEST(BenchOptions, letters_mean_what_they_mean_to_nccl_tests) {
  const auto plan = bench_plan_of({"-b",  "8",  "-e",   "32", "-f", "2",  "-w", "5",  "-c", "0",  "-o",
                                   "max", "-d", "half", "-r", "1",  "-z", "0",  "-a", "3",  "-T", "30"});
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->sizes, (std::vector<uint64_t>{8, 16, 32}));
  EXPECT_EQ(plan->run.warmup, 5u);
  EXPECT_EQ(plan->run.checks, 0u);
  EXPECT_EQ(plan->run.data.op, ReduceOp::max);
  EXPECT_EQ(plan->run.data.dtype, DType::f16);
  EXPECT_EQ(plan->run.data.root, 1u);
  EXPECT_FALSE(plan->run.barrier);
  EXPECT_EQ(plan->run.across, Across::max);
  EXPECT_EQ(plan->run.call.timeout, Milliseconds(30'000));
}

TEST(BenchOptions, without_options_everything_has_its_default) {
  const auto plan = bench_plan_of({});
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->collectives, std::vector{Collective::all_reduce});
  EXPECT_EQ(plan->run.checks, 1u);
  EXPECT_TRUE(plan->run.barrier);
  EXPECT_FALSE(plan->limits.any());
  EXPECT_TRUE(plan->faults.empty());
}

TEST(BenchOptions, long_options_switch_checks_and_barriers_off) {
  const auto plan = bench_plan_of({"--no-check", "--no-barrier"});
  EXPECT_EQ(plan->run.checks, 0u);
  EXPECT_FALSE(plan->run.barrier);
}

TEST(BenchOptions, faults_give_one_row_and_a_shorter_deadline_if_a_rank_is_stopped) {
  const auto killed = bench_plan_of({"--kill-rank", "1@2s", "--kill-rank", "2@3s"});
  ASSERT_TRUE(killed.ok()) << killed.status().message();
  EXPECT_EQ(killed->faults.size(), 2u);
  EXPECT_EQ(killed->sizes, std::vector<uint64_t>{1u << 20});
  EXPECT_EQ(killed->run.call.timeout, Milliseconds(60'000));
  EXPECT_EQ(bench_plan_of({"--stop-rank", "1@2s"})->run.call.timeout, Milliseconds(5'000));
  EXPECT_EQ(bench_plan_of({"--stop-rank", "1@2s", "-T", "1s"})->run.call.timeout, Milliseconds(1'000));
}

TEST(BenchOptions, options_that_contradict_faults_are_refused) {
  EXPECT_NE(refusal({"--kill-rank", "1@2s", "--sizes", "1K,2K"}).find("--sizes 1M"), std::string::npos);
  EXPECT_NE(refusal({"broadcast", "--kill-rank", "1@2s"}).find("not into broadcast"), std::string::npos);
  EXPECT_NE(refusal({"all-reduce", "all-gather", "--kill-rank", "1@2s"}).find("one collective"), std::string::npos);
  EXPECT_NE(refusal({"--kill-rank", "1@2s", "--iters", "5"}).find("--iters"), std::string::npos);
  EXPECT_NE(refusal({"--kill-rank", "1@2s", "--hosts", "a:2"}).find("--hosts"), std::string::npos);
  EXPECT_NE(refusal({"--kill-rank", "1@2s", "--plot", "x.svg"}).find("--plot"), std::string::npos);
  EXPECT_NE(refusal({"--no-reform"}).find("--no-reform needs"), std::string::npos);
  EXPECT_NE(refusal({"--stop-rank", "x"}).find("--stop-rank 'x'"), std::string::npos);
}

TEST(BenchOptions, emulated_links_are_parsed) {
  const auto plan = bench_plan_of({"--rate", "100M", "--loss", "1%", "--delay", "20ms"});
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->limits.bits_per_second, 100'000'000u);
  EXPECT_DOUBLE_EQ(plan->limits.loss, 0.01);
  EXPECT_EQ(plan->limits.delay, 20 * millisecond);
  EXPECT_TRUE(plan->limits.any());
}

TEST(BenchOptions, emulated_links_that_contradict_other_options_are_refused) {
  EXPECT_NE(refusal({"--rate", "100M", "--transport", "shm"}).find("--transport shm"), std::string::npos);
  EXPECT_NE(refusal({"--delay", "1ms", "--hosts", "a:2"}).find("--hosts"), std::string::npos);
  EXPECT_NE(refusal({"--loss", "1%", "--rendezvous", "h:1"}).find("--rendezvous"), std::string::npos);
  EXPECT_NE(refusal({"--delay", "soon"}).find("--delay"), std::string::npos);
  EXPECT_NE(refusal({"--rate", "fast"}).find("--rate 'fast'"), std::string::npos);
}

TEST(BenchOptions, delivery_is_read_with_its_options) {
  const auto call = [](const std::string& text) { return bench_plan_of({"--delivery", text})->run.call; };
  EXPECT_EQ(bench_plan_of({})->run.call.delivery, Delivery::reliable);
  EXPECT_EQ(call("reliable").delivery, Delivery::reliable);
  EXPECT_EQ(call("automatic").delivery, Delivery::automatic);
  EXPECT_EQ(call("lossy").lossy, DeliveryOptions());
  EXPECT_EQ(call("lossy:loss_budget=0.2,loss_off=1").delivery, Delivery::lossy);
  EXPECT_EQ(call("lossy:loss_budget=0.2,loss_off=1").lossy.to_string(), "loss_budget=0.2,loss_off=1");
}

TEST(BenchOptions, an_unknown_or_contradictory_delivery_is_refused) {
  EXPECT_NE(refusal({"--delivery", "lost"}).find("--delivery lost: expected reliable, lossy or automatic"), std::string::npos);
  EXPECT_NE(refusal({"--delivery", "reliable:loss_budget=0.1"}).find("expected reliable"), std::string::npos);
  EXPECT_NE(refusal({"--delivery", "lossy:budget=0.2"}).find("budget"), std::string::npos);
  EXPECT_NE(refusal({"broadcast", "--delivery", "lossy"}).find("only all-reduce"), std::string::npos);
  EXPECT_NE(refusal({"--kill-rank", "1@2s", "--delivery", "lossy"}).find("faults can be injected into reliable calls only"),
            std::string::npos);
}

TEST(BenchOptions, numbers_out_of_range_are_refused) {
  EXPECT_NE(refusal({"-a", "4"}).find("-a 4"), std::string::npos);
  EXPECT_NE(refusal({"-z", "2"}).find("-z 2"), std::string::npos);
  EXPECT_EQ(refusal({"--progress", "loud"}), "--progress 'loud' is none of auto, bar, lines, off");
  EXPECT_NE(refusal({"-T", "0"}).find("-T 0"), std::string::npos);
  EXPECT_NE(refusal({"-o", "bor"}).find("whole numbers"), std::string::npos);
}

}  // namespace
}  // namespace unisono::cli
