// Ranks that train with compressed gradients die or stop in the middle of a step. The others are notified which rank was lost.
// They re-form, agree on the next step, and continue with the same bits.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/concat.h"
#include "base/random.h"
#include "group_cluster.h"

namespace unisono::testing {
namespace {

constexpr int64_t notice_limit_ms = 1000;  // generous, for loaded machines
constexpr int64_t reform_limit_ms = 2000;  // generous, for loaded machines

struct Counts {
  int deaths = 0;
  int apart = 0;    // number of deaths after which survivors were one step apart
  int behind = 0;   // number of survivors that were one step behind
  int unnamed = 0;  // survivors whose error named a re-forming, not the dead rank
};

class Trained {
 public:
  Trained(size_t world, const ClusterOptions& options, const std::string& how)
      : group_(world, options), left_(group_.all_but({})) {
    expect_all_ok(group_.ask_all("train_make:" + how));
    expect_agreed(group_.ask_all("train:iters=3"));
  }
  Cluster& group() { return group_; }
  const std::vector<size_t>& left() const { return left_; }

  // Kills the rank at index `victim_rank` of left() in step number `step`, after `at` thousandths of the step.
  void lose(size_t victim_rank, uint64_t step, uint64_t at, Counts& counts) {
    const auto victim = left_.at(victim_rank);
    const auto pid = std::to_string(group_[victim].pid());
    left_.erase(left_.begin() + static_cast<std::ptrdiff_t>(victim_rank));
    const auto numbers = group_.send_command(left_, "train:iters=100000");
    // Each rank re-forms as soon as its training step fails. A rank may already have all data of the dead rank, and would wait
    // for the other survivors. It stops waiting when they re-form.
    const auto reformings = group_.send_command(left_, "reform");
    group_[victim].send_command(concat("train:iters=100000,die=", step, ",at=", at));
    const auto ended = group_[victim].wait();
    EXPECT_TRUE(ended.by_signal && ended.code == SIGKILL) << ended.out << ended.error;
    const auto reported = group_.answers(left_, numbers);
    int named = 0;
    for (const auto& line : reported) {
      const bool names = line.says(concat("rank ", victim_rank, " ")),
                 is_next = line.says("another member re-forms the group") || line.says("the group is being re-formed");
      EXPECT_EQ(line.code(), "peer_lost") << line.text;
      EXPECT_TRUE(names || is_next) << line.text << " should name rank " << victim_rank;
      named += names;
    }
    EXPECT_GT(named, 0) << "no survivor named the dead rank";
    ++counts.deaths;
    counts.unnamed += static_cast<int>(reported.size()) - named;
    resume(reported, group_.answers(left_, reformings), concat(victim_rank, ":", pid), counts);
  }

  // Call it after all survivors have reported the loss and re-formed.
  void resume(const std::vector<Line>& reported, const std::vector<Line>& reformed, const std::string& lost, Counts& counts) {
    int64_t last = 0;
    for (const auto& line : reported) last = std::max(last, line.number("step"));
    int behind = 0;
    for (const auto& line : reported) {
      behind += line.number("step") < last;
      // No rank can be further ahead, because a step needs data from all others.
      EXPECT_LE(last - line.number("step"), 1) << line.text;
    }
    counts.behind += behind;
    counts.apart += behind > 0;
    for (const auto& line : reformed) {
      EXPECT_TRUE(line.ok()) << line.text;
      EXPECT_LE(line.number("us"), reform_limit_ms * 1000 * slowness) << line.text;
    }
    const auto resumed = group_.ask(left_, "train_resume");
    expect_agreed(resumed);
    for (size_t i = 0; i < resumed.size(); ++i) {
      EXPECT_EQ(resumed[i].number("step"), last) << resumed[i].text;
      EXPECT_EQ(resumed[i].value("from"), resumed[0].value("from")) << resumed[i].text;
      EXPECT_EQ(resumed[i].value("lost"), lost) << resumed[i].text;
      // Only a rank that lacks a step gets new parameters.
      EXPECT_EQ(resumed[i].number("took"), reported[i].number("step") < last ? 1 : 0) << resumed[i].text;
    }
    const auto from = static_cast<size_t>(resumed[0].number("from"));
    ASSERT_LT(from, reported.size());
    EXPECT_EQ(reported[from].number("step"), last) << "parameters come from a rank that lacks a step";
    const auto after = group_.ask(left_, "train:iters=3");
    expect_agreed(after);
    for (const auto& line : after) EXPECT_EQ(line.number("step"), last + 3) << line.text;
  }

  // Expects the same step and the same parameters on all ranks.
  static void expect_agreed(const std::vector<Line>& lines) {
    expect_all_ok(lines);
    for (const auto& line : lines) {
      EXPECT_EQ(line.value("step"), lines[0].value("step")) << line.text;
      EXPECT_EQ(line.value("parameters"), lines[0].value("parameters")) << line.text;
    }
  }

 private:
  Cluster group_;
  std::vector<size_t> left_;
};

// Makes clusters of five ranks. In each, kills random ranks at random times, one by one, until two are left.
Counts lose_all(const std::string& transport, uint64_t seed, int clusters, const std::string& how) {
  std::printf("    seed %llu\n", static_cast<unsigned long long>(seed));
  Random random(seed);
  Counts counts;
  for (int i = 0; i < clusters && !::testing::Test::HasFailure(); ++i) {
    Trained trained(5, {.transport = transport}, how);
    while (trained.left().size() > 2 && !::testing::Test::HasFailure()) {
      const auto victim_rank = random.below(trained.left().size());
      trained.lose(victim_rank, 1 + random.below(3), 400 + random.below(700), counts);
    }
    trained.group().finish(trained.left());
  }
  std::printf(
      "    %d deaths: survivors a step apart %d times, %d of them behind; %d learned of it from other ranks that re-form\n",
      counts.deaths, counts.apart, counts.behind, counts.unnamed);
  return counts;
}

class TrainingDeath : public ::testing::TestWithParam<std::string> {};

TEST_P(TrainingDeath, in_a_step_is_reported_and_the_others_continue_alike) { lose_all(GetParam(), 1, 2, "values=plain"); }
TEST_P(TrainingDeath, in_a_step_of_lossy_values_is_reported_and_the_others_continue_alike) {
  lose_all(GetParam(), 2, 1, "values=bf16");
}

// Each test takes about ten seconds. In a ring, data passes through the ranks one by one. So some ranks may finish a step that
// others cannot.
TEST(LongTrainingDeath, in_a_step_again_and_again_over_shared_memory) {
  EXPECT_EQ(lose_all("shm", 3, 16, "columns=1024,schedule=ring").deaths, 48);
}
TEST(LongTrainingDeath, in_a_step_again_and_again_over_tcp) {
  EXPECT_EQ(lose_all("tcp", 4, 16, "columns=1024,schedule=ring").deaths, 48);
}

class TrainingStop : public ::testing::TestWithParam<std::string> {};

TEST_P(TrainingStop, in_a_step_is_late_by_the_deadline_and_the_others_continue_alike) {
  const int64_t timeout_ms = 500 * slowness;
  Trained trained(3, {.transport = GetParam(), .environment = {concat("UNISONO_TIMEOUT_MS=", timeout_ms)}}, "values=plain");
  auto& group = trained.group();
  const std::vector<size_t> left{0, 2};
  const auto numbers = group.send_command(group.all_but({}), "train:iters=1000000");
  for (size_t rank = 0; rank < 3; ++rank) ASSERT_TRUE(group[rank].has_begun(numbers[rank]));
  const auto stopped_at = now_ns();
  group[1].signal(SIGSTOP);
  ASSERT_TRUE(group[1].wait_stopped());
  for (const auto& line : group.answers(left, {numbers[0], numbers[2]})) {
    EXPECT_TRUE(line.code() == "late" || line.code() == "peer_lost") << line.text;
    EXPECT_TRUE(line.says("rank 1 ")) << line.text << " should name rank 1";
    // The all-reduce of the sketches may end just before its deadline. The all-reduce of the rows then has a new deadline.
    expect_within("late after", line.at() - stopped_at, 2 * timeout_ms / slowness + notice_limit_ms);
  }
  for (const auto& line : group.ask(left, "reform")) EXPECT_EQ(line.number("world"), 2) << line.text;
  Trained::expect_agreed(group.ask(left, "train_resume"));
  Trained::expect_agreed(group.ask(left, "train:iters=5"));
  // The stopped rank continues after it was removed. Its call fails, and it does not disturb the others.
  group[1].signal(SIGCONT);
  const auto reported = group[1].answer(numbers[1]);
  EXPECT_TRUE(reported.code() == "peer_lost" || reported.code() == "late") << reported.text;
  const auto again = group[1].ask("reform");
  EXPECT_EQ(again.code(), "peer_lost") << again.text;
  Trained::expect_agreed(group.ask(left, "train:iters=5"));
  group.finish({1});
  group.finish(left);
}

INSTANTIATE_TEST_SUITE_P(All, TrainingDeath, ::testing::Values("shm", "tcp"), name_of);
INSTANTIATE_TEST_SUITE_P(All, TrainingStop, ::testing::Values("shm", "tcp"), name_of);

}  // namespace
}  // namespace unisono::testing
