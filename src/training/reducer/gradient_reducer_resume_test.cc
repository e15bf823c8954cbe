// The gradient reducer after its group was re-formed: residuals of survivors, the state of ranks that join, and ranks that
// missed a step.
#include <gtest/gtest.h>

#include <barrier>
#include <cmath>

#include "testing/group_of_threads.h"
#include "training/reducer/gradient_reducer_test_support.h"

namespace unisono {
namespace {

using test::arc;
using test::in_group;
using test::kept_by;
using test::Ledger;
using test::model;
using test::ReducerRank;

double norm(const FeedbackStore& store) {
  double all = 0;
  for (const auto& [name, state] : store) {
    for (const float value : state.residual) all += double{value} * value;
  }
  return std::sqrt(all);
}

// Runs one step and enters its gradients and averages into the ledger.
void step_with(Ledger& ledger, ReducerRank& rank, uint64_t number) {
  rank.fill(number);
  ledger.give(rank);
  const auto report = rank.step();
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  EXPECT_EQ(report->step, number);
  ledger.deliver(rank);
}

Result<Resumed> resume(Group& group, ReducerRank& rank) {
  auto reformed = group.reform();
  if (!reformed.ok()) return reformed.status();
  return rank.reducer->resume(group);
}

// The last rank leaves after four steps. The other ranks then run the fifth step, which fails. Rank 0 calls resume() without
// having called finish().
void lose_a_rank(uint32_t world, const std::string& options) {
  SCOPED_TRACE(options);
  Ledger ledger;
  double lost_norm = 0;
  in_group(world, [&](Group& group) {
    ReducerRank rank(group);
    ASSERT_TRUE(rank.make(arc(options)).ok());
    for (uint64_t step = 0; step < 4; ++step) {
      // A step reports the norm of the residual that the previous step left. So this is the expected norm, taken before the
      // last step.
      if (step == 3 && group.rank() == world - 1) lost_norm = norm(kept_by(rank));
      step_with(ledger, rank, step);
    }
    if (group.rank() == world - 1) return ledger.keep(rank);
    rank.fill(4);
    ledger.give(rank);
    if (group.rank() == 0) {
      ASSERT_TRUE(rank.reduce({4, 3}).ok() && rank.reduce({2, 1, 0}).ok());
    } else {
      const auto report = rank.step();
      ASSERT_FALSE(report.ok());
      EXPECT_EQ(report.status().code(), Code::peer_lost) << report.status().to_string();
    }
    const auto resumed = resume(group, rank);
    ASSERT_TRUE(resumed.ok()) << resumed.status().to_string();
    EXPECT_EQ(resumed->step, 4u);
    EXPECT_EQ(resumed->parameters_from, 0u);
    ASSERT_EQ(resumed->lost.size(), 1u);
    EXPECT_EQ(resumed->lost[0].member.rank, world - 1);
    EXPECT_NEAR(resumed->lost[0].residual_norm, lost_norm, 1e-3 * lost_norm);
    for (uint64_t step = 4; step < 9; ++step) step_with(ledger, rank, step);
    ledger.keep(rank);
  });
  EXPECT_GT(lost_norm, 0);
  ledger.expect_balanced();
}

TEST(GradientReducerResume, survivors_keep_their_residuals) {
  lose_a_rank(3, "ratio=0.2");
  lose_a_rank(4, "ratio=0.1,refresh=8");
  lose_a_rank(3, "ratio=0.2,values=int8,values_schedule=two_step");
}

TEST(GradientReducerResume, the_last_rank_adds_its_residual_to_its_next_step) {
  Ledger ledger;
  in_group(2, [&](Group& group) {
    ReducerRank rank(group);
    ASSERT_TRUE(rank.make(arc()).ok());
    for (uint64_t step = 0; step < 3; ++step) step_with(ledger, rank, step);
    if (group.rank() == 1) return ledger.keep(rank);
    ASSERT_FALSE(rank.step(3).ok());
    rank.fill(3);
    ledger.give(rank);
    ASSERT_TRUE(resume(group, rank).ok());
    for (uint64_t step = 3; step < 5; ++step) step_with(ledger, rank, step);
    EXPECT_EQ(norm(kept_by(rank)), 0);
    ledger.keep(rank);
  });
  ledger.expect_balanced();
}

// A requested flush is not lost when its step fails.
TEST(GradientReducerResume, a_flush_in_a_failed_step_is_repeated_in_the_next) {
  Ledger ledger;
  in_group(3, [&](Group& group) {
    ReducerRank rank(group);
    ASSERT_TRUE(rank.make(arc()).ok());
    for (uint64_t step = 0; step < 3; ++step) step_with(ledger, rank, step);
    if (group.rank() == 2) return ledger.keep(rank);
    rank.reducer->flush();
    rank.fill(3);
    ledger.give(rank);
    ASSERT_FALSE(rank.step().ok());
    ASSERT_TRUE(resume(group, rank).ok());
    step_with(ledger, rank, 3);
    EXPECT_EQ(norm(kept_by(rank)), 0);
    ledger.keep(rank);
  });
  ledger.expect_balanced();
}

void take_in(Group& group) {
  while (group.world_size() < 3) ASSERT_TRUE(group.reform().ok());
}

TEST(GradientReducerResume, a_joining_process_has_no_residual_and_receives_the_step) {
  Ledger ledger;
  in_group(
      2,
      [&](Group& group) {
        ReducerRank rank(group);
        ASSERT_TRUE(rank.make(arc()).ok());
        for (uint64_t step = 0; step < 4; ++step) step_with(ledger, rank, step);
        take_in(group);
        const auto resumed = rank.reducer->resume(group);
        ASSERT_TRUE(resumed.ok()) << resumed.status().to_string();
        EXPECT_TRUE(resumed->lost.empty());
        for (uint64_t step = 4; step < 8; ++step) step_with(ledger, rank, step);
        ledger.keep(rank);
      },
      {},
      [&](Group& group) {
        ReducerRank rank(group);
        ASSERT_TRUE(rank.make(arc()).ok());
        EXPECT_EQ(rank.reducer->step(), 4u);
        EXPECT_EQ(rank.reducer->resumed().parameters_from, 0u);
        for (uint64_t step = 4; step < 8; ++step) step_with(ledger, rank, step);
        ledger.keep(rank);
      });
  ledger.expect_balanced();
}

// EF21M: the mean over all ranks is rebuilt by an uncompressed step, in each bucket.
TEST(GradientReducerResume, ef21m_restarts_with_an_uncompressed_step) {
  std::mutex mutex;
  std::vector<FeedbackStore> stores;
  const auto continue_training = [&](ReducerRank& rank) {
    for (uint64_t step = 3; step < 7; ++step) {
      rank.fill(step);
      const auto report = rank.step();
      ASSERT_TRUE(report.ok()) << report.status().to_string();
      EXPECT_EQ(report->compressed == 0, step == 3);
    }
    const std::lock_guard lock(mutex);
    stores.push_back(kept_by(rank));
  };
  const auto options = arc("feedback=ef21m,eta=0.5");
  in_group(
      2,
      [&](Group& group) {
        ReducerRank rank(group);
        ASSERT_TRUE(rank.make(options).ok());
        for (uint64_t step = 0; step < 3; ++step) ASSERT_TRUE(rank.step(step).ok());
        take_in(group);
        ASSERT_TRUE(rank.reducer->resume(group).ok());
        continue_training(rank);
      },
      {},
      [&](Group& group) {
        ReducerRank rank(group);
        ASSERT_TRUE(rank.make(options).ok());
        continue_training(rank);
      });
  ASSERT_EQ(stores.size(), 3u);
  for (const auto& name : {"a", "c", "e"}) {
    const auto& mean = stores[0][name].mean;
    ASSERT_FALSE(mean.empty());
    for (size_t k = 0; k < mean.size(); ++k) {
      double sum = 0;
      for (auto& store : stores) sum += store[name].known[k];
      ASSERT_NEAR(mean[k], sum / 3, 1e-5);
    }
    EXPECT_EQ(mean, stores[2][name].mean);
  }
}

TEST(GradientReducerResume, a_joiner_with_other_options_is_refused_and_may_retry) {
  in_group(
      2,
      [&](Group& group) {
        ReducerRank rank(group);
        ASSERT_TRUE(rank.make(arc()).ok());
        ASSERT_TRUE(rank.step(0).ok());
        take_in(group);
        const auto resumed = rank.reducer->resume(group);
        ASSERT_FALSE(resumed.ok());
        EXPECT_NE(resumed.status().message().find("config_mismatch"), std::string::npos) << resumed.status().to_string();
        ASSERT_TRUE(rank.reducer->resume(group).ok());
        EXPECT_TRUE(rank.step(1).ok());
      },
      {},
      [&](Group& group) {
        ReducerRank rank(group);
        EXPECT_NE(rank.make(arc("ratio=0.3")).message().find("config_mismatch"), std::string::npos);
        ASSERT_TRUE(rank.make(arc()).ok());
        EXPECT_TRUE(rank.step(1).ok());
      });
}

// Rank 1 does not finish a step that the other ranks finish and use.
void fall_behind(const std::string& options, bool whole) {
  SCOPED_TRACE(options + (whole ? ", whole" : ""));
  Ledger ledger;
  std::barrier all(3);
  in_group(3, [&](Group& group) {
    ReducerRank rank(group);
    ASSERT_TRUE(rank.make(arc(options)).ok());
    for (uint64_t step = 0; step < 3; ++step) step_with(ledger, rank, step);
    if (whole) rank.reducer->flush();
    if (group.rank() == 1) {
      rank.fill(3);
      ledger.give(rank);
      ASSERT_TRUE(rank.reduce({4, 3}).ok() && rank.reduce({2, 1, 0}).ok());
    } else {
      step_with(ledger, rank, 3);
    }
    if (group.rank() == 0) ledger.deliver(rank);  // delivered on behalf of rank 1, which will copy the parameters of rank 0
    all.arrive_and_wait();
    const auto resumed = resume(group, rank);
    ASSERT_TRUE(resumed.ok()) << resumed.status().to_string();
    EXPECT_EQ(resumed->step, 4u);
    EXPECT_EQ(resumed->parameters_from, 0u);
    for (uint64_t step = 4; step < 7; ++step) step_with(ledger, rank, step);
    ledger.keep(rank);
  });
  // With a codec, rank 1 may not know the encoding errors of its values. The tolerance is then larger.
  ledger.expect_balanced(options.find("values=") == std::string::npos ? 1e-5 : 1e-3);
}

TEST(GradientReducerResume, a_lagging_rank_counts_values_used_by_others_as_sent) {
  for (const char* options : {"ratio=0.2", "values=bf16,values_schedule=two_step"}) {
    fall_behind(options, false);
    fall_behind(options, true);
  }
}

// Rank 0 misses step 1. The group is then re-formed twice, before rank 0 has copied parameters. Both times, resume() must name
// rank 1 as the source.
TEST(GradientReducerResume, parameters_come_from_a_rank_that_holds_them) {
  std::barrier all(3);
  in_group(3, [&](Group& group) {
    ReducerRank rank(group);
    ASSERT_TRUE(rank.make(arc()).ok());
    ASSERT_TRUE(rank.step(0).ok());
    rank.fill(1);
    if (group.rank() == 0) ASSERT_TRUE(rank.reduce({4, 3}).ok() && rank.reduce({2, 1, 0}).ok());
    else ASSERT_TRUE(rank.step().ok());
    all.arrive_and_wait();
    for (int time = 0; time < 2; ++time) {
      const auto resumed = resume(group, rank);
      ASSERT_TRUE(resumed.ok()) << resumed.status().to_string();
      EXPECT_EQ(resumed->step, 2u);
      EXPECT_EQ(resumed->parameters_from, 1u);
    }
    ASSERT_TRUE(rank.step(2).ok());
    const auto resumed = resume(group, rank);
    ASSERT_TRUE(resumed.ok());
    EXPECT_EQ(resumed->step, 3u);
    EXPECT_EQ(resumed->parameters_from, 0u);
  });
}

}  // namespace
}  // namespace unisono
