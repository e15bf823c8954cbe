#include <gtest/gtest.h>
#include <unistd.h>

#include <barrier>
#include <bit>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "base/concat.h"
#include "research/model/results.h"
#include "research/model/test_support.h"
#include "research/model/text.h"
#include "research/model/trainer.h"

namespace language_model {
namespace {

using unisono::Code;
using unisono::Status;

TrainingOptions small_training() {
  TrainingOptions options;
  options.shape = {.layers = 1, .width = 32, .heads = 2, .hidden = 48, .context = 24};
  options.optimizer = {.steps = 12, .warm_up_steps = 2, .learning_rate = 3e-3f};
  options.batch = 6;
  options.validation_every = 6;
  options.validation_sequences = 6;
  options.final_validation_sequences = 12;
  return options;
}

// What the ranks of a ThreadExchange share. This exchange runs between threads of one process. It adds the values in rank
// order, and divides the sum by the number of ranks. A group must compute the same averages.
struct SharedState {
  explicit SharedState(uint32_t ranks) : inputs(ranks), barrier(ranks) {}
  std::vector<std::span<float>> inputs;
  std::barrier<> barrier;
};

class ThreadExchange final : public GradientExchange {
 public:
  ThreadExchange(SharedState& shared, uint32_t rank) : shared_(shared), rank_(rank) {}
  uint32_t rank() const override { return rank_; }
  uint32_t world_size() const override { return static_cast<uint32_t>(shared_.inputs.size()); }
  void begin(std::span<float> gradients) override { gradients_ = gradients; }
  void ready(size_t first) override { lowest_ = first; }
  Status finish() override {
    return lowest_ == 0 ? average(gradients_) : Status(Code::internal, "not all gradients were ready");
  }
  bool applied() const override { return true; }
  Status broadcast(std::span<float> values) override {
    shared_.inputs[rank_] = values;
    shared_.barrier.arrive_and_wait();
    if (rank_ != 0) std::copy(shared_.inputs[0].begin(), shared_.inputs[0].end(), values.begin());
    shared_.barrier.arrive_and_wait();
    return {};
  }
  Status average(std::span<float> values) override {
    shared_.inputs[rank_] = values;
    shared_.barrier.arrive_and_wait();
    std::vector<float> sum(shared_.inputs[0].begin(), shared_.inputs[0].end());
    for (size_t rank = 1; rank < world_size(); ++rank) {
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += shared_.inputs[rank][i];
    }
    for (float& value : sum) value /= static_cast<float>(world_size());
    shared_.barrier.arrive_and_wait();
    std::copy(sum.begin(), sum.end(), values.begin());
    return {};
  }
  Status gather(std::span<const uint64_t>, std::span<uint64_t>) override { return {Code::unsupported, "not needed here"}; }
  unisono::Result<unisono::DropCompute> make_drop_compute(uint32_t, const unisono::DropOptions&) override {
    return Status(Code::unsupported, "not needed here");
  }
  unisono::Result<std::unique_ptr<ShardedExchange>> make_sharded(const ShardedPlan&, std::span<const float>,
                                                                 std::unique_ptr<unisono::ShardOptimizer>) override {
    return Status(Code::unsupported, "not needed here");
  }
  const ExchangeStatistics& statistics() const override { return statistics_; }
  const CompressionNotes& compression() const override { return notes_; }
  std::span<const float> residuals() const override { return {}; }

 private:
  SharedState& shared_;
  uint32_t rank_;
  std::span<float> gradients_;
  size_t lowest_ = 1;
  ExchangeStatistics statistics_;
  CompressionNotes notes_;
};

struct Outcome {
  std::vector<float> losses;
  std::vector<ValidationPoint> validation;
  uint64_t hash = 0;
};

Outcome train(const TrainingOptions& options, Parts parts, const Text& text, GradientExchange& exchange) {
  auto trainer = Trainer::make(options, parts, text, exchange);
  EXPECT_TRUE(trainer.ok()) << trainer.status().to_string();
  const auto done = (*trainer)->run(options.optimizer.steps, [](const Trainer::Progress&) {});
  EXPECT_TRUE(done.ok()) << done.to_string();
  return {(*trainer)->history().losses, (*trainer)->history().validation, hash_of((*trainer)->parameters())};
}

Outcome train_alone(const TrainingOptions& options, Parts parts, const Text& text) {
  const auto exchange = make_local_exchange();
  return train(options, parts, text, *exchange);
}

TEST(Training, three_ranks_get_the_bits_of_one_process_with_the_same_parts) {
  const auto options = small_training();
  const Text text = repeating_text(options.shape.context);
  SharedState shared(3);
  std::vector<Outcome> outcomes(3);
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      ThreadExchange exchange(shared, rank);
      outcomes[rank] = train(options, {.first = rank, .count = 1, .total = 3}, text, exchange);
    });
  }
  for (auto& thread : threads) thread.join();
  const Outcome alone = train_alone(options, {.first = 0, .count = 3, .total = 3}, text);
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.losses, alone.losses);
    EXPECT_EQ(outcome.hash, alone.hash);
    ASSERT_EQ(outcome.validation.size(), 2u);
    for (size_t i = 0; i < 2; ++i) EXPECT_EQ(outcome.validation[i].loss, alone.validation[i].loss);
  }
}

TEST(Training, the_whole_batch_at_once_gives_the_same_loss_up_to_rounding) {
  const auto options = small_training();
  const Text text = repeating_text(options.shape.context);
  const Outcome parts = train_alone(options, {.first = 0, .count = 3, .total = 3}, text);
  const Outcome whole = train_alone(options, {}, text);
  ASSERT_EQ(parts.losses.size(), whole.losses.size());
  for (size_t i = 0; i < parts.losses.size(); ++i) EXPECT_NEAR(parts.losses[i], whole.losses[i], 1e-3) << i;
}

TEST(Training, loss_falls) {
  auto options = small_training();
  options.optimizer.steps = 60;
  const Text text = repeating_text(options.shape.context);
  const Outcome outcome = train_alone(options, {}, text);
  EXPECT_GT(outcome.losses.front(), 5.3f);
  EXPECT_LT(outcome.losses.back(), 3.5f);
  EXPECT_LT(outcome.validation.back().loss, 3.5f);
}

TEST(Training, another_seed_gives_another_training) {
  auto options = small_training();
  const Text text = repeating_text(options.shape.context);
  const Outcome first = train_alone(options, {}, text);
  EXPECT_EQ(first.hash, train_alone(options, {}, text).hash);
  options.seed = 2;
  EXPECT_NE(first.hash, train_alone(options, {}, text).hash);
}

TEST(Training, refuses_a_batch_that_cannot_be_shared_equally) {
  auto options = small_training();
  const Text text = repeating_text(options.shape.context);
  const auto exchange = make_local_exchange();
  const auto trainer = Trainer::make(options, {.first = 0, .count = 1, .total = 4}, text, *exchange);
  ASSERT_FALSE(trainer.ok());
  EXPECT_EQ(trainer.status().code(), Code::invalid);
  EXPECT_NE(trainer.status().message().find("6 sequences cannot be cut into 4"), std::string::npos)
      << trainer.status().message();
}

TEST(Training, a_failed_exchange_ends_the_training_with_its_message) {
  class Failing final : public GradientExchange {
   public:
    uint32_t rank() const override { return 0; }
    uint32_t world_size() const override { return 2; }
    void begin(std::span<float>) override {}
    void ready(size_t) override {}
    Status finish() override { return ++steps_ < 3 ? Status() : Status(Code::peer_lost, "rank 1 is gone"); }
    bool applied() const override { return true; }
    Status broadcast(std::span<float>) override { return {}; }
    Status average(std::span<float>) override { return {}; }
    Status gather(std::span<const uint64_t>, std::span<uint64_t>) override { return {}; }
    unisono::Result<unisono::DropCompute> make_drop_compute(uint32_t, const unisono::DropOptions&) override {
      return Status(Code::unsupported, "not needed here");
    }
    unisono::Result<std::unique_ptr<ShardedExchange>> make_sharded(const ShardedPlan&, std::span<const float>,
                                                                   std::unique_ptr<unisono::ShardOptimizer>) override {
      return Status(Code::unsupported, "not needed here");
    }
    const ExchangeStatistics& statistics() const override { return statistics_; }
    const CompressionNotes& compression() const override { return notes_; }
    std::span<const float> residuals() const override { return {}; }

   private:
    int steps_ = 0;
    ExchangeStatistics statistics_;
    CompressionNotes notes_;
  };
  const auto options = small_training();
  const Text text = repeating_text(options.shape.context);
  Failing exchange;
  auto trainer = Trainer::make(options, {.first = 0, .count = 1, .total = 2}, text, exchange).value();
  const auto done = trainer->run(12, [](const Trainer::Progress&) {});
  EXPECT_EQ(done, Status(Code::peer_lost, "rank 1 is gone"));
  EXPECT_EQ(trainer->history().losses.size(), 2u);
}

TEST(Text, parts_of_a_batch_add_up_to_the_batch) {
  const Text text = repeating_text(24);
  const Batch whole = training_batch(text, 5, 9, {0, 6});
  std::vector<uint8_t> inputs, targets;
  for (size_t part = 0; part < 3; ++part) {
    const Batch batch = training_batch(text, 5, 9, {2 * part, 2});
    inputs.insert(inputs.end(), batch.inputs.begin(), batch.inputs.end());
    targets.insert(targets.end(), batch.targets.begin(), batch.targets.end());
  }
  EXPECT_EQ(whole.inputs, inputs);
  EXPECT_EQ(whole.targets, targets);
  EXPECT_TRUE(std::equal(whole.inputs.begin() + 1, whole.inputs.begin() + 24, whole.targets.begin()));
  EXPECT_NE(whole.inputs, training_batch(text, 5, 10, {0, 6}).inputs);
}

TEST(Text, shortest_usable_text_gives_batches_and_a_shorter_one_is_refused) {
  const Text text = Text::from_bytes(std::vector<uint8_t>(50, 'x'), 0.5, 24).value();
  EXPECT_EQ(training_batch(text, 1, 1, {0, 3}).inputs.size(), 72u);
  EXPECT_EQ(validation_batch(text, 4, {0, 4}).inputs.size(), 96u);
  EXPECT_FALSE(Text::from_bytes(std::vector<uint8_t>(49, 'x'), 0.5, 24).ok());
  EXPECT_FALSE(Text::from_bytes({}, 0.5, 24).ok());
  EXPECT_FALSE(Text::from_bytes(std::vector<uint8_t>(50, 'x'), std::numeric_limits<double>::quiet_NaN(), 24).ok());
  const auto missing = Text::load("/nowhere/text", 0.5, 24);
  EXPECT_NE(missing.status().message().find("/nowhere/text"), std::string::npos);
}

TEST(AdamW, agrees_with_the_formulas_in_double) {
  const ParameterLayout layout({.layers = 1, .width = 2, .heads = 1, .hidden = 1, .context = 1});
  const OptimizerOptions options{.steps = 5, .warm_up_steps = 2, .learning_rate = 0.01f, .norm_max = 0.5f};
  AdamW optimizer(layout, options);
  std::vector<float> parameters(layout.count, 0.3f), gradients(layout.count);
  std::vector<double> expected(layout.count, 0.3f), mean(layout.count), square(layout.count);
  for (size_t step = 0; step < 5; ++step) {
    double norm = 0;
    for (size_t i = 0; i < gradients.size(); ++i) {
      gradients[i] = static_cast<float>(std::sin(static_cast<double>(i + 31 * step))) * (step == 3 ? 1e-4f : 0.1f);
      norm += static_cast<double>(gradients[i]) * gradients[i];
    }
    norm = std::sqrt(norm);
    EXPECT_NEAR(optimizer.step(gradients, parameters), norm, 1e-6 * norm);
    const double rate = step == 0 ? 0.005 : step == 1 ? 0.01 : 0.01 * static_cast<double>(5 - step) / 3;
    EXPECT_NEAR(learning_rate(options, step), rate, 1e-9);
    const double clip = std::min(1.0, 0.5 / norm), t = static_cast<double>(step + 1);
    for (const Region& region : layout.regions) {
      for (size_t i = region.offset; i < region.offset + region.count(); ++i) {
        const double g = gradients[i] * clip;
        mean[i] = 0.9 * mean[i] + 0.1 * g;
        square[i] = 0.95 * square[i] + 0.05 * g * g;
        const double direction = mean[i] / (1 - std::pow(0.9, t)) / (std::sqrt(square[i] / (1 - std::pow(0.95, t))) + 1e-8);
        expected[i] = expected[i] * (region.deviation > 0 ? 1 - rate * 0.1 : 1) - rate * direction;
        ASSERT_NEAR(parameters[i], expected[i], 2e-6) << region.name << " step " << step;
      }
    }
  }
  EXPECT_EQ(learning_rate(options, 5), 0.0f);
}

TEST(Comparison, identical_requires_equal_bits) {
  const ReferenceRun reference{.losses = {3, 2}, .parameter_hash = 7};
  const auto same = compare({3, 2, 1}, 7, reference, 0);
  EXPECT_TRUE(same.ok() && same.losses_identical && same.parameters_identical);
  const auto near = compare({3, std::nextafter(2.0f, 3.0f)}, 8, reference, 1e-3);
  EXPECT_TRUE(near.ok() && !near.losses_identical && !near.parameters_identical);
  EXPECT_FALSE(compare({3, std::nextafter(2.0f, 3.0f)}, 7, reference, 0).ok());
}

TEST(Comparison, a_loss_that_is_missing_or_not_a_number_is_never_ok) {
  const ReferenceRun reference{.losses = {3, 2, 1}, .parameter_hash = 7};
  EXPECT_FALSE(compare({3, 2}, 7, reference, 1e9).ok());
  EXPECT_FALSE(compare({3, std::numeric_limits<float>::quiet_NaN(), 1}, 7, reference, 1e9).ok());
}

Results some_results() {
  Results results;
  results.parameter_count = 1000;
  results.history.losses = {5, 4, 3, 2};
  results.history.validation = {{2, 3.5f}, {4, 2.5f}};
  results.history.seconds = {0.5, 1, 1.5, 2};
  results.sent_bytes = {10, 20, 30, 40};
  results.sequences = {16, 31, 46, 62};
  results.ranks = {
      {.parameter_hash = 1, .sent_bytes = 24000}, {.parameter_hash = 1}, {.parameter_hash = 1}, {.parameter_hash = 1}};
  results.in_order = ReferenceRun{.losses = {5, 4}};
  results.in_order_comparison = compare(results.history.losses, 0, *results.in_order, 0);
  return results;
}

TEST(Comparison, without_a_tolerance_the_comparison_has_no_verdict) {
  const auto c = compare({1, 2, 3}, 0, {.losses = {1, 2, 4}, .parameter_hash = 1}, std::nullopt);
  EXPECT_DOUBLE_EQ(c.difference_max, 1);
  EXPECT_FALSE(c.losses_identical);
  EXPECT_TRUE(c.ok());
}

TEST(Results, one_rank_with_other_parameters_is_a_fault_that_names_it) {
  Results results = some_results();
  EXPECT_TRUE(results.parameters_identical());
  EXPECT_TRUE(results.faults().empty());
  results.ranks[2].parameter_hash = 9;
  EXPECT_FALSE(results.parameters_identical());
  ASSERT_EQ(results.faults().size(), 1u);
  EXPECT_NE(results.faults()[0].find("rank 2"), std::string::npos);
  EXPECT_NE(table(results).find("NO"), std::string::npos);
}

TEST(Results, a_loss_that_is_not_a_number_is_a_fault) {
  Results results = some_results();
  results.history.losses.push_back(std::numeric_limits<float>::infinity());
  EXPECT_EQ(results.faults().size(), 1u);
}

TEST(Results, bytes_are_compared_with_the_ideal) {
  // 2 (n - 1) / n × 4000 bytes with n = 4 are 6000 bytes per step.
  EXPECT_EQ(ideal_bytes(some_results()), 6000);
  EXPECT_NE(table(some_results()).find("1.0000"), std::string::npos) << table(some_results());
}

TEST(Results, table_and_summary_report_compression) {
  Results results = some_results();
  EXPECT_TRUE(nlohmann::json::parse(summary_json(results))["compression"].is_null());
  EXPECT_EQ(table(results).find("compressed"), std::string::npos);
  results.compression = {.method = "arc",
                         .elements = 1000,
                         .payload = 250,
                         .skipped_steps = 1,
                         .off_steps = 2,
                         .off = "it did not pay",
                         .warnings = {"beware"}};
  const auto json = nlohmann::json::parse(summary_json(results))["compression"];
  EXPECT_EQ(json["method"], "arc");
  EXPECT_EQ(json["payload_ratio"], 0.25);
  EXPECT_EQ(json["off"], "it did not pay");
  EXPECT_EQ(json["warnings"][0], "beware");
  const auto shown = table(results);
  for (const char* part :
       {"compressed as arc", "0.2500 of all values", "2 steps: it did not pay", "1 steps skipped", "warning: beware"}) {
    EXPECT_NE(shown.find(part), std::string::npos) << part << " is not in\n" << shown;
  }
}

TEST(Results, dropped_micro_batches_are_reported_in_total_and_per_rank) {
  Results results = some_results();
  EXPECT_EQ(nlohmann::json::parse(summary_json(results))["drop_compute"], nullptr);
  for (size_t rank = 0; rank < 4; ++rank) {
    results.ranks[rank].planned = 100;
    results.ranks[rank].computed = 100 - 10 * rank;
  }
  results.drop = DropResults{.settings = {.count = 12, .delay = "L:mu=0.02"}, .options = "auto", .window = {}, .total = {}};
  EXPECT_FALSE(results.drop->speedup());
  results.drop->window.steps = 50;
  results.drop->window.threshold = results.drop->total.threshold = 0.25;
  results.drop->total.predicted_total = 1.5;
  results.drop->window.per_second_before = 200;
  results.drop->window.per_second = 250;
  const auto json = nlohmann::json::parse(summary_json(results));
  EXPECT_DOUBLE_EQ(json["drop_compute"]["drop"], 0.15);
  EXPECT_DOUBLE_EQ(json["drop_compute"]["measured_speedup"], 1.25);
  EXPECT_DOUBLE_EQ(json["drop_compute"]["total"]["predicted_speedup_total"], 1.5);
  EXPECT_DOUBLE_EQ(json["drop_compute"]["total"]["threshold_s"], 0.25);
  EXPECT_EQ(json["drop_compute"]["micro_batches"], 12);
  EXPECT_DOUBLE_EQ(json["ranks"][3]["drop"], 0.3);
  const auto shown = table(results);
  for (const char* part :
       {"12 micro-batches of each rank", "above its base of L:mu=0.02", "left out: 15.00 %; by rank: 0.00 10.00 20.00 30.00 %",
        "threshold 0.25 s", "1.25 times the rate before"}) {
    EXPECT_NE(shown.find(part), std::string::npos) << part << " is not in\n" << shown;
  }
}

TEST(Results, files_are_written_and_can_be_read_back) {
  const auto directory = std::filesystem::temp_directory_path() / (unisono::concat("language_model_test_", getpid()));
  const auto written = write_files(some_results(), (directory / "deep" / "er").string());
  ASSERT_TRUE(written.ok()) << written.to_string();
  std::ifstream json_file(directory / "deep" / "er" / "summary.json");
  const auto json = nlohmann::json::parse(json_file);
  EXPECT_EQ(json["world_size"], 4);
  EXPECT_EQ(json["parameters_identical"], true);
  EXPECT_EQ(json["one_process_in_order"]["losses_identical"], true);
  std::ifstream csv_file(directory / "deep" / "er" / "loss.csv");
  std::stringstream csv;
  csv << csv_file.rdbuf();
  EXPECT_EQ(csv.str(),
            "step,loss,validation,one_process_in_order,one_process_whole_batch,sent_bytes,seconds,sequences\n1,5,,5,,10,0.5,"
            "16\n2,4,3.5,4,,20,1,31\n3,3,,,,30,1.5,46\n4,2,2.5,,,40,2,62\n");
  std::filesystem::remove_all(directory);
}

TEST(Results, a_directory_that_cannot_be_made_is_named) {
  const auto written = write_files(some_results(), "/dev/null/out");
  EXPECT_EQ(written.code(), Code::unavailable);
  EXPECT_NE(written.message().find("/dev/null/out"), std::string::npos);
}

}  // namespace
}  // namespace language_model
