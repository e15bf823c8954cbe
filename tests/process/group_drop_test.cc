// Ranks that train with DropCompute die while they compute or in the all-reduce, stop, or come later: the others are told who
// it was, re-form, agree on where to go on, and have lost no micro-batch and used none twice.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/random.h"
#include "group_cluster.h"

namespace unisono::testing {
namespace {

// Thresholds that cut about every third step short; windows end, and ranks tell each other of them, in the midst of what the
// tests do.
const std::string fixed_threshold = "0.0003:warmup=2/window=3",
                  before = "0.0005:rule=before/warmup=2/calibration=3/min_calibration=2/window=3/min_computed=0",
                  at = "0.0003:rule=at/warmup=2/window=3",
                  automatic = "auto:warmup=1/calibration=4/min_calibration=3/window=3/max_drop=0.5/min_gain=0/recalibrate=5";

std::string make_command(const std::string& options, size_t slot) {
  return "drop_make:slot=" + std::to_string(slot) + ",options=" + options;
}

// The same step, parameters, counts and reports on all, and of each rank exactly those micro-batches that are before its place.
void expect_agreed(const std::vector<Line>& lines) {
  expect_all_ok(lines);
  for (const auto& line : lines) {
    for (const auto* key : {"step", "parameters", "counted", "report", "total"})
      EXPECT_EQ(line.value(key), lines[0].value(key)) << key << ": " << line.text << "\nand " << lines[0].text;
    EXPECT_EQ(line.value("used"), line.value("place")) << line.text;
  }
}

class Dropping {
 public:
  Dropping(size_t world, const ClusterOptions& cluster, const std::string& options)
      : group_(world, cluster), left_(group_.all_but({})) {
    std::vector<size_t> numbers;
    for (const auto slot : left_) numbers.push_back(group_[slot].tell(make_command(options, slot)));
    expect_agreed(group_.answers(left_, numbers));
    train(5);
  }
  Cluster& group() { return group_; }
  const std::vector<size_t>& left() const { return left_; }
  std::vector<Line> train(uint64_t steps) {
    const auto lines = group_.ask(left_, "drop_train:iters=" + std::to_string(steps));
    expect_agreed(lines);
    return lines;
  }

  // Kills the rank at index `place` of left(). `death` says the step, and at how many thousandths of it. Returns whether the
  // survivors were a step apart.
  bool lose(size_t place, const std::string& death) {
    const auto victim = left_.at(place);
    left_.erase(left_.begin() + static_cast<std::ptrdiff_t>(place));
    const auto numbers = group_.tell(left_, "drop_train:iters=100000");
    const auto reformings = group_.tell(left_, "reform");
    group_[victim].tell("drop_train:iters=100000," + death);
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
    expect_all_ok(group_.answers(left_, reformings));
    return resume(told);
  }

  // After all that are left have been told so, and have re-formed.
  bool resume(const std::vector<Line>& told) {
    int64_t last = 0, lacking = 0;
    for (const auto& line : told) last = std::max(last, line.number("step"));
    const auto resumed = group_.ask(left_, "drop_resume");
    expect_agreed(resumed);
    for (size_t i = 0; i < resumed.size(); ++i) {
      EXPECT_EQ(resumed[i].number("step"), last) << resumed[i].text;
      EXPECT_EQ(resumed[i].number("lacked"), told[i].number("step") < last ? 1 : 0) << resumed[i].text;
      EXPECT_EQ(resumed[i].number("first"), last + 1) << "the report of all steps begins anew";
      lacking += resumed[i].number("lacked");
    }
    for (const auto& line : train(5)) EXPECT_EQ(line.number("step"), last + 5) << line.text;
    return lacking > 0;
  }

  // A process more, which starts with nothing. (A process that has just started is not at the rendezvous yet.)
  std::vector<Line> take_in(const std::string& options) {
    auto& newcomer = group_.add_joiner();
    for (int i = 0; i < 2000 && !::testing::Test::HasFailure(); ++i) {
      const auto lines = group_.ask(left_, "reform");
      expect_all_ok(lines);
      if (lines[0].number("world") > static_cast<int64_t>(left_.size())) break;
    }
    EXPECT_TRUE(newcomer.answer(0).ok());
    const auto numbers = group_.tell(left_, "drop_resume");
    const auto fresh = newcomer.tell(make_command(options, group_.size() - 1));
    auto lines = group_.answers(left_, numbers);
    lines.push_back(newcomer.answer(fresh));
    left_.push_back(group_.size() - 1);
    return lines;
  }

 private:
  Cluster group_;
  std::vector<size_t> left_;
};

// Until two are left, again and again; who, when and where by lot.
int lose_all(const std::string& transport, uint64_t seed, int clusters, const std::string& options) {
  std::printf("    seed %llu\n", static_cast<unsigned long long>(seed));
  Random random(seed);
  int deaths = 0, apart = 0;
  for (int i = 0; i < clusters && !::testing::Test::HasFailure(); ++i) {
    Dropping dropping(5, {.transport = transport}, options);
    while (dropping.left().size() > 2 && !::testing::Test::HasFailure()) {
      const auto place = random.below(dropping.left().size());
      const bool computes = random.below(2) == 0;
      // The first micro-batch is computed whatever the rule.
      const auto death = "die=" + std::to_string(random.below(8)) + ",where=" + (computes ? "compute" : "reduce") +
                         ",at=" + std::to_string(computes ? random.below(1000) : random.below(1200));
      SCOPED_TRACE(death + ", place " + std::to_string(place));
      apart += dropping.lose(place, death);
      ++deaths;
    }
    dropping.group().finish(dropping.left());
  }
  std::printf("    %d deaths; survivors a step apart %d times\n", deaths, apart);
  return deaths;
}

class DropDeath : public ::testing::TestWithParam<std::string> {};

TEST_P(DropDeath, while_computing_or_reducing_is_told_and_the_others_go_on_alike) {
  lose_all(GetParam(), 1, 2, fixed_threshold);
}
TEST_P(DropDeath, while_all_times_are_gathered_or_the_threshold_is_chosen_again_is_told_likewise) {
  lose_all(GetParam(), 2, 2, automatic);
}
TEST_P(DropDeath, by_the_rules_before_and_at_is_told_likewise) {
  lose_all(GetParam(), 3, 1, before);
  lose_all(GetParam(), 4, 1, at);
}

// Data pass through all ranks one after the other, so that some can finish a step that others cannot.
const std::string in_a_ring = ",values=600000,ring=1";

TEST(LongDropDeath, again_and_again_over_shared_memory) { EXPECT_EQ(lose_all("shm", 5, 16, automatic + in_a_ring), 48); }
TEST(LongDropDeath, again_and_again_over_tcp) { EXPECT_EQ(lose_all("tcp", 6, 16, fixed_threshold + in_a_ring), 48); }

class DropStop : public ::testing::TestWithParam<std::string> {};

// Until the process's first thread waits for something: for the others' part of a step, as a rule.
void wait_until_it_waits(const RankProcess& rank) {
  for (const int64_t end = now_ns() + 20'000'000'000; now_ns() < end;) {
    std::ifstream in("/proc/" + std::to_string(rank.pid()) + "/stat");
    std::string text;
    std::getline(in, text);
    const auto name_end = text.rfind(") ");
    if (name_end != std::string::npos && name_end + 2 < text.size() && text[name_end + 2] == 'S') return;
  }
  ADD_FAILURE() << "the rank does not wait";
}

TEST_P(DropStop, for_a_while_makes_the_others_wait_and_nothing_is_lost) {
  Dropping dropping(3, {.transport = GetParam()}, fixed_threshold);
  auto& group = dropping.group();
  const auto all = group.all_but({});
  int64_t step = 5;
  for (size_t stopped = 0; stopped < 3; ++stopped) {
    const auto numbers = group.tell(all, "drop_train:iters=60");
    ASSERT_TRUE(group[stopped].going(numbers[stopped]));
    group[stopped].signal(SIGSTOP);
    ASSERT_TRUE(group[stopped].wait_stopped());
    for (const auto rank : all) {
      if (rank != stopped) wait_until_it_waits(group[rank]);
    }
    group[stopped].signal(SIGCONT);
    const auto done = group.answers(all, numbers);
    expect_agreed(done);
    EXPECT_EQ(done[0].number("step"), step += 60);
  }
  group.finish(all);
}

TEST_P(DropStop, for_longer_than_the_deadline_is_late_and_the_others_go_on_alike) {
  const int64_t timeout_ms = 500 * slowness;
  Dropping dropping(3, {.transport = GetParam(), .environment = {"UNISONO_TIMEOUT_MS=" + std::to_string(timeout_ms)}},
                    fixed_threshold);
  auto& group = dropping.group();
  const std::vector<size_t> left{0, 2};
  const auto numbers = group.tell(group.all_but({}), "drop_train:iters=1000000");
  for (size_t rank = 0; rank < 3; ++rank) ASSERT_TRUE(group[rank].going(numbers[rank]));
  group[1].signal(SIGSTOP);
  ASSERT_TRUE(group[1].wait_stopped());
  const auto told = group.answers(left, {numbers[0], numbers[2]});
  for (const auto& line : told) {
    EXPECT_TRUE(line.code() == "late" || line.code() == "peer_lost") << line.text;
    EXPECT_TRUE(line.says("rank 1 ")) << line.text << " should name rank 1";
  }
  EXPECT_TRUE(std::any_of(told.begin(), told.end(), [](const Line& line) { return line.code() == "late"; }));
  for (const auto& line : group.ask(left, "reform")) EXPECT_EQ(line.number("world"), 2) << line.text;
  expect_agreed(group.ask(left, "drop_resume"));
  expect_agreed(group.ask(left, "drop_train:iters=7"));
  // The stopped rank wakes up later. Its call fails, and it does not disturb the others.
  group[1].signal(SIGCONT);
  const auto late = group[1].answer(numbers[1]);
  EXPECT_TRUE(late.code() == "peer_lost" || late.code() == "late") << late.text;
  expect_agreed(group.ask(left, "drop_train:iters=7"));
  group.finish({1});
  group.finish(left);
}

class DropJoin : public ::testing::TestWithParam<std::string> {};

TEST_P(DropJoin, later_is_taken_in_at_the_others_step_and_spared_while_it_warms_up) {
  const std::string options = "0.000001:warmup=4/window=3";  // each rank computes one micro-batch
  Dropping dropping(2, {.transport = GetParam()}, options);
  for (int64_t joined = 1; joined <= 2 && !::testing::Test::HasFailure(); ++joined) {
    const auto step = dropping.train(6)[0].number("step");
    const auto met = dropping.take_in(options);
    expect_agreed(met);
    for (const auto& line : met) EXPECT_EQ(line.number("step"), step) << line.text;
    for (const auto& line : met) EXPECT_EQ(line.number("first"), step + 1) << line.text;
    const auto fresh = dropping.train(4).back();
    EXPECT_EQ(fresh.number("dropped"), 0) << fresh.text;
    EXPECT_EQ(dropping.train(2).back().number("dropped"), 2 * 3);
  }
  if (::testing::Test::HasFailure()) return;
  dropping.lose(3, "die=2,where=compute,at=500");
  dropping.group().finish(dropping.left());
}

TEST_P(DropJoin, in_the_midst_of_recording_and_choosing_is_taken_in_likewise) {
  for (uint64_t after = 0; after < 6 && !::testing::Test::HasFailure(); ++after) {
    Dropping dropping(2, {.transport = GetParam()}, automatic);
    if (after > 0) dropping.train(after);
    expect_agreed(dropping.take_in(automatic));
    EXPECT_EQ(dropping.train(20).back().number("searched"), 1);
    dropping.group().finish(dropping.left());
  }
}

INSTANTIATE_TEST_SUITE_P(All, DropDeath, ::testing::Values("shm", "tcp"), name_of);
INSTANTIATE_TEST_SUITE_P(All, DropStop, ::testing::Values("shm", "tcp"), name_of);
INSTANTIATE_TEST_SUITE_P(All, DropJoin, ::testing::Values("shm", "tcp"), name_of);

}  // namespace
}  // namespace unisono::testing
