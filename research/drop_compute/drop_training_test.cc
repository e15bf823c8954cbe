#include "research/drop_compute/drop_training.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/concat.h"
#include "research/drop_compute/drop_settings.h"
#include "research/model/test_support.h"

namespace language_model {
namespace {

using unisono::DropOptions;
using unisono::Status;

constexpr uint32_t micro_batches = 4;

DropOptions drop(const std::string& text) { return DropOptions::parse(text).value(); }
DropOptions replay(std::vector<uint32_t> counts, const std::string& text = "off") {
  auto options = drop(text);
  options.replay = std::move(counts);
  return options;
}

TrainingOptions small_training(uint32_t ranks, size_t steps) {
  TrainingOptions options;
  options.shape = {.layers = 1, .width = 64, .heads = 2, .hidden = 96, .context = 24};
  options.optimizer = {.steps = steps, .warm_up_steps = 2, .learning_rate = 3e-3f};
  options.batch = ranks * micro_batches;
  options.validation_every = 0;
  options.micro_batches.count = micro_batches;
  return options;
}

ExchangeOptions exchange_of(const GradientCompression& compression = {}, const unisono::Codec& codec = {}) {
  return {.bucket_bytes = 16 << 10,
          .codec = codec,
          .error_feedback = !codec.is_plain(),
          .exact_tail = loss_elements,
          .compression = compression,
          .parameters = exchanged_parameters(ParameterLayout(small_training(1, 1).shape))};
}

struct Trained {
  std::vector<float> losses;
  uint64_t hash = 0;
  std::vector<DropRecord> drops;
  unisono::DropReport total;
};

using OptionsOf = std::function<TrainingOptions(uint32_t rank)>;

Trained run(const TrainingOptions& options, Parts parts, GradientExchange& exchange) {
  const Text text = repeating_text(options.shape.context);
  auto trainer = Trainer::make(options, parts, text, exchange);
  EXPECT_TRUE(trainer.ok()) << trainer.status().to_string();
  if (!trainer.ok()) return {};
  const auto done = (*trainer)->run(options.optimizer.steps, [](const Trainer::Progress&) {});
  EXPECT_TRUE(done.ok()) << done.to_string();
  const auto& history = (*trainer)->history();
  return {history.losses, hash_of((*trainer)->parameters()), history.drops,
          (*trainer)->drop() ? (*trainer)->drop()->compute().total() : unisono::DropReport{}};
}

std::vector<Trained> train(uint32_t ranks, const OptionsOf& options, const ExchangeOptions& exchange_options = exchange_of()) {
  std::vector<Trained> all(ranks);
  with_group(ranks, exchange_options, [&](GradientExchange& exchange) {
    const uint32_t rank = exchange.rank();
    all[rank] = run(options(rank), {.first = rank, .count = 1, .total = ranks}, exchange);
  });
  return all;
}

Trained train_alone(const TrainingOptions& options, Parts parts) {
  const auto exchange = make_local_exchange();
  return run(options, parts, *exchange);
}

void expect_equal(const std::vector<Trained>& all, const std::string& what) {
  for (const auto& rank : all) {
    EXPECT_EQ(rank.hash, all[0].hash) << what;
    EXPECT_EQ(rank.losses, all[0].losses) << what;
    for (const float loss : rank.losses) EXPECT_TRUE(std::isfinite(loss)) << what;
  }
}

TEST(DropTraining, one_micro_batch_gives_the_bits_of_the_whole_share_with_and_without_drop_compute) {
  const auto with = [](uint32_t count, std::optional<DropOptions> options) {
    auto training = small_training(3, 6);
    training.micro_batches = {.count = count, .drop = std::move(options)};
    return train(3, [&](uint32_t) { return training; });
  };
  const auto whole = with(0, {});
  for (const auto& one :
       {with(1, {}), with(1, drop("off")), with(1, drop("1e-9:warmup=0")), with(1, drop("9:rule=at,warmup=0"))}) {
    EXPECT_EQ(one[0].hash, whole[0].hash);
    EXPECT_EQ(one[2].losses, whole[0].losses);
  }
}

TEST(DropTraining, without_drops_the_bits_are_those_of_one_process_in_order) {
  const auto alone = train_alone(small_training(3, 6), {.first = 0, .count = 3, .total = 3});
  for (const char* text :
       {"", "off", "9:warmup=0", "9:normalize=computed,warmup=0", "9:rule=at,warmup=0", "9:rule=before,calibration=10"}) {
    auto options = small_training(3, 6);
    if (*text != '\0') options.micro_batches.drop = drop(text);
    const auto all = train(3, [&](uint32_t) { return options; });
    for (const auto& rank : all) {
      EXPECT_EQ(rank.hash, alone.hash) << text;
      EXPECT_EQ(rank.losses, alone.losses) << text;
    }
  }
}

TEST(DropTraining, a_replay_of_recorded_drops_gives_the_same_bits) {
  auto timed = small_training(3, 12);
  timed.micro_batches.delay = unisono::sim::DelayModel::parse("R:compute=0.001").value();
  timed.micro_batches.drop = drop("0.002:warmup=2");
  const auto recorded = train(3, [&](uint32_t) { return timed; });
  expect_equal(recorded, "recorded");
  uint64_t computed = 0;
  std::vector<std::vector<uint32_t>> counts;
  for (const auto& rank : recorded) {
    const auto read = read_record(record_text(rank.drops), micro_batches, 12);
    ASSERT_TRUE(read.ok()) << read.status().to_string();
    EXPECT_EQ((*read)[0] + (*read)[1], 2 * micro_batches);  // in the two steps of warm-up, all micro-batches are computed
    for (const auto count : *read) computed += count;
    counts.push_back(*read);
  }
  EXPECT_LT(computed, 3 * 12 * micro_batches);
  const auto again = train(3, [&](uint32_t rank) {
    auto options = small_training(3, 12);
    options.micro_batches.drop = replay(counts[rank]);
    return options;
  });
  EXPECT_EQ(again[0].hash, recorded[0].hash);
  EXPECT_EQ(again[0].losses, recorded[0].losses);
  for (uint32_t rank = 0; rank < 3; ++rank) {
    for (size_t step = 0; step < 12; ++step) EXPECT_EQ(again[rank].drops[step].computed, counts[rank][step]);
  }
}

TEST(DropTraining, all_ranks_end_equal_with_every_codec_and_compression_though_some_compute_nothing) {
  const auto arc = parse_compress("arc:ratio=0.2,start=0,auto_off=off", "ef14").value();
  const auto int8_rows = parse_compress("arc:ratio=0.2,start=0,auto_off=off,values=int8,values_schedule=two_step", "").value();
  const std::vector<ExchangeOptions> exchanges{exchange_of({}, unisono::Codec::quantized(8)),
                                               exchange_of({}, unisono::Codec::quantized(4)),
                                               exchange_of(arc),
                                               exchange_of(int8_rows),
                                               exchange_of(parse_baseline("top-k:ratio=0.1,start=0").value()),
                                               exchange_of(parse_baseline("power-sgd:ratio=0.2,start=0").value())};
  for (size_t i = 0; i < exchanges.size(); ++i) {
    const auto all = train(
        3,
        [&](uint32_t rank) {
          auto options = small_training(3, 8);
          // Rank 1 computes nothing in some steps. In the fourth step, no rank computes anything.
          auto counts = random_drop_counts(0.3, micro_batches, {.rank = rank, .steps = 8, .seed = 3});
          if (rank == 1) counts[1] = counts[2] = counts[6] = 0;
          counts[3] = 0;
          options.micro_batches.drop = replay(counts, i % 2 == 0 ? "off" : "off:normalize=computed");
          return options;
        },
        exchanges[i]);
    expect_equal(all, unisono::concat("exchange ", i));
    EXPECT_GT(all[0].losses.front(), 5.3f) << i;
    EXPECT_LT(all[0].losses.back(), 5.3f) << i;
  }
}

TEST(DropTraining, a_rank_that_computes_nothing_contributes_zeros_and_the_mean_is_over_the_computed) {
  auto alone = small_training(2, 6);
  const auto expected = train_alone(alone, {.first = 0, .count = 1, .total = 2});
  const auto all = train(2, [&](uint32_t rank) {
    auto options = alone;
    options.micro_batches.drop = replay(std::vector<uint32_t>(6, rank == 0 ? micro_batches : 0), "off:normalize=computed");
    return options;
  });
  for (const auto& rank : all) {
    EXPECT_EQ(rank.hash, expected.hash);
    EXPECT_EQ(rank.losses, expected.losses);
  }
}

// Returns the expected loss of each step. The learning rate is zero, so the parameters never change. So the loss depends only
// on which micro-batches were computed.
std::vector<float> losses_expected(const std::vector<std::vector<uint32_t>>& counts, bool defers) {
  const auto options = small_training(2, counts[0].size());
  const Text text = repeating_text(options.shape.context);
  Model<float> model(options.shape, 1);
  MicroBatches all({.count = micro_batches}, model, {text, options.seed, 1});
  Buffer<float> parameters(model.layout().count);
  initialise(model.layout(), options.seed, parameters);
  std::vector<float> losses;
  std::vector<uint64_t> positions(counts.size());
  for (size_t step = 0; step < counts[0].size(); ++step) {
    double sum = 0;
    uint32_t computed = 0;
    for (size_t rank = 0; rank < counts.size(); ++rank) {
      const uint64_t from = defers ? positions[rank] : step * micro_batches;
      for (uint32_t m = 0; m < counts[rank][step]; ++m)
        sum += model.loss(parameters, all.batch_of({.part = rank, .position = from + m}));
      positions[rank] += counts[rank][step];
      computed += counts[rank][step];
    }
    losses.push_back(static_cast<float>(sum / computed));
  }
  return losses;
}

TEST(DropTraining, the_loss_is_the_mean_over_the_computed_and_dropped_micro_batches_are_deferred_or_skipped) {
  const std::vector<std::vector<uint32_t>> counts{{4, 1, 3, 2, 4}, {2, 4, 0, 1, 4}};
  for (const bool defers : {true, false}) {
    const auto expected = losses_expected(counts, defers);
    const auto all = train(2, [&](uint32_t rank) {
      auto options = small_training(2, counts[0].size());
      options.optimizer.learning_rate = 0;
      options.micro_batches.drop = replay(counts[rank], defers ? "off" : "off:tail=discard");
      return options;
    });
    for (size_t step = 0; step < expected.size(); ++step)
      EXPECT_NEAR(all[1].losses[step], expected[step], 1e-5) << defers << " " << step;
  }
}

TEST(DropTraining, a_step_without_any_computed_micro_batch_keeps_parameters_and_loss) {
  auto options = small_training(2, 3);
  options.micro_batches.drop = replay({4, 0, 0});
  with_group(2, exchange_of(), [&](GradientExchange& exchange) {
    const Text text = repeating_text(options.shape.context);
    auto trainer = Trainer::make(options, {.first = exchange.rank(), .count = 1, .total = 2}, text, exchange).value();
    trainer->remember_hash_after(1);
    ASSERT_TRUE(trainer->run(3, [](const Trainer::Progress&) {}).ok());
    EXPECT_EQ(hash_of(trainer->parameters()), trainer->remembered_hash());
    const auto& losses = trainer->history().losses;
    EXPECT_EQ(losses, std::vector<float>(3, losses[0]));
  });
}

TEST(DropTraining, with_rule_at_even_the_first_micro_batch_can_be_dropped_and_all_ranks_stay_equal) {
  for (const char* text : {"1e-9:rule=at,warmup=1", "0.001:rule=at,warmup=1", "0.003:rule=at,warmup=1,normalize=computed"}) {
    auto options = small_training(3, 8);
    options.micro_batches.delay = unisono::sim::DelayModel::parse("R:compute=0.001").value();
    options.micro_batches.drop = drop(text);
    options.validation_every = 3;
    options.validation_sequences = options.final_validation_sequences = 6;
    const bool compresses = std::string(text).find("0.003") == 0;
    const auto all = train(
        3, [&](uint32_t) { return options; },
        exchange_of(compresses ? parse_compress("arc:ratio=0.2,start=0,auto_off=off", "ef14").value() : GradientCompression{}));
    expect_equal(all, text);
    for (const auto& rank : all) {
      EXPECT_EQ(rank.drops[0].computed, micro_batches);
      EXPECT_TRUE(text[0] != '1' || rank.drops[1].computed == 0u);
    }
  }
}

// An exchange that records how often gradients were ready early.
class Watched final : public GradientExchange {
 public:
  explicit Watched(GradientExchange& inner) : inner_(inner) {}
  uint32_t rank() const override { return inner_.rank(); }
  uint32_t world_size() const override { return inner_.world_size(); }
  void begin(std::span<float> gradients) override {
    early.push_back(0);
    inner_.begin(gradients);
  }
  void ready(size_t first) override {
    early.back() += first > 0;
    inner_.ready(first);
  }
  Status finish() override { return inner_.finish(); }
  bool applied() const override { return inner_.applied(); }
  Status broadcast(std::span<float> values) override { return inner_.broadcast(values); }
  Status average(std::span<float> values) override { return inner_.average(values); }
  Status gather(std::span<const uint64_t> mine, std::span<uint64_t> all) override { return inner_.gather(mine, all); }
  unisono::Result<unisono::DropCompute> make_drop_compute(uint32_t count, const DropOptions& options) override {
    return inner_.make_drop_compute(count, options);
  }
  unisono::Result<std::unique_ptr<ShardedExchange>> make_sharded(const ShardedPlan& plan, std::span<const float> parameters,
                                                                 std::unique_ptr<unisono::ShardOptimizer> optimizer) override {
    return inner_.make_sharded(plan, parameters, std::move(optimizer));
  }
  const ExchangeStatistics& statistics() const override { return inner_.statistics(); }
  const CompressionNotes& compression() const override { return inner_.compression(); }
  std::span<const float> residuals() const override { return inner_.residuals(); }

  std::vector<size_t> early;  // by step: calls of ready() with first > 0

 private:
  GradientExchange& inner_;
};

TEST(DropTraining, gradients_are_sent_during_the_last_micro_batch_only_if_it_is_certain_to_be_the_last) {
  for (const bool certain : {true, false}) {
    with_group(2, exchange_of(), [&](GradientExchange& exchange) {
      Watched watched(exchange);
      auto options = small_training(2, 3);
      options.micro_batches.drop = certain ? replay({4, 2, 4}) : drop("1e-9:warmup=0");
      run(options, {.first = exchange.rank(), .count = 1, .total = 2}, watched);
      for (const size_t early : watched.early) EXPECT_EQ(early > 0, certain);
    });
  }
}

TEST(DropTraining, drop_compute_is_refused_for_one_process_and_for_parts_in_order) {
  auto options = small_training(1, 2);
  options.micro_batches.drop = drop("auto");
  const Text text = repeating_text(options.shape.context);
  const auto exchange = make_local_exchange();
  EXPECT_EQ(Trainer::make(options, {}, text, *exchange).status().code(), unisono::Code::unsupported);
  EXPECT_EQ(Trainer::make(options, {.first = 0, .count = 2, .total = 2}, text, *exchange).status().code(),
            unisono::Code::invalid);
  options.micro_batches = {.count = 3};
  EXPECT_EQ(Trainer::make(options, {}, text, *exchange).status().code(), unisono::Code::invalid);
}

}  // namespace
}  // namespace language_model
