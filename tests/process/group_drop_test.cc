// Ranks that train with DropCompute die, stop, or join late. The other ranks are notified which rank was lost, re-form, and
// agree on the next step. No micro-batch is lost or used twice.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/concat.h"
#include "base/random.h"
#include "group_cluster.h"

namespace unisono::testing {
namespace {

// Options with a threshold that ends about every third step early. Windows are short, so that ranks exchange reports while the
// tests kill or stop ranks.
const std::string fixed_threshold = "0.0003:warmup=2/window=3",
                  before = "0.0005:rule=before/warmup=2/calibration=3/min_calibration=2/window=3/min_computed=0",
                  at = "0.0003:rule=at/warmup=2/window=3",
                  automatic = "auto:warmup=1/calibration=4/min_calibration=3/window=3/max_drop=0.5/min_gain=0/recalibrate=5";

std::string make_command(const std::string& options, size_t slot) {
  return concat("drop_make:slot=", slot, ",options=", options);
}

// Expects that step, parameters, counts and reports are equal on all ranks. The averages must contain exactly the micro-batches
// that precede each rank's position in its data.
void expect_agreed(const std::vector<Line>& lines) {
  expect_all_ok(lines);
  for (const auto& line : lines) {
    for (const auto* key : {"step", "parameters", "counted", "report", "total"})
      EXPECT_EQ(line.value(key), lines[0].value(key)) << key << ": " << line.text << "\nand " << lines[0].text;
    EXPECT_EQ(line.value("used"), line.value("position")) << line.text;
  }
}

class Dropping {
 public:
  Dropping(size_t world, const ClusterOptions& cluster, const std::string& options)
      : group_(world, cluster), left_(group_.all_but({})) {
    std::vector<size_t> numbers;
    for (const auto slot : left_) numbers.push_back(group_[slot].send_command(make_command(options, slot)));
    expect_agreed(group_.answers(left_, numbers));
    train(5);
  }
  Cluster& group() { return group_; }
  const std::vector<size_t>& left() const { return left_; }
  std::vector<Line> train(uint64_t steps) {
    const auto lines = group_.ask(left_, concat("drop_train:iters=", steps));
    expect_agreed(lines);
    return lines;
  }

  // Kills the rank at index `victim_rank` of left(). death: the arguments die=, where= and at= of drop_train. Returns true if
  // the survivors were one step apart.
  bool lose(size_t victim_rank, const std::string& death) {
    const auto victim = left_.at(victim_rank);
    left_.erase(left_.begin() + static_cast<std::ptrdiff_t>(victim_rank));
    const auto numbers = group_.send_command(left_, "drop_train:iters=100000");
    const auto reformings = group_.send_command(left_, "reform");
    group_[victim].send_command("drop_train:iters=100000," + death);
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
    expect_all_ok(group_.answers(left_, reformings));
    return resume(reported);
  }

  // Call it when all survivors have reported the loss and re-formed. Returns true if some lacked a step.
  bool resume(const std::vector<Line>& reported) {
    int64_t last = 0, lacking = 0;
    for (const auto& line : reported) last = std::max(last, line.number("step"));
    const auto resumed = group_.ask(left_, "drop_resume");
    expect_agreed(resumed);
    for (size_t i = 0; i < resumed.size(); ++i) {
      EXPECT_EQ(resumed[i].number("step"), last) << resumed[i].text;
      EXPECT_EQ(resumed[i].number("lacked"), reported[i].number("step") < last ? 1 : 0) << resumed[i].text;
      EXPECT_EQ(resumed[i].number("first"), last + 1) << "the report of all steps begins anew";
      lacking += resumed[i].number("lacked");
    }
    for (const auto& line : train(5)) EXPECT_EQ(line.number("step"), last + 5) << line.text;
    return lacking > 0;
  }

  // Adds a new process to the group. The group may re-form several times before the process reaches the rendezvous.
  std::vector<Line> take_in(const std::string& options) {
    auto& newcomer = group_.add_joiner();
    for (int i = 0; i < 2000 && !::testing::Test::HasFailure(); ++i) {
      const auto lines = group_.ask(left_, "reform");
      expect_all_ok(lines);
      if (lines[0].number("world") > static_cast<int64_t>(left_.size())) break;
    }
    EXPECT_TRUE(newcomer.answer(0).ok());
    const auto numbers = group_.send_command(left_, "drop_resume");
    const auto fresh = newcomer.send_command(make_command(options, group_.size() - 1));
    auto lines = group_.answers(left_, numbers);
    lines.push_back(newcomer.answer(fresh));
    left_.push_back(group_.size() - 1);
    return lines;
  }

 private:
  Cluster group_;
  std::vector<size_t> left_;
};

// Makes clusters of five ranks. In each, kills random ranks at random times, one by one, until two are left. Returns the number
// of deaths.
int lose_all(const std::string& transport, uint64_t seed, int clusters, const std::string& options) {
  std::printf("    seed %llu\n", static_cast<unsigned long long>(seed));
  Random random(seed);
  int deaths = 0, apart = 0;
  for (int i = 0; i < clusters && !::testing::Test::HasFailure(); ++i) {
    Dropping dropping(5, {.transport = transport}, options);
    while (dropping.left().size() > 2 && !::testing::Test::HasFailure()) {
      const auto victim_rank = random.below(dropping.left().size());
      const bool computes = random.below(2) == 0;
      // Death in the first micro-batch, which every rule computes.
      const auto death = concat("die=", random.below(8), ",where=", computes ? "compute" : "reduce",
                                ",at=", computes ? random.below(1000) : random.below(1200));
      SCOPED_TRACE(concat(death, ", victim_rank ", victim_rank));
      apart += dropping.lose(victim_rank, death);
      ++deaths;
    }
    dropping.group().finish(dropping.left());
  }
  std::printf("    %d deaths; survivors a step apart %d times\n", deaths, apart);
  return deaths;
}

class DropDeath : public ::testing::TestWithParam<std::string> {};

TEST_P(DropDeath, while_computing_or_reducing_is_reported_and_the_others_continue_alike) {
  lose_all(GetParam(), 1, 2, fixed_threshold);
}
TEST_P(DropDeath, while_all_times_are_gathered_or_the_threshold_is_chosen_again_is_reported) {
  lose_all(GetParam(), 2, 2, automatic);
}
TEST_P(DropDeath, by_the_rules_before_and_at_is_reported) {
  lose_all(GetParam(), 3, 1, before);
  lose_all(GetParam(), 4, 1, at);
}

// In a ring, data passes through the ranks one by one. So some ranks may finish a step that others cannot.
const std::string in_a_ring = ",values=600000,ring=1";

TEST(LongDropDeath, again_and_again_over_shared_memory) { EXPECT_EQ(lose_all("shm", 5, 16, automatic + in_a_ring), 48); }
TEST(LongDropDeath, again_and_again_over_tcp) { EXPECT_EQ(lose_all("tcp", 6, 16, fixed_threshold + in_a_ring), 48); }

class DropStop : public ::testing::TestWithParam<std::string> {};

// Waits until the process's main thread sleeps. It then usually waits for another rank's part of a step.
void wait_until_it_waits(const RankProcess& rank) {
  for (const int64_t end = now_ns() + 20'000'000'000; now_ns() < end;) {
    std::ifstream in(concat("/proc/", rank.pid(), "/stat"));
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
    const auto numbers = group.send_command(all, "drop_train:iters=60");
    ASSERT_TRUE(group[stopped].has_begun(numbers[stopped]));
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

TEST_P(DropStop, for_longer_than_the_deadline_is_late_and_the_others_continue_alike) {
  const int64_t timeout_ms = 500 * slowness;
  Dropping dropping(3, {.transport = GetParam(), .environment = {concat("UNISONO_TIMEOUT_MS=", timeout_ms)}}, fixed_threshold);
  auto& group = dropping.group();
  const std::vector<size_t> left{0, 2};
  const auto numbers = group.send_command(group.all_but({}), "drop_train:iters=1000000");
  for (size_t rank = 0; rank < 3; ++rank) ASSERT_TRUE(group[rank].has_begun(numbers[rank]));
  group[1].signal(SIGSTOP);
  ASSERT_TRUE(group[1].wait_stopped());
  const auto reported = group.answers(left, {numbers[0], numbers[2]});
  for (const auto& line : reported) {
    EXPECT_TRUE(line.code() == "late" || line.code() == "peer_lost") << line.text;
    EXPECT_TRUE(line.says("rank 1 ")) << line.text << " should name rank 1";
  }
  EXPECT_TRUE(std::any_of(reported.begin(), reported.end(), [](const Line& line) { return line.code() == "late"; }));
  for (const auto& line : group.ask(left, "reform")) EXPECT_EQ(line.number("world"), 2) << line.text;
  expect_agreed(group.ask(left, "drop_resume"));
  expect_agreed(group.ask(left, "drop_train:iters=7"));
  // The stopped rank continues after it was removed. Its call fails, and it does not disturb the others.
  group[1].signal(SIGCONT);
  const auto late = group[1].answer(numbers[1]);
  EXPECT_TRUE(late.code() == "peer_lost" || late.code() == "late") << late.text;
  expect_agreed(group.ask(left, "drop_train:iters=7"));
  group.finish({1});
  group.finish(left);
}

class DropJoin : public ::testing::TestWithParam<std::string> {};

TEST_P(DropJoin, starts_at_the_step_of_the_others_without_drops_while_it_warms_up) {
  const std::string options = "0.000001:warmup=4/window=3";  // threshold of 1 us: each rank computes one micro-batch per step
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

TEST_P(DropJoin, during_recording_and_choosing_works_likewise) {
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
