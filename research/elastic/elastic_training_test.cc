// Tests of the elastic training loop with simulated averaging steps, and of its event log and display. Also tests exact
// training that restarts from a checkpoint.
#include "research/elastic/elastic_training.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/concat.h"
#include "research/elastic/elastic_view.h"
#include "research/elastic/restartable_training.h"
#include "research/model/test_support.h"

namespace language_model {
namespace {

using unisono::AveragingReport;
using unisono::Code;
using unisono::MoshpitStep;
using unisono::Result;
using unisono::Status;

const ModelShape tiny{.layers = 1, .width = 16, .heads = 2, .hidden = 24, .context = 16};

LocalTrainerOptions training(uint64_t stream = 0) {
  return {.shape = tiny, .optimizer = {.steps = 1000, .warm_up_steps = 5}, .batch = 4, .seed = 3, .stream = stream};
}

// Reports an averaging step after every fourth local step, but does not change parameters.
class NoAveragingSteps final : public AveragingSteps {
 public:
  Result<MoshpitStep> after_step(std::span<float>, uint64_t samples) override {
    if (++steps_ > refused_after) return Status(Code::unavailable, "SHUTTING_DOWN");
    samples_ += samples;
    MoshpitStep step;
    if (steps_ % 4 == 0) step.averaging = std::make_shared<AveragingReport>();
    return step;
  }
  Result<MoshpitStep> finish(std::span<float>) override {
    return ++finished, MoshpitStep{.began = true, .averaging = std::make_shared<AveragingReport>()};
  }
  uint64_t steps() const override { return steps_; }
  unisono::MoshpitSgdReport report() const override { return {}; }

  uint64_t refused_after = UINT64_MAX, finished = 0, samples_ = 0, steps_ = 0;
};

class ElasticTraining : public testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        std::filesystem::temp_directory_path() /
        (unisono::concat("elastic_training_", getpid(), "_", testing::UnitTest::GetInstance()->current_test_info()->name()));
    std::filesystem::create_directory(folder_);
    loop_.batch = 4;
    loop_.final_validation_sequences = 8;
    loop_.clock = [this] { return now_ += 0.25; };
    loop_.stop_requested = [this] { return stop_requested_; };
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  ElasticOutcome train(AveragingSteps& averaging_steps, LocalTrainer& trainer, const std::string& events = "") {
    auto log = EventLog::open(events);
    EXPECT_TRUE(log.ok());
    return train_elastic(trainer, averaging_steps, loop_, *log, [](const TrainingTally&, const AveragingReport*) {});
  }
  std::vector<nlohmann::json> lines(const std::string& path) {
    std::vector<nlohmann::json> all;
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) all.push_back(nlohmann::json::parse(line));
    return all;
  }

  std::filesystem::path folder_;
  Text text_ = repeating_text(tiny.context);
  ElasticLoopOptions loop_;
  double now_ = 0;
  bool stop_requested_ = false;
};

TEST_F(ElasticTraining, ends_after_the_runs_steps_with_a_last_averaging_and_the_held_out_loss) {
  loop_.steps = 60;
  LocalTrainer trainer(training(), text_);
  const float before = trainer.held_out_loss(8);
  NoAveragingSteps averaging_steps;
  averaging_steps.steps_ = 20;  // the run has made 20 steps before this peer joins
  const auto outcome = train(averaging_steps, trainer);
  EXPECT_EQ(outcome.why, "steps");
  EXPECT_EQ(outcome.tally.steps, 40u);
  EXPECT_EQ(outcome.tally.run_steps, 60u);
  EXPECT_EQ(averaging_steps.samples_, 160u);
  EXPECT_EQ(averaging_steps.finished, 1u);
  ASSERT_TRUE(outcome.held_out);
  EXPECT_LT(*outcome.held_out, before - 0.3f);
}

TEST_F(ElasticTraining, a_process_that_is_stopped_leaves_without_another_averaging) {
  LocalTrainer trainer(training(), text_);
  NoAveragingSteps averaging_steps;
  auto log = EventLog::open("");
  const auto outcome =
      train_elastic(trainer, averaging_steps, loop_, *log,
                    [&](const TrainingTally& tally, const AveragingReport*) { stop_requested_ = tally.steps == 3; });
  EXPECT_EQ(outcome.why, "told");
  EXPECT_EQ(outcome.tally.steps, 3u);
  EXPECT_EQ(averaging_steps.finished, 0u);
  EXPECT_FALSE(outcome.held_out);
}

TEST_F(ElasticTraining, a_run_that_was_left_ends_the_training_with_the_reason) {
  LocalTrainer trainer(training(), text_);
  NoAveragingSteps averaging_steps;
  averaging_steps.refused_after = 2;
  EXPECT_EQ(train(averaging_steps, trainer).why, "refused: unavailable: SHUTTING_DOWN");
}

TEST_F(ElasticTraining, ends_in_time_and_separates_useful_time_from_total_time) {
  loop_.seconds = 20;
  LocalTrainer trainer(training(), text_);
  NoAveragingSteps averaging_steps;
  const auto outcome = train(averaging_steps, trainer);
  EXPECT_EQ(outcome.why, "seconds");
  // The test's clock advances by 0.25 s with each reading. A step's computing is timed by two readings in a row.
  EXPECT_DOUBLE_EQ(outcome.tally.useful_s, 0.25 * static_cast<double>(outcome.tally.steps));
  EXPECT_GT(outcome.tally.useful_share(), 0.2);
  EXPECT_LT(outcome.tally.useful_share(), 0.5);
}

TEST_F(ElasticTraining, events_are_whole_json_lines) {
  loop_.steps = 9;
  loop_.validate_every = 6;
  loop_.validation_sequences = 4;
  LocalTrainer trainer(training(), text_);
  NoAveragingSteps averaging_steps;
  const auto path = (folder_ / "events.jsonl").string();
  train(averaging_steps, trainer, path);
  std::string kinds;
  for (const auto& line : lines(path)) kinds += line.at("kind").get<std::string>() + " ";
  EXPECT_EQ(kinds, "averaging held_out averaging averaging held_out ended ");
  const auto last = lines(path).back();
  EXPECT_EQ(last.at("why"), "steps");
  EXPECT_EQ(last.at("steps"), 9);
  EXPECT_EQ(last.at("samples"), 36);
  EXPECT_EQ(last.at("hash").get<std::string>().size(), 16u);
}

TEST_F(ElasticTraining, streams_differ_and_each_stream_is_reproducible) {
  LocalTrainer a(training(1), text_), again(training(1), text_), b(training(2), text_);
  const float loss = a.compute(7);
  EXPECT_EQ(again.compute(7), loss);
  EXPECT_NE(a.compute(8), loss);
  EXPECT_NE(b.compute(7), loss);
}

TEST_F(ElasticTraining, loaded_moments_continue_with_the_same_bits) {
  LocalTrainer a(training(), text_), b(training(), text_);
  for (uint64_t step = 0; step < 4; ++step) a.compute(step), a.apply(step);
  ASSERT_TRUE(b.load_optimizer(a.save_optimizer()).ok());
  std::ranges::copy(a.parameters(), b.parameters().begin());
  for (auto* trainer : {&a, &b}) trainer->compute(4), trainer->apply(4);
  EXPECT_EQ(hash_of(a.parameters()), hash_of(b.parameters()));
  auto wrong = a.save_optimizer();
  wrong.resize(wrong.size() - 1);
  EXPECT_EQ(b.load_optimizer(wrong).code(), Code::invalid);
  wrong = a.save_optimizer();
  const double nan = std::nan("");
  std::memcpy(wrong.data() + 16, &nan, sizeof nan);
  EXPECT_EQ(b.load_optimizer(wrong).code(), Code::invalid);
}

TEST_F(ElasticTraining, a_job_restarted_from_a_checkpoint_ends_with_the_bits_of_an_uninterrupted_one) {
  const auto run = [&](const std::string& checkpoint, std::vector<uint64_t> ends) {
    uint64_t hash = 0;
    for (const auto end : ends) {
      auto exchange = make_local_exchange();
      LocalTrainer trainer(training(), text_);
      RestartableOptions options{.loop = loop_, .checkpoint = (folder_ / checkpoint).string(), .checkpoint_every = 10};
      options.loop.steps = end;
      auto log = EventLog::open("");
      const auto outcome =
          train_restartable(trainer, *exchange, options, *log, [](const TrainingTally&, const AveragingReport*) {});
      EXPECT_TRUE(outcome.ok() && outcome->why == "steps" && outcome->tally.run_steps == end);
      hash = hash_of(trainer.parameters());
    }
    return hash;
  };
  // The first run ends at step 17, between two checkpoints. The second repeats the steps from the checkpoint at step 10.
  EXPECT_EQ(run("a", {17, 30}), run("b", {30}));
}

TEST_F(ElasticTraining, a_job_that_is_stopped_loses_no_step) {
  auto exchange = make_local_exchange();
  LocalTrainer trainer(training(), text_);
  const auto path = (folder_ / "checkpoint").string();
  auto log = EventLog::open("");
  const auto outcome =
      train_restartable(trainer, *exchange, {.loop = loop_, .checkpoint = path, .checkpoint_every = 1000}, *log,
                        [&](const TrainingTally& tally, const AveragingReport*) { stop_requested_ = tally.run_steps == 7; });
  ASSERT_TRUE(outcome.ok());
  EXPECT_EQ(outcome->why, "told");
  LocalTrainer again(training(), text_);
  EXPECT_EQ(*read_checkpoint(path, again), 7u);
  EXPECT_EQ(hash_of(again.parameters()), hash_of(trainer.parameters()));
}

TEST_F(ElasticTraining, a_checkpoint_of_another_model_or_a_truncated_one_is_refused) {
  LocalTrainer trainer(training(), text_);
  const auto path = (folder_ / "checkpoint").string();
  EXPECT_EQ(*read_checkpoint(path, trainer), 0u) << "there is none";
  ASSERT_TRUE(write_checkpoint(path, 12, trainer).ok());
  EXPECT_EQ(*read_checkpoint(path, trainer), 12u);
  auto other = training();
  other.shape.hidden = 32;
  LocalTrainer larger(other, text_);
  EXPECT_EQ(read_checkpoint(path, larger).status().code(), Code::invalid);
  for (const size_t bytes : {size_t{0}, size_t{8}, size_t{1000}, static_cast<size_t>(std::filesystem::file_size(path) - 1)}) {
    std::filesystem::resize_file(path, bytes);
    EXPECT_EQ(read_checkpoint(path, trainer).status().code(), Code::invalid) << bytes;
    ASSERT_TRUE(write_checkpoint(path, 12, trainer).ok());
  }
}

TEST(ElasticView, a_page_has_no_line_that_is_too_long_and_no_control_byte) {
  ElasticView view{
      .run = "demo", .name = "a", .status = {}, .report = {}, .averaging = nullptr, .tally = {}, .tokens_per_s = 1234};
  for (int i = 0; i < 20; ++i)
    view.status.peers.push_back({.name = unisono::concat("peer \x1b[2J", i),
                                 .status = i < 3 ? "dead" : "alive",
                                 .address = "tcp://10.0.0.1:4040",
                                 .role = "peer"});
  AveragingReport averaging;
  averaging.rounds.resize(1);
  averaging.rounds[0].absent = {"worker 3\n(sent nothing for 2.0 s)"};
  view.averaging = &averaging;
  const auto page = page_of(view, 60, 5);
  EXPECT_EQ(page.find('\x1b'), std::string::npos);
  EXPECT_NE(page.find("17 peers"), std::string::npos) << page;
  EXPECT_NE(page.find("and 15 more"), std::string::npos) << page;
  EXPECT_EQ(std::count(page.begin(), page.end(), '\n'), 4 + 1 + 5 + 1);
  for (size_t begin = 0, end; (end = page.find('\n', begin)) != std::string::npos; begin = end + 1) EXPECT_LE(end - begin, 60u);
  EXPECT_NE(line_of(view).find("1234 tokens/s"), std::string::npos);
}

}  // namespace
}  // namespace language_model
