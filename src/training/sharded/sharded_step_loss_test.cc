// The sharded step with deliberately lost datagrams (UNISONO_LOSE_PER_MILLE) and with lost ranks.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <mutex>

#include "base/random.h"
#include "testing/group_of_threads.h"
#include "unisono/sharded_step.h"

namespace unisono {
namespace {

using test::in_group;
using Values = std::vector<float>;

constexpr uint32_t lossy_world = 4;
// With datagrams of 1472 bytes, a shard has 71 ranges. Over loopback it has fewer, because datagrams are larger.
constexpr size_t lossy_elements = 100'000;

class Loses {
 public:
  explicit Loses(const char* per_mille) { ::setenv("UNISONO_LOSE_PER_MILLE", per_mille, 1); }
  ~Loses() { ::unsetenv("UNISONO_LOSE_PER_MILLE"); }
};

// Events for which ranks wait. A rank that ends with a failed check counts as all of them, so that no rank waits for it.
class Events {
 public:
  void add(uint32_t count) {
    seen_ += count;
    seen_.notify_all();
  }
  void await(uint32_t count) {
    for (auto seen = seen_.load(); seen < count; seen = seen_.load()) seen_.wait(seen);
  }

 private:
  std::atomic<uint32_t> seen_{0};
};

class EndOfRank {
 public:
  explicit EndOfRank(Events& events) : events_(events) {}
  ~EndOfRank() {
    if (testing::Test::HasFailure()) events_.add(1000);
  }

 private:
  Events& events_;
};

Options over_udp() {
  Options options;
  options.transport = "udp";
  options.timeout = Milliseconds(60'000);
  return options;
}

Values lossy_noise(uint64_t seed) {
  Values values(lossy_elements);
  Random random(mix64(seed));
  for (auto& value : values) value = static_cast<float>(random.next() >> 40) * 0x1p-23f - 1;
  return values;
}

ShardedStep make_lossy(Group& group, const std::string& options) {
  auto made = ShardedStep::make(group, lossy_noise(7), make_sgd({.rate = 0.1}), *ShardedOptions::parse(options));
  EXPECT_TRUE(made.ok()) << made.status().to_string();
  return *std::move(made);
}

Result<ShardedReport> run(Group& group, ShardedStep& step) { return step.run(lossy_noise(1000 * step.step() + group.rank())); }

// Replicas may lag behind, but hold values that the owners had. After resync(), all replicas must be equal bit by bit.
TEST(ShardedStepLossInGroup, stale_replicas_become_equal_again) {
  const Loses loses("200");
  std::mutex mutex;
  std::vector<Values> replicas;
  double stale = 0, expected = 0;
  // The configured loss is 0.2. Sanitizers and other tests may slow the receivers down, and so increase it.
  constexpr double lost_at_most = 0.4;
  in_group(
      lossy_world,
      [&](Group& group) {
        auto step = make_lossy(group, "loss_budget=1,loss_off=1,drift=50,backup=0,deadline=30s");
        double own_stale = 0, own_expected = 0;
        for (int i = 0; i < 100; ++i) {
          const auto report = run(group, step);
          ASSERT_TRUE(report.ok()) << report.status().to_string();
          if (i < 50) continue;
          own_stale += static_cast<double>(report->stale_ranges), own_expected += static_cast<double>(report->ranges);
          if (i == 99) {
            // Updates are uncorrelated. So the expected drift between owner and replica is p/(1-p), in units of an update's
            // second moment.
            ASSERT_TRUE(report->drift);
            EXPECT_GT(report->drift->loss, 0.15);
            EXPECT_LT(report->drift->loss, lost_at_most);
            EXPECT_GT(report->drift->owner, 0.3 * report->drift->owner_expected) << report->to_string();
            EXPECT_LT(report->drift->owner, 3 * report->drift->owner_expected) << report->to_string();
          }
        }
        ASSERT_TRUE(step.resync().ok());
        const std::lock_guard lock(mutex);
        stale += own_stale, expected += own_expected;
        replicas.emplace_back(step.parameters().begin(), step.parameters().end());
      },
      over_udp());
  EXPECT_GT(stale / expected, 0.15);
  EXPECT_LT(stale / expected, lost_at_most);
  ASSERT_EQ(replicas.size(), lossy_world);
  for (const auto& replica : replicas) EXPECT_EQ(replica, replicas[0]);
}

TEST(ShardedStepLossInGroup, no_range_reaches_the_age_stale_max) {
  const Loses loses("300");
  in_group(
      lossy_world,
      [&](Group& group) {
        auto step = make_lossy(group, "loss_budget=1,loss_off=1,stale_max=2,drift=0,backup=0,deadline=30s");
        uint64_t fetched = 0;
        for (int i = 0; i < 60; ++i) {
          const auto report = run(group, step);
          ASSERT_TRUE(report.ok()) << report.status().to_string();
          EXPECT_LE(report->age_max, 1u) << report->to_string();
          fetched += report->fetched_ranges;
        }
        EXPECT_GT(fetched, 20u);
      },
      over_udp());
}

TEST(ShardedStepLossInGroup, all_ranks_clip_equally_whatever_is_lost) {
  const Loses loses("100");
  in_group(
      lossy_world,
      [&](Group& group) {
        auto step = make_lossy(group, "loss_budget=1,loss_off=1,clip=1,drift=0,backup=0,deadline=30s");
        for (int i = 0; i < 40; ++i) {
          const auto report = run(group, step);
          ASSERT_TRUE(report.ok()) << report.status().to_string();
          EXPECT_EQ(report->scalars_missing, 0u) << report->to_string();
          EXPECT_NEAR(report->clipped * report->gradient_norm, 1, 1e-3);
        }
      },
      over_udp());
}

// A rank makes no steps for a while. The other ranks wait for it only until their deadlines. When it returns, it joins their
// current step.
TEST(ShardedStepLossInGroup, an_absent_rank_joins_the_others_current_step) {
  constexpr uint32_t together = 30, away = 2, last = 60;
  std::mutex mutex;
  std::vector<Values> replicas;
  for (const std::string scalars : {"", ",clip=1"}) {
    Events others;   // steps that the other ranks made while one rank was away, summed over the ranks
    Events is_back;  // the other ranks make two steps, then wait for this
    replicas.clear();
    in_group(
        lossy_world,
        [&](Group& group) {
          const EndOfRank ends_steps(others), ends_absence(is_back);
          auto step = make_lossy(group, "loss_budget=1,loss_off=1,drift=0,backup=0" + scalars);
          while (step.step() < together) ASSERT_TRUE(run(group, step).ok());
          ASSERT_TRUE(group.barrier().ok());
          const bool is_away = group.rank() == lossy_world - 1;
          if (is_away) {
            others.await(away * (lossy_world - 1));
            is_back.add(1);
            const auto report = run(group, step);
            ASSERT_TRUE(report.ok()) << report.status().to_string();
            EXPECT_GE(report->behind, 1u) << report->to_string();
            EXPECT_GE(report->step, together + away);
          }
          while (step.step() < last) {
            const auto report = run(group, step);
            ASSERT_TRUE(report.ok()) << report.status().to_string();
            EXPECT_TRUE(report->lost.empty()) << report->to_string();
            if (is_away) continue;
            others.add(1 + report->behind);
            if (step.step() >= together + away) is_back.await(1);
          }
          EXPECT_EQ(step.step(), last);
          ASSERT_TRUE(step.resync().ok());
          const std::lock_guard lock(mutex);
          replicas.emplace_back(step.parameters().begin(), step.parameters().end());
        },
        over_udp());
    ASSERT_EQ(replicas.size(), lossy_world);
    for (const auto& replica : replicas) EXPECT_EQ(replica, replicas[0]);
  }
}

TEST(ShardedStepLossInGroup, a_silent_rank_is_named_and_declared_lost) {
  Events gave_up;
  in_group(
      lossy_world,
      [&](Group& group) {
        const EndOfRank ends_waiting(gave_up);
        auto step = make_lossy(group, "loss_budget=1,loss_off=1,drift=0,backup=0");
        while (step.step() < 30) ASSERT_TRUE(run(group, step).ok());
        if (group.rank() == 2) {
          gave_up.await(lossy_world - 1);
          return;
        }
        auto report = run(group, step);
        while (report.ok() && report->lost.empty()) report = run(group, step);
        gave_up.add(1);
        ASSERT_TRUE(report.ok()) << report.status().to_string();
        EXPECT_EQ(report->lost, std::vector<uint32_t>{2});
        EXPECT_NE(report->values->outcome.message().find("results of rank 2"), std::string::npos) << report->to_string();
        const auto refused = run(group, step).status();
        EXPECT_EQ(refused.code(), Code::peer_lost);
        EXPECT_NE(refused.message().find("rank 2 was silent for"), std::string::npos) << refused.message();
      },
      over_udp());
}

// The last rank leaves. The others continue with their replicas of its shard, and with its optimizer state from the backup.
TEST(ShardedStepLossInGroup, continues_without_a_lost_owner) {
  const Loses loses("100");
  std::mutex mutex;
  std::vector<Values> replicas;
  in_group(
      lossy_world,
      [&](Group& group) {
        auto made = ShardedStep::make(group, lossy_noise(7), make_adamw({}),
                                      *ShardedOptions::parse("loss_budget=1,loss_off=1,drift=0,backup=10,deadline=30s"));
        ASSERT_TRUE(made.ok()) << made.status().to_string();
        auto& step = *made;
        for (int i = 0; i < 45; ++i) ASSERT_TRUE(run(group, step).ok());
        ASSERT_TRUE(group.barrier().ok());  // no rank may still need data from the leaving rank
        if (group.rank() == lossy_world - 1) return;
        Status failed;
        for (int i = 0; i < 10 && failed.ok(); ++i) failed = run(group, step).status();
        ASSERT_EQ(failed.code(), Code::peer_lost) << failed.to_string();
        EXPECT_EQ(run(group, step).status().code(), Code::peer_lost);
        ASSERT_TRUE(group.reform().ok());
        const auto resumed = step.resume(group);
        ASSERT_TRUE(resumed.ok()) << resumed.status().to_string();
        ASSERT_EQ(resumed->lost.size(), 1u);
        const auto& lost = resumed->lost[0];
        EXPECT_EQ(lost.rank, lossy_world - 1);
        EXPECT_GE(lost.state_age, 5);
        EXPECT_LE(lost.state_age, 12);
        EXPECT_LE(lost.stale_ranges, lost.ranges);
        const auto before = step.step();
        for (int i = 0; i < 5; ++i) {
          const auto report = run(group, step);
          ASSERT_TRUE(report.ok()) << report.status().to_string();
        }
        EXPECT_EQ(step.step(), before + 5);
        ASSERT_TRUE(step.resync().ok());
        const std::lock_guard lock(mutex);
        replicas.emplace_back(step.parameters().begin(), step.parameters().end());
      },
      over_udp());
  ASSERT_EQ(replicas.size(), lossy_world - 1);
  for (const auto& replica : replicas) EXPECT_EQ(replica, replicas[0]);
}

}  // namespace
}  // namespace unisono
