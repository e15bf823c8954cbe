#include "research/compression/compressed_exchange.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "research/model/bucket_reducer.h"
#include "research/model/test_support.h"

namespace language_model {
namespace {

using unisono::Status;

GradientCompression compress(const std::string& text) { return parse_compress(text, "").value(); }
GradientCompression baseline(const std::string& text) { return parse_baseline(text).value(); }

// All methods. With these options they compress from the first step on, even if the links are fast.
std::vector<GradientCompression> all_methods() {
  return {compress("arc:ratio=0.2,start=0,auto_off=off"), compress("random-k:ratio=0.2,start=0,auto_off=off"),
          compress("arc:ratio=0.2,start=0,auto_off=off,values=int8,values_schedule=two_step"),
          baseline("top-k:ratio=0.1,start=0"), baseline("power-sgd:ratio=0.2,start=0")};
}

TrainingOptions small_training() {
  TrainingOptions options;
  options.shape = {.layers = 1, .width = 64, .heads = 2, .hidden = 96, .context = 24};
  options.optimizer = {.steps = 12, .warm_up_steps = 2, .learning_rate = 3e-3f};
  options.batch = 6;
  options.validation_every = 0;
  return options;
}

struct Trained {
  std::vector<float> losses;
  uint64_t hash = 0;
  CompressionNotes notes;
  uint64_t sent_bytes = 0;
};

std::vector<Trained> train(uint32_t ranks, const GradientCompression& compression,
                           const TrainingOptions& options = small_training()) {
  const Text text = repeating_text(options.shape.context);
  std::vector<Trained> all(ranks);
  const ExchangeOptions exchange_options{.bucket_bytes = 32 << 10,
                                         .exact_tail = 1,
                                         .compression = compression,
                                         .parameters = exchanged_parameters(ParameterLayout(options.shape))};
  with_group(ranks, exchange_options, [&](GradientExchange& exchange) {
    const uint32_t rank = exchange.rank();
    auto trainer = Trainer::make(options, {.first = rank, .count = 1, .total = ranks}, text, exchange).value();
    const auto done = trainer->run(options.optimizer.steps, [](const Trainer::Progress&) {});
    ASSERT_TRUE(done.ok()) << done.to_string();
    all[rank] = {trainer->history().losses, hash_of(trainer->parameters()), exchange.compression(),
                 exchange.statistics().sent_bytes};
  });
  return all;
}

TEST(Buckets, whole_parameters_from_the_end_as_many_as_fill_one) {
  const std::vector<ExchangedParameter> parameters{{"a", 4, 5}, {"b", 1, 3}, {"c", 10, 2, true}, {"d", 1, 1}};
  const auto buckets = make_buckets(parameters, 21);
  ASSERT_EQ(buckets.size(), 2u);
  EXPECT_EQ(buckets[0].offset, 23u);
  EXPECT_EQ(buckets[0].count, 21u);
  EXPECT_EQ(buckets[0].first, 2u);
  EXPECT_EQ(buckets[1].offset, 0u);
  EXPECT_EQ(buckets[1].count, 23u);
  EXPECT_EQ(buckets[1].parameters[1].name, "b");
  EXPECT_EQ(make_buckets(parameters, 1).size(), 4u);
  EXPECT_TRUE(make_buckets({}, 1).empty());
  EXPECT_EQ(shape_of(parameters[0]), (std::vector<uint64_t>{4, 5}));
  EXPECT_EQ(shape_of(parameters[1]), (std::vector<uint64_t>{3}));
  EXPECT_EQ(shape_of(parameters[2]), (std::vector<uint64_t>{2, 10}));
}

TEST(CompressedExchange, a_matrix_by_columns_sends_whole_columns_and_any_other_whole_rows) {
  constexpr size_t rows = 40, columns = 70;
  for (const bool by_columns : {false, true}) {
    with_group(
        2, {.compression = compress("arc:ratio=0.1,start=0,auto_off=off"), .parameters = {{"a", rows, columns, by_columns}}},
        [&](GradientExchange& exchange) {
          std::vector<float> values(rows * columns);
          for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(1 + i % 13);
          const auto given = values;
          exchange.begin(values);
          exchange.ready(0);
          ASSERT_TRUE(exchange.finish().ok());
          size_t sent = 0;
          for (size_t i = 0; i < values.size(); ++i) {
            const size_t neighbour = by_columns ? (i + columns) % values.size() : i / columns * columns + (i + 1) % columns;
            EXPECT_EQ(values[i] == 0, values[neighbour] == 0) << i;
            EXPECT_TRUE(values[i] == 0 || values[i] == given[i]) << i;
            sent += values[i] != 0;
          }
          EXPECT_EQ(sent, by_columns ? 7 * rows : 4 * columns);
        });
  }
}

TEST(CompressedExchange, every_method_leaves_the_same_parameters_on_all_ranks_and_the_loss_falls) {
  auto options = small_training();
  options.optimizer.steps = 16;
  for (const auto& method : all_methods()) {
    const auto all = train(3, method, options);
    for (const auto& rank : all) {
      EXPECT_EQ(rank.hash, all[0].hash) << method.to_string();
      EXPECT_EQ(rank.losses, all[0].losses) << method.to_string();
    }
    EXPECT_LT(all[0].losses.back(), 5.1f) << method.to_string();
    EXPECT_GT(all[0].losses.front(), 5.3f) << method.to_string();
    EXPECT_EQ(all[0].notes.method, method.to_string());
    EXPECT_LT(all[0].notes.payload, all[0].notes.elements / 2) << method.to_string();
    EXPECT_EQ(all[0].notes.skipped_steps, 0u);
  }
}

TEST(CompressedExchange, all_rows_kept_train_as_without_compression) {
  const auto dense = train(3, {});
  EXPECT_TRUE(dense[0].notes.method.empty());
  for (const auto& whole : {compress("arc:ratio=1,start=0,auto_off=off"), baseline("top-k:ratio=1,start=0"), compress("dense"),
                            baseline("power-sgd:start=1000")}) {
    const auto compressed = train(3, whole);
    ASSERT_EQ(compressed[0].losses.size(), dense[0].losses.size());
    for (size_t i = 0; i < dense[0].losses.size(); ++i)
      EXPECT_NEAR(compressed[0].losses[i], dense[0].losses[i], 1e-3) << whole.to_string() << " step " << i;
    EXPECT_EQ(compressed[0].notes.elements, compressed[0].notes.payload);
  }
}

TEST(CompressedExchange, before_its_first_step_each_method_sends_all_and_then_less) {
  auto options = small_training();
  options.optimizer.steps = 4;
  for (const auto& method :
       {compress("arc:start=2,auto_off=off"), baseline("top-k:ratio=0.1,start=2"), baseline("power-sgd:start=2")}) {
    const auto all = train(2, method, options);
    const double share = static_cast<double>(all[0].notes.payload) / static_cast<double>(all[0].notes.elements);
    EXPECT_GT(share, 0.5) << method.to_string();
    EXPECT_LT(share, 0.7) << method.to_string();
  }
}

TEST(CompressedExchange, power_sgd_gives_no_more_values_to_collectives_than_arc) {
  const auto arc = train(2, compress("arc:ratio=0.2,rank=4,start=0,auto_off=off"));
  const auto power = train(2, baseline("power-sgd:ratio=0.2,rank=4,start=0"));
  EXPECT_LE(power[0].notes.payload, arc[0].notes.payload);
  EXPECT_GT(power[0].notes.payload, arc[0].notes.payload / 2);
}

TEST(CompressedExchange, values_after_the_parameters_are_averaged_exactly) {
  for (const auto& method : all_methods()) {
    with_group(3, {.compression = method, .parameters = {{"a", 64, 64}}}, [&](GradientExchange& exchange) {
      std::vector<float> values(64 * 64 + 1, 1.0f);
      values.back() = static_cast<float>(exchange.rank()) + 0.5f;
      exchange.begin(values);
      exchange.ready(64 * 64);
      exchange.ready(0);
      const auto done = exchange.finish();
      ASSERT_TRUE(done.ok()) << done.to_string();
      EXPECT_TRUE(exchange.applied());
      EXPECT_EQ(values.back(), 1.5f) << method.to_string();
      EXPECT_GT(exchange.statistics().sent_bytes, 0u);
    });
  }
}

TEST(CompressedExchange, a_gradient_that_is_not_finite_skips_the_step_on_all_ranks) {
  with_group(3, {.compression = compress("arc:start=0,auto_off=off"), .parameters = {{"a", 64, 64}}},
             [](GradientExchange& exchange) {
               std::vector<float> values(64 * 64 + 1, 1.0f);
               for (const bool finite : {true, false, true}) {
                 std::fill(values.begin(), values.end(), 1.0f);
                 if (!finite && exchange.rank() == 1) values[5] = std::numeric_limits<float>::infinity();
                 exchange.begin(values);
                 exchange.ready(0);
                 ASSERT_TRUE(exchange.finish().ok());
                 EXPECT_EQ(exchange.applied(), finite);
               }
               EXPECT_EQ(exchange.compression().skipped_steps, 1u);
             });
}

TEST(CompressedExchange, a_trainer_does_not_touch_its_parameters_in_a_step_that_is_skipped) {
  class Skipping final : public GradientExchange {
   public:
    uint32_t rank() const override { return 0; }
    uint32_t world_size() const override { return 1; }
    void begin(std::span<float>) override {}
    void ready(size_t) override {}
    Status finish() override { return {}; }
    bool applied() const override { return false; }
    Status broadcast(std::span<float>) override { return {}; }
    Status average(std::span<float>) override { return {}; }
    Status gather(std::span<const uint64_t>, std::span<uint64_t>) override { return {}; }
    unisono::Result<unisono::DropCompute> make_drop_compute(uint32_t, const unisono::DropOptions&) override {
      return Status(unisono::Code::unsupported, "not needed here");
    }
    unisono::Result<std::unique_ptr<ShardedExchange>> make_sharded(const ShardedPlan&, std::span<const float>,
                                                                   std::unique_ptr<unisono::ShardOptimizer>) override {
      return Status(unisono::Code::unsupported, "not needed here");
    }
    const ExchangeStatistics& statistics() const override { return statistics_; }
    const CompressionNotes& compression() const override { return notes_; }
    std::span<const float> residuals() const override { return {}; }

   private:
    ExchangeStatistics statistics_;
    CompressionNotes notes_;
  };
  const auto options = small_training();
  const Text text = repeating_text(options.shape.context);
  Skipping exchange;
  auto trainer = Trainer::make(options, {}, text, exchange).value();
  const auto before = hash_of(trainer->parameters());
  ASSERT_TRUE(trainer->run(3, [](const Trainer::Progress&) {}).ok());
  EXPECT_EQ(hash_of(trainer->parameters()), before);
  EXPECT_EQ(trainer->history().losses.size(), 3u);
}

TEST(CompressedExchange, the_reason_for_off_and_each_warning_are_reported_once) {
  class ReportingReducer final : public BucketReducer {
   public:
    Status reduce(size_t, std::span<float>) override { return {}; }
    unisono::Result<StepOutcome> finish() override {
      ++step_;
      return StepOutcome{.elements = 4,
                         .payload = step_ < 3 ? 4u : 1u,
                         .off = step_ < 3 ? "it would not pay" : "",
                         .warnings = {"beware", step_ < 3 ? "beware" : "and so on"}};
    }

   private:
    int step_ = 0;
  };
  unisono::Options alone;
  alone.rank = 0;
  alone.world_size = 1;
  auto group = unisono::Group::join(alone);
  ASSERT_TRUE(group.ok()) << group.status().to_string();
  const std::vector<ExchangedParameter> parameters{{"a", 2, 2}};
  const auto exchange = make_compressed_exchange(*std::move(group), make_buckets(parameters, 1),
                                                 std::make_unique<ReportingReducer>(), "some method");
  std::vector<float> values(4);
  for (int step = 0; step < 4; ++step) {
    exchange->begin(values);
    exchange->ready(0);
    ASSERT_TRUE(exchange->finish().ok());
  }
  const auto& notes = exchange->compression();
  EXPECT_EQ(notes.method, "some method");
  EXPECT_EQ(notes.off_steps, 2u);
  EXPECT_EQ(notes.off, "it would not pay");
  EXPECT_EQ(notes.warnings, (std::vector<std::string>{"beware", "and so on"}));
  EXPECT_EQ(notes.elements, 16u);
  EXPECT_EQ(notes.payload, 10u);
}

TEST(CompressedExchange, the_library_s_warning_about_feedback_unsuited_to_adam_is_reported) {
  auto options = small_training();
  options.optimizer.steps = 6;
  const auto warned = train(2, compress("arc:start=0,auto_off=off,feedback=ef21"), options);
  ASSERT_EQ(warned[0].notes.warnings.size(), 1u);
  EXPECT_NE(warned[0].notes.warnings[0].find("for SGD"), std::string::npos);
  EXPECT_EQ(warned[0].notes.off_steps, 0u);
}

// Returns the error that each rank gets if ranks start with different options.
std::vector<Status> met(const std::vector<ExchangeOptions>& options) {
  std::vector<Status> statuses(options.size());
  with_ranks(
      static_cast<uint32_t>(options.size()), [&](uint32_t rank) { return options[rank]; },
      [&](uint32_t rank, unisono::Result<std::unique_ptr<GradientExchange>> exchange) { statuses[rank] = exchange.status(); });
  return statuses;
}

TEST(CompressedExchange, ranks_with_different_options_end_with_an_error_that_names_both) {
  const std::vector<ExchangedParameter> parameters{{"a", 64, 64}};
  const auto with = [&](GradientCompression method) {
    return ExchangeOptions{.compression = std::move(method), .parameters = parameters};
  };
  for (const auto& other :
       {compress("arc:ratio=0.1"), compress("arc:ratio=0.2,seed=3"), baseline("top-k"), GradientCompression{}}) {
    for (const auto& status : met({with(compress("arc:ratio=0.2")), with(compress("arc:ratio=0.2")), with(other)})) {
      EXPECT_EQ(status.code(), unisono::Code::invalid);
      EXPECT_NE(status.message().find("config_mismatch"), std::string::npos) << status.message();
      EXPECT_NE(status.message().find("rank 2"), std::string::npos) << status.message();
      EXPECT_NE(status.message().find(other.to_string().empty() ? "without compression" : other.to_string()), std::string::npos)
          << status.message();
    }
  }
}

TEST(CompressedExchange, ranks_with_different_shapes_end_with_the_error_of_the_library) {
  for (const auto& status : met({{.compression = compress("arc"), .parameters = {{"a", 64, 64}}},
                                 {.compression = compress("arc"), .parameters = {{"a", 64, 65}}}})) {
    EXPECT_EQ(status.code(), unisono::Code::invalid);
    EXPECT_NE(status.message().find("config_mismatch: parameters differ: rank "), std::string::npos) << status.message();
  }
}

TEST(CompressedExchange, a_rank_that_leaves_ends_the_step_of_the_others_with_an_error) {
  for (const auto& method : all_methods()) {
    with_group(3, {.compression = method, .parameters = {{"a", 64, 64}}}, [&](GradientExchange& exchange) {
      if (exchange.rank() == 2) return;  // the links of rank 2 close
      std::vector<float> values(64 * 64 + 1, 1.0f);
      exchange.begin(values);
      exchange.ready(0);
      const auto done = exchange.finish();
      EXPECT_EQ(done.code(), unisono::Code::peer_lost) << method.to_string() << ": " << done.to_string();
    });
  }
}

}  // namespace
}  // namespace language_model
