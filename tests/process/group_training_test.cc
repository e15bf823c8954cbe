// Ranks that train with compressed gradients die or stop in the middle of a step: the others are told who it was, re-form,
// agree on where to go on, and do so with the same bits.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/random.h"
#include "group_cluster.h"

namespace unisono::testing {
namespace {

constexpr int64_t told_limit_ms = 1000;    // for a loaded machine
constexpr int64_t reform_limit_ms = 2000;  // likewise

struct Counts {
  int deaths = 0;
  int apart = 0;    // times that survivors were a step apart when they met
  int behind = 0;   // survivors that were
  int unnamed = 0;  // survivors that learned from others' re-forming
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

  // Kills the rank at index `place` of left() in its step number `step`, after `at` thousandths of the step.
  void lose(size_t place, uint64_t step, uint64_t at, Counts& counts) {
    const auto victim = left_.at(place);
    const auto pid = std::to_string(group_[victim].pid());
    left_.erase(left_.begin() + static_cast<std::ptrdiff_t>(place));
    const auto numbers = group_.tell(left_, "train:iters=100000");
    // Each rank re-forms as soon as its training step fails. A rank that already has all data of the dead one would wait for
    // the survivors; their re-forming ends its wait.
    const auto reformings = group_.tell(left_, "reform");
    group_[victim].tell("train:iters=100000,die=" + std::to_string(step) + ",at=" + std::to_string(at));
    const auto ended = group_[victim].wait();
    EXPECT_TRUE(ended.by_signal && ended.code == SIGKILL) << ended.out << ended.error;
    const auto told = group_.answers(left_, numbers);
    int named = 0;
    for (const auto& line : told) {
      const bool names = line.says("rank " + std::to_string(place) + " "),
                 is_next = line.says("another member re-forms the group") || line.says("the group is being re-formed");
      EXPECT_EQ(line.code(), "peer_lost") << line.text;
      EXPECT_TRUE(names || is_next) << line.text << " should name rank " << place;
      named += names;
    }
    EXPECT_GT(named, 0) << "nobody was told who";
    ++counts.deaths;
    counts.unnamed += static_cast<int>(told.size()) - named;
    go_on(told, group_.answers(left_, reformings), std::to_string(place) + ":" + pid, counts);
  }

  // Call after all survivors have seen the failure and re-formed.
  void go_on(const std::vector<Line>& told, const std::vector<Line>& reformed, const std::string& lost, Counts& counts) {
    int64_t last = 0;
    for (const auto& line : told) last = std::max(last, line.number("step"));
    int behind = 0;
    for (const auto& line : told) {
      behind += line.number("step") < last;
      // Nobody can be further ahead: the others gave nothing more.
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
      // Only who lacks a step gets other parameters than it had.
      EXPECT_EQ(resumed[i].number("took"), told[i].number("step") < last ? 1 : 0) << resumed[i].text;
    }
    const auto from = static_cast<size_t>(resumed[0].number("from"));
    ASSERT_LT(from, told.size());
    EXPECT_EQ(told[from].number("step"), last) << "parameters come from a rank that lacks a step";
    const auto after = group_.ask(left_, "train:iters=3");
    expect_agreed(after);
    for (const auto& line : after) EXPECT_EQ(line.number("step"), last + 3) << line.text;
  }

  // The same step, and parameters, on all.
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

// Until two are left, again and again; who, when and where by lot.
Counts lose_all(const std::string& transport, uint64_t seed, int clusters, const std::string& how) {
  std::printf("    seed %llu\n", static_cast<unsigned long long>(seed));
  Random random(seed);
  Counts counts;
  for (int i = 0; i < clusters && !::testing::Test::HasFailure(); ++i) {
    Trained trained(5, {.transport = transport}, how);
    while (trained.left().size() > 2 && !::testing::Test::HasFailure()) {
      const auto place = random.below(trained.left().size());
      trained.lose(place, 1 + random.below(3), 400 + random.below(700), counts);
    }
    trained.group().finish(trained.left());
  }
  std::printf("    %d deaths: survivors a step apart %d times, %d of them behind; %d were told by others that they re-form\n",
              counts.deaths, counts.apart, counts.behind, counts.unnamed);
  return counts;
}

class TrainingDeath : public ::testing::TestWithParam<std::string> {};

TEST_P(TrainingDeath, in_a_step_is_told_and_the_others_go_on_alike) { lose_all(GetParam(), 1, 2, "values=plain"); }
TEST_P(TrainingDeath, in_a_step_of_lossy_values_is_told_and_the_others_go_on_alike) {
  lose_all(GetParam(), 2, 1, "values=bf16");
}

// About ten seconds each. In a ring, where data pass through all ranks one after the other, some can finish a step that others
// cannot.
TEST(LongTrainingDeath, in_a_step_again_and_again_over_shared_memory) {
  EXPECT_EQ(lose_all("shm", 3, 16, "columns=1024,schedule=ring").deaths, 48);
}
TEST(LongTrainingDeath, in_a_step_again_and_again_over_tcp) {
  EXPECT_EQ(lose_all("tcp", 4, 16, "columns=1024,schedule=ring").deaths, 48);
}

class TrainingStop : public ::testing::TestWithParam<std::string> {};

TEST_P(TrainingStop, in_a_step_is_late_by_the_deadline_and_the_others_go_on_alike) {
  const int64_t timeout_ms = 500 * slowness;
  Trained trained(3, {.transport = GetParam(), .environment = {"UNISONO_TIMEOUT_MS=" + std::to_string(timeout_ms)}},
                  "values=plain");
  auto& group = trained.group();
  const std::vector<size_t> left{0, 2};
  const auto numbers = group.tell(group.all_but({}), "train:iters=1000000");
  for (size_t rank = 0; rank < 3; ++rank) ASSERT_TRUE(group[rank].going(numbers[rank]));
  const auto stopped_at = now_ns();
  group[1].signal(SIGSTOP);
  ASSERT_TRUE(group[1].wait_stopped());
  for (const auto& line : group.answers(left, {numbers[0], numbers[2]})) {
    EXPECT_TRUE(line.code() == "late" || line.code() == "peer_lost") << line.text;
    EXPECT_TRUE(line.says("rank 1 ")) << line.text << " should name rank 1";
    // The sketches' all-reduce may end just before, and that of the rows begin.
    expect_within("late after", line.at() - stopped_at, 2 * timeout_ms / slowness + told_limit_ms);
  }
  for (const auto& line : group.ask(left, "reform")) EXPECT_EQ(line.number("world"), 2) << line.text;
  Trained::expect_agreed(group.ask(left, "train_resume"));
  Trained::expect_agreed(group.ask(left, "train:iters=5"));
  // The stopped rank wakes up later. Its call fails, and it does not disturb the others.
  group[1].signal(SIGCONT);
  const auto told = group[1].answer(numbers[1]);
  EXPECT_TRUE(told.code() == "peer_lost" || told.code() == "late") << told.text;
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
