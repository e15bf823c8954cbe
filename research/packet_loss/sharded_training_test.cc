#include "research/packet_loss/sharded_training.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "research/model/results.h"
#include "research/model/test_support.h"
#include "research/model/trainer.h"

namespace language_model {
namespace {

using unisono::Code;

constexpr uint32_t ranks = 3;
constexpr float no_clipping = std::numeric_limits<float>::infinity();

TrainingOptions small_training(float norm_max) {
  TrainingOptions options;
  options.shape = {.layers = 1, .width = 32, .heads = 2, .hidden = 48, .context = 16};
  options.optimizer = {.steps = 26, .warm_up_steps = 2, .learning_rate = 3e-3f, .norm_max = norm_max};
  options.batch = 6;
  options.validation_every = 13;
  options.validation_sequences = 6;
  options.final_validation_sequences = 12;
  return options;
}

ShardedPlan plan(const std::string& text, const std::string& ablation = "", double clip_norm = 0) {
  auto parsed = parse_sharded(text, ablation, clip_norm);
  EXPECT_TRUE(parsed.ok()) << parsed.status().to_string();
  return *std::move(parsed);
}

struct Trained {
  TrainingHistory history;
  std::vector<float> parameters;
  ShardedNotes notes;
  ExchangeStatistics statistics;
};

std::vector<Trained> train(const TrainingOptions& options, const char* transport) {
  std::vector<Trained> all(ranks);
  ExchangeOptions exchange_options;
  exchange_options.join.transport = transport;
  with_group(ranks, exchange_options, [&](GradientExchange& exchange) {
    const auto rank = exchange.rank();
    const Text text = repeating_text(options.shape.context);
    auto trainer = Trainer::make(options, {.first = rank, .count = 1, .total = ranks}, text, exchange);
    ASSERT_TRUE(trainer.ok()) << trainer.status().to_string();
    const auto done = (*trainer)->run(options.optimizer.steps, [](const Trainer::Progress&) {});
    ASSERT_TRUE(done.ok()) << done.to_string();
    const auto parameters = (*trainer)->parameters();
    all[rank] = {(*trainer)->history(),
                 {parameters.begin(), parameters.end()},
                 (*trainer)->sharded() ? (*trainer)->sharded()->notes() : ShardedNotes{},
                 (*trainer)->statistics()};
  });
  return all;
}

// For tests without loss. With learned deadlines, data that comes late on a loaded machine would count as lost. So this long
// deadline replaces them.
const std::string deadline_text = "deadline=20s,";

std::vector<Trained> train_sharded(TrainingOptions options, const ShardedPlan& plan, const char* transport) {
  options.sharded = plan;
  return train(options, transport);
}

TEST(ShardAdamW, shards_get_the_bits_that_the_whole_gets) {
  const ParameterLayout layout({.layers = 1, .width = 4, .heads = 1, .hidden = 3, .context = 2});
  const OptimizerOptions options{.steps = 6, .warm_up_steps = 2, .norm_max = no_clipping};
  AdamW whole(layout, options);
  std::vector<float> expected(layout.count, 0.3f), found = expected, gradients(layout.count);
  constexpr uint32_t world = 4;
  // elements per shard; not a multiple of region sizes, so shard borders are inside regions
  const size_t most = (layout.count / 16 / world + 1) * 16;
  ASSERT_GT(layout.count, (world - 1) * most);
  std::vector<std::unique_ptr<unisono::ShardOptimizer>> shards;
  for (uint32_t rank = 0; rank < world; ++rank) {
    shards.push_back(make_shard_adamw(layout, options, rank, world));
    shards.back()->resize(std::min(most, layout.count - rank * most));
  }
  for (size_t step = 0; step < 6; ++step) {
    for (size_t i = 0; i < gradients.size(); ++i)
      gradients[i] = static_cast<float>(std::sin(static_cast<double>(i + 31 * step)));
    whole.step(gradients, expected);
    for (uint32_t rank = 0; rank < world; ++rank) {
      shards[rank]->set_rate(learning_rate(options, step));
      const size_t begin = rank * most, end = std::min(begin + most, layout.count), middle = begin + 7;
      // Update in two parts, as ranges arrive separately.
      for (const auto& [from, to] : {std::pair{begin, middle}, std::pair{middle, end}}) {
        shards[rank]->update({.begin = from - begin,
                              .values = std::span(found).subspan(from, to - from),
                              .gradient = std::span<const float>(gradients).subspan(from, to - from),
                              .step = step + 1});
      }
    }
    ASSERT_EQ(found, expected) << step;
  }
}

TEST(ShardedTraining, without_loss_the_bits_are_those_of_the_training_that_averages_gradients) {
  const auto options = small_training(no_clipping);
  const auto expected = train(options, "shm");
  for (const auto& [text, transport] : {std::pair{deadline_text + "loss_budget=1,drift=5", "udp"},
                                        {deadline_text + "loss_budget=0", "udp"},
                                        {"delivery=reliable", "shm"}}) {
    const auto found = train_sharded(options, plan(text), transport);
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      EXPECT_EQ(found[rank].history.losses, expected[rank].history.losses) << text;
      EXPECT_EQ(found[rank].parameters, expected[0].parameters) << text;
      ASSERT_EQ(found[rank].notes.validation.size(), 2u) << text;
      for (size_t i = 0; i < 2; ++i) {
        EXPECT_EQ(found[rank].notes.validation[i].owners, expected[0].history.validation[i].loss) << text;
        EXPECT_EQ(found[rank].notes.validation[i].replica, expected[0].history.validation[i].loss) << text;
      }
    }
  }
}

TEST(ShardedTraining, clips_as_the_training_that_averages_gradients_does_up_to_rounding) {
  const auto options = small_training(0.5f);
  const auto expected = train(options, "shm");
  const auto found = train_sharded(options, plan(deadline_text + "loss_budget=1", "", options.optimizer.norm_max), "udp");
  for (size_t i = 0; i < expected[0].history.losses.size(); ++i)
    EXPECT_NEAR(found[0].history.losses[i], expected[0].history.losses[i], 1e-4) << i;
  const auto unclipped = train_sharded(options, plan(deadline_text + "loss_budget=1", "", 0), "udp");
  EXPECT_GT(std::abs(unclipped[0].history.losses.back() - expected[0].history.losses.back()), 1e-3);
}

// The wrong implementations differ only in their treatment of lost datagrams.
TEST(ShardedTraining, without_loss_the_wrong_variants_are_right) {
  const auto options = small_training(1.0f);
  const auto expected = train(options, "shm");
  for (const char* ablation : {"count", "zero_fill", "zero_parameters", "differences"}) {
    const auto found = train_sharded(options, plan(deadline_text + "loss_budget=1,drift=13", ablation, 1), "udp");
    for (size_t i = 0; i < expected[0].history.losses.size(); ++i)
      EXPECT_NEAR(found[1].history.losses[i], expected[0].history.losses[i], 1e-3) << ablation << " " << i;
    for (const auto& rank : found) EXPECT_EQ(rank.parameters, found[0].parameters) << ablation;
    ASSERT_EQ(found[0].notes.drift.size(), 2u) << ablation;
    // `differences` adds up rounded changes, so replicas differ from the owners by rounding errors.
    EXPECT_LT(found[0].notes.drift[1].drift.owner, 1e-12) << ablation;
    EXPECT_GT(found[0].notes.drift[1].drift.second_moment, 1e-9) << ablation;
  }
}

TEST(ShardedTraining, notes_report_the_expected_values_and_that_none_was_missing) {
  const auto learning = train_sharded(small_training(1.0f), plan("loss_budget=1"), "udp");
  for (const auto& rank : learning) EXPECT_GE(rank.notes.sums.learning, 19u);
  const auto all = train_sharded(small_training(1.0f), plan(deadline_text + "loss_budget=1,drift=13"), "udp");
  for (const auto& rank : all) {
    const auto& sums = rank.notes.sums;
    EXPECT_EQ(sums.steps, 26u);
    EXPECT_EQ(sums.values.expected, sums.ranges);
    EXPECT_GT(sums.gradients.expected, 0u);
    EXPECT_EQ(lost_share(sums.gradients) + lost_share(sums.values), 0);
    EXPECT_EQ(sums.stale + sums.held + sums.fetched + sums.behind + sums.skipped, 0u);
    EXPECT_GT(sums.full_ranges, 0u);
    EXPECT_EQ(sums.short_ranges + sums.empty_ranges, 0u);
    EXPECT_EQ(rank.notes.drift.size(), 2u);
    EXPECT_EQ(rank.history.sent_bytes.size(), 26u);
    EXPECT_EQ(rank.history.sent_bytes.back(), rank.statistics.sent_bytes);
    EXPECT_GT(rank.statistics.sent_bytes, 26 * rank.parameters.size() * sizeof(float));
  }
}

TEST(ShardedTraining, contradictory_options_are_refused) {
  EXPECT_EQ(parse_sharded("loss_budget=2", "", 1).status().code(), Code::invalid);
  const auto unknown = parse_sharded("", "zeros", 1);
  EXPECT_NE(unknown.status().message().find("zeros is none of count, zero_fill, zero_parameters, differences"),
            std::string::npos)
      << unknown.status().message();
  EXPECT_EQ(plan("clip=3", "", 1).options.clip_norm, 3);
  EXPECT_EQ(plan("loss_budget=1", "", 1).options.clip_norm, 1);
  auto options = small_training(1.0f);
  options.sharded = plan("");
  const Text text = repeating_text(options.shape.context);
  const auto exchange = make_local_exchange();
  EXPECT_EQ(Trainer::make(options, {}, text, *exchange).status().code(), Code::unsupported);
}

TEST(ShardedResults, table_and_summary_report_losses_and_drift) {
  Results results;
  EXPECT_TRUE(nlohmann::json::parse(summary_json(results))["sharded"].is_null());
  const double unknown = std::numeric_limits<double>::quiet_NaN();
  const ShardedSums sums{.steps = 10,
                         .learning = 4,
                         .gradients = {.expected = 100, .missing = 8, .repaired = 2, .late = 1, .cut = 3},
                         .values = {.expected = 50, .missing = 10},
                         .ranges = 50,
                         .stale = 10,
                         .fetched = 5,
                         .age_max = 3,
                         .behind = 2};
  results.sharded = ShardedResults{.options = "loss_budget=1", .ablation = "count", .notes = {}, .ranks = {sums, sums}};
  results.sharded->notes = {.sums = sums,
                            .drift = {{5, {.owner = 0.25, .owner_expected = unknown}}},
                            .validation = {{10, 2.5f, 2.625f}},
                            .warnings = {"beware"}};
  const auto json = nlohmann::json::parse(summary_json(results))["sharded"];
  EXPECT_EQ(json["options"], "loss_budget=1");
  EXPECT_EQ(json["ablation"], "count");
  EXPECT_DOUBLE_EQ(json["all"]["gradients"]["lost_share"], 0.1);
  EXPECT_EQ(json["all"]["gradients"]["streams_cut"], 6);
  EXPECT_EQ(json["all"]["age_max"], 3);
  EXPECT_DOUBLE_EQ(json["ranks"][1]["values"]["lost_share"], 0.2);
  EXPECT_EQ(json["drift"][0]["owner"], 0.25);
  EXPECT_TRUE(json["drift"][0]["owner_expected"].is_null());
  EXPECT_EQ(json["validation"][0]["replica"], 2.625);
  const auto shown = table(results);
  for (const char* part :
       {"loss_budget=1", "WRONG on purpose: count", "10.00 % of gradients, 20.00 % of values",
        "stale after a step: 20.00 %, 3 steps at most; fetched 10", "learnt in 4 steps", "without some rank 4",
        "2.5000 nats per byte with the owners' values, 2.6250 with replicas", "drift after step 5", "warning: beware"}) {
    EXPECT_NE(shown.find(part), std::string::npos) << part << " is not in\n" << shown;
  }
}

}  // namespace
}  // namespace language_model
