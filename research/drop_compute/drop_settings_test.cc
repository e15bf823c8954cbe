#include "research/drop_compute/drop_settings.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "research/model/test_support.h"
#include "training/drop_compute/compute_trace.h"

namespace language_model {
namespace {

constexpr const char* head = "step,k,M,compute_ns,wall_ns,dropped\n";

std::string refusal(const MicroBatchSettings& settings) {
  const auto parsed = parse_micro_batches(settings);
  return parsed.ok() ? "" : parsed.status().message();
}
std::string refusal(const std::string& record) {
  const auto read = read_record(record, 4, 2);
  return read.ok() ? "" : read.status().message();
}
bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(DropSettings, without_drop_options_nothing_is_dropped_and_no_clock_is_read) {
  EXPECT_FALSE(parse_micro_batches({})->drop);
  EXPECT_FALSE(parse_micro_batches({.count = 4, .delay = "L:mu=0.1"})->drop);
  EXPECT_EQ(parse_micro_batches({.count = 4, .record = "a"})->drop, unisono::DropOptions());
  EXPECT_EQ(parse_micro_batches({.count = 4, .random_drop = 0.1})->drop, unisono::DropOptions());
  EXPECT_EQ(parse_micro_batches({.count = 4, .drop = "0.5:rule=at"})->drop->seconds, 0.5);
}

TEST(DropSettings, contradictory_options_are_refused_with_a_sentence) {
  EXPECT_TRUE(contains(refusal({.count = 4, .drop = "soon"}), "--drop-compute soon: "));
  EXPECT_TRUE(contains(refusal({.count = 4, .delay = "Q"}), "--delay-model Q: "));
  EXPECT_TRUE(contains(refusal({.count = 4, .drop = "auto:min_computed=5"}), "min_computed=5 of 4"));
  EXPECT_TRUE(contains(refusal({.count = 4, .drop = "0.1", .random_drop = 0.1}), "without a threshold"));
  EXPECT_TRUE(contains(refusal({.count = 4, .random_drop = 0.1, .replay = "a"}), "give one of them"));
  EXPECT_TRUE(contains(refusal({.count = 4, .drop = "0.1", .trace = "a"}), "auto:calibration"));
  EXPECT_EQ(refusal({.count = 4, .drop = "auto", .trace = "a"}), "");
  EXPECT_EQ(refusal({.count = 4, .drop = "off:tail=discard", .random_drop = 0.1}), "");
}

TEST(DropSettings, random_drops_have_exactly_the_share_and_differ_by_rank) {
  constexpr uint64_t steps = 500;
  for (const double share : {0.0, 0.03, 0.11, 0.5, 1.0}) {
    const auto counts = random_drop_counts(share, 12, {.rank = 1, .steps = steps, .seed = 7});
    ASSERT_EQ(counts.size(), steps);
    const auto sum = [&](size_t from, size_t until) {
      return std::accumulate(counts.begin() + static_cast<ptrdiff_t>(from), counts.begin() + static_cast<ptrdiff_t>(until),
                             0.0);
    };
    EXPECT_EQ(sum(0, steps), steps * 12 - std::round(share * steps * 12)) << share;
    EXPECT_NEAR(sum(0, steps / 2) / (steps * 6), 1 - share, 0.03) << share;
    EXPECT_EQ(counts, random_drop_counts(share, 12, {.rank = 1, .steps = steps, .seed = 7}));
    const bool varies = share > 0 && share < 1;
    EXPECT_EQ(counts != random_drop_counts(share, 12, {.rank = 2, .steps = steps, .seed = 7}), varies);
    EXPECT_EQ(counts != random_drop_counts(share, 12, {.rank = 1, .steps = steps, .seed = 8}), varies);
  }
}

TEST(DropSettings, a_record_can_be_read_back) {
  const std::vector<DropRecord> steps{{1, 4, 4, 100, 200}, {2, 3, 4, 90, 250}, {3, 0, 4, 5, 300}};
  const auto text = record_text(steps);
  EXPECT_EQ(text, std::string(head) + "1,4,4,100,200,0\n2,3,4,90,250,1\n3,0,4,5,300,4\n");
  const auto read = read_record(text, 4, 2);
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  EXPECT_EQ(*read, (std::vector<uint32_t>{4, 3, 0}));
}

TEST(DropSettings, a_record_without_its_header_is_refused) {
  EXPECT_TRUE(contains(refusal(std::string("1,4,4,1,1,0\n")), ":1: does not begin with the line"));
}
TEST(DropSettings, a_record_that_skips_a_step_is_refused) {
  EXPECT_TRUE(contains(refusal(head + std::string("1,4,4,1,1,0\n3,4,4,1,1,0\n")), ":3: is of step 3, not of step 2"));
}
TEST(DropSettings, a_record_with_a_different_number_of_micro_batches_is_refused) {
  EXPECT_TRUE(contains(refusal(head + std::string("1,4,5,1,1,0\n")), "--micro-batches says 4"));
}
TEST(DropSettings, a_record_with_too_many_micro_batches_is_refused) {
  EXPECT_TRUE(contains(refusal(head + std::string("1,5,4,1,1,0\n")), "5 of 4"));
}
TEST(DropSettings, a_record_without_numbers_is_refused) {
  EXPECT_TRUE(contains(refusal(head + std::string("1,all,4\n")), "three numbers"));
}
TEST(DropSettings, a_record_with_too_few_steps_is_refused) {
  EXPECT_TRUE(contains(refusal(head + std::string("1,4,4,1,1,0\n")), "has 1 steps, and the training 2"));
}
TEST(DropSettings, a_missing_record_is_refused) {
  const auto options = with_counts({.count = 4, .drop = unisono::DropOptions()}, {.count = 4, .replay = "/nowhere/counts"},
                                   {.rank = 3, .steps = 2});
  EXPECT_TRUE(contains(options.status().message(), "/nowhere/counts.3.csv"));
}

TEST(DropSettings, a_training_with_random_drops_drops_that_share) {
  std::vector<uint64_t> computed(2);
  with_group(2, {}, [&](GradientExchange& exchange) {
    TrainingOptions training;
    training.shape = {.layers = 1, .width = 32, .heads = 2, .hidden = 48, .context = 16};
    training.optimizer = {.steps = 25, .warm_up_steps = 2};
    training.batch = 8;
    training.validation_every = 0;
    const MicroBatchSettings settings{.count = 4, .random_drop = 0.11};
    const RankOfRun run{.rank = exchange.rank(), .steps = 25, .seed = 1};
    training.micro_batches = with_counts(parse_micro_batches(settings).value(), settings, run).value();
    const Text text = repeating_text(16);
    auto trainer = Trainer::make(training, {.first = run.rank, .count = 1, .total = 2}, text, exchange).value();
    ASSERT_TRUE(trainer->run(25, [](const Trainer::Progress&) {}).ok());
    for (const auto& step : trainer->history().drops) computed[run.rank] += step.computed;
  });
  EXPECT_EQ(computed, (std::vector<uint64_t>{89, 89}));
}

TEST(DropSettings, a_trace_has_the_recorded_times_of_all_ranks_in_the_format_of_the_search) {
  with_group(3, {}, [](GradientExchange& exchange) {
    TrainingOptions training;
    training.shape = {.layers = 1, .width = 32, .heads = 2, .hidden = 48, .context = 16};
    training.optimizer = {.steps = 8, .warm_up_steps = 2};
    training.batch = 12;
    training.validation_every = 0;
    training.micro_batches =
        parse_micro_batches({.count = 4, .drop = "auto:warmup=2,calibration=20", .trace = "unused"}).value();
    const Text text = repeating_text(16);
    auto trainer = Trainer::make(training, {.first = exchange.rank(), .count = 1, .total = 3}, text, exchange).value();
    ASSERT_TRUE(trainer->run(8, [](const Trainer::Progress&) {}).ok());
    const auto written = trace_of(exchange, *trainer->drop(), 4);
    ASSERT_TRUE(written.ok()) << written.status().to_string();
    const auto trace = unisono::ComputeTrace::parse(*written);
    ASSERT_TRUE(trace.ok()) << trace.status().to_string() << "\n" << *written;
    EXPECT_EQ(trace->workers, 3u);
    EXPECT_EQ(trace->micro_batches, 4u);
    EXPECT_EQ(trace->steps(), 6u);  // 8 steps without 2 steps of warm-up
    EXPECT_GT(trace->micro_batch_ns(), 0);
  });
}

}  // namespace
}  // namespace language_model
