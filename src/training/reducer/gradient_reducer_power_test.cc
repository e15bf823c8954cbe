// PowerSGD between ranks of real groups, through the gradient reducer: the same guarantees as for ARC-Top-K.
#include <gtest/gtest.h>

#include <cmath>

#include "base/concat.h"
#include "testing/group_of_threads.h"
#include "training/reducer/gradient_reducer_test_support.h"
#include "training/reducer/reduction_pipeline.h"

namespace unisono {
namespace {

using test::in_group;
using test::kept_by;
using test::Ledger;
using test::model;
using test::normals;
using test::power_sgd;
using test::ReducerRank;
using test::Values;

void step_with(Ledger& ledger, ReducerRank& rank, uint64_t number) {
  rank.fill(number);
  ledger.give(rank);
  const auto report = rank.step();
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  ledger.deliver(rank);
}

TEST(GradientReducerPower, loses_no_value_and_gives_all_ranks_the_same_bits) {
  for (const uint32_t world : {2u, 3u, 5u}) {
    for (const char* schedule : {"auto", "ring", "two_step", "one_shot"}) {
      SCOPED_TRACE(concat(world, " ranks, ", schedule));
      Ledger ledger;
      std::vector<std::vector<Values>> got(world);
      in_group(world, [&](Group& group) {
        ReducerRank rank(group);
        ASSERT_TRUE(rank.make(power_sgd(std::string("values_schedule=") + schedule)).ok());
        for (uint64_t step = 0; step < 20; ++step) step_with(ledger, rank, step);
        ledger.keep(rank);
        got[group.rank()] = rank.values;
      });
      ledger.expect_balanced();
      for (const auto& each : got) EXPECT_EQ(each, got[0]);
    }
  }
}

TEST(GradientReducerPower, sends_two_factors_and_reports_them) {
  const auto plan = *CompressionPlan::make(model, power_sgd());
  in_group(3, [&](Group& group) {
    ReducerRank rank(group);
    ASSERT_TRUE(rank.make(power_sgd()).ok());
    for (uint64_t step = 0; step < 3; ++step) {
      const auto report = rank.step(step);
      ASSERT_TRUE(report.ok()) << report.status().to_string();
      EXPECT_EQ(report->costs.collectives, 4u);
      EXPECT_EQ(report->compressed, 3u);
      EXPECT_EQ(report->whole, 1u);
      EXPECT_EQ(report->ratio, 0);
      EXPECT_EQ(report->rank, 2u);
      EXPECT_EQ(report->costs.payload_elements, 2u * (40 + 50 + 31 + 65 + 64 + 32) + 33);
      EXPECT_EQ(report->costs.payload_elements, plan.payload);
      EXPECT_EQ(report->state_bytes, plan.state_bytes);
      EXPECT_GT(report->output_norm, 0);
      EXPECT_EQ(report->residual_norm_mean > 0, step > 0);
    }
  });
  EXPECT_EQ(plan.parameters[0].factor_columns, 2u);
  EXPECT_EQ(plan.parameters[0].kept_rows, 0u);
  EXPECT_EQ(plan.parameters[1].factor_columns, 0u);
  EXPECT_EQ(plan.parameters[1].reason, "it has less than two dimensions");
}

TEST(GradientReducerPower, averages_tensors_of_sizes_0_1_and_odd) {
  const std::vector<Parameter> parameters{{"none", {0, 3}}, {"one", {1}}, {"dot", {1, 1}}, {"odd", {7, 3, 5}}};
  in_group(3, [&](Group& group) {
    auto made = GradientReducer::make(group, parameters, power_sgd("max_payload=1,feedback=none"));
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    Values one{1.0f + group.rank()}, dot{2.0f + group.rank()}, odd(105, 3.0f + group.rank());
    const Gradient bucket[] = {{"none", nullptr}, {"one", one.data()}, {"dot", dot.data()}, {"odd", odd.data()}};
    ASSERT_TRUE(made->reduce(bucket).ok());
    ASSERT_TRUE(made->finish().ok());
    EXPECT_EQ(one, Values{2});
    EXPECT_NEAR(dot[0], 3, 1e-5);
    for (const float value : odd) EXPECT_NEAR(value, 4, 1e-5);
  });
}

TEST(GradientReducerPower, skips_or_poisons_a_nonfinite_step_on_all_ranks) {
  for (const uint32_t tensor : {1u, 2u, 4u}) {
    for (const bool poison : {false, true}) {
      in_group(3, [&](Group& group) {
        ReducerRank rank(group);
        ASSERT_TRUE(rank.make(power_sgd(poison ? "nonfinite=poison" : "")).ok());
        for (uint64_t step = 0; step < 6; ++step) {
          rank.fill(step);
          if (step == 4 && group.rank() == 1) rank.values[tensor][7] = poison ? NAN : INFINITY;
          auto before = kept_by(rank);
          const auto report = rank.step();
          ASSERT_TRUE(report.ok()) << report.status().to_string();
          EXPECT_EQ(report->applied, step != 4);
          if (step != 4) continue;
          EXPECT_EQ(std::isnan(rank.values[tensor][0]), poison);
          const char* name = tensor == 4 ? "e" : "a";
          EXPECT_EQ(kept_by(rank)[name].residual, before[name].residual);
        }
      });
    }
  }
}

TEST(GradientReducerPower, undoes_steps_changes_buckets_and_flushes) {
  Ledger ledger;
  in_group(3, [&](Group& group) {
    ReducerRank rank(group);
    ASSERT_TRUE(rank.make(power_sgd()).ok());
    for (uint64_t step = 0; step < 14; ++step) {
      rank.fill(step);
      // step_skipped() keeps no residual of dense tensors. So in a skipped step, the dense tensor's gradient is zeros here.
      if (step % 3 == 1) std::fill(rank.values[1].begin(), rank.values[1].end(), 0.0f);
      ledger.give(rank);
      if (step == 12) rank.reducer->flush();
      if (step % 2 == 0) ASSERT_TRUE(rank.reduce({0, 1, 2, 3, 4}).ok());
      else ASSERT_TRUE(rank.reduce({4, 2}).ok() && rank.reduce({1, 0}).ok());
      ASSERT_TRUE(rank.reducer->finish().ok());
      if (step % 3 == 1) rank.reducer->step_skipped();
      else ledger.deliver(rank);
      if (step != 12) continue;
      for (const auto& [name, state] : kept_by(rank)) EXPECT_TRUE(state.residual.empty()) << name;
    }
    ledger.keep(rank);
  });
  ledger.expect_balanced();
}

TEST(GradientReducerPower, continues_bit_for_bit_from_a_checkpoint) {
  in_group(2, [&](Group& group) {
    ReducerRank rank(group), later(group), other(group);
    ASSERT_TRUE(rank.make(power_sgd()).ok() && later.make(power_sgd()).ok());
    for (uint64_t step = 0; step < 5; ++step) ASSERT_TRUE(rank.step(step).ok());
    const auto saved = rank.reducer->save();
    ASSERT_TRUE(later.reducer->load(saved).ok());
    for (uint64_t step = 5; step < 25; ++step) {
      ASSERT_TRUE(rank.step(step).ok() && later.step(step).ok());
      ASSERT_EQ(rank.values, later.values);
    }
    for (const auto& options : {power_sgd("seed=5"), test::arc()}) {
      ASSERT_TRUE(other.make(options).ok());
      EXPECT_NE(other.reducer->load(saved).message().find("config_mismatch"), std::string::npos);
    }
    auto parameters = model;
    parameters[0].shape = {50, 40};  // as many elements as before, but another factor size
    ASSERT_TRUE(other.make(power_sgd(), parameters).ok());
    EXPECT_NE(other.reducer->load(saved).message().find("has a factor of 80 elements"), std::string::npos);
  });
}

TEST(GradientReducerPower, refuses_ranks_with_other_options) {
  for (const auto& options : {power_sgd("seed=1"), *Compression::parse("power_sgd:rank=3,start=0,auto_off=off,min_elements=0"),
                              power_sgd("feedback=none"), test::arc("rank=2")}) {
    in_group(3, [&](Group& group) {
      ReducerRank rank(group);
      const auto status = rank.make(group.rank() == 1 ? options : power_sgd());
      EXPECT_EQ(status.code(), Code::invalid);
      EXPECT_NE(status.message().find("config_mismatch"), std::string::npos) << status.to_string();
    });
  }
}

// Rank 2 begins with another warm start, as after a checkpoint that was changed on one rank.
TEST(GradientReducerPower, refuses_ranks_with_other_start_factors) {
  in_group(3, [](Group& group) {
    FeedbackStore store;
    Bucket bucket;
    bucket.feedback = *ErrorFeedback::make(
        {}, *make_power_sgd({.rule = {.min_elements = 0}, .rank = 2}, 0, {{.number = 0, .shape = {60, 20}}}), {"w"}, store);
    store.at("w").warm = normals(4, group.rank() == 2, 0, 40);
    auto gradient = normals(3, 0, group.rank(), 1200);
    const auto before = gradient;
    bucket.gradients = {gradient.data()};
    std::vector<uint32_t> all{0, 1, 2};
    ReductionPipeline pipeline(*group.split(all), {});
    pipeline.begin_step(0, 1);
    pipeline.submit(bucket);
    pipeline.finish();
    EXPECT_EQ(bucket.status.code(), Code::invalid);
    EXPECT_NE(bucket.status.message().find("index_mismatch"), std::string::npos) << bucket.status.to_string();
    bucket.feedback->abandon();
    EXPECT_EQ(store.at("w").residual, before);
    EXPECT_TRUE(store.at("w").warm.empty());
  });
}

TEST(GradientReducerPower, continues_after_a_rank_loss_with_the_survivors_residuals) {
  Ledger ledger;
  in_group(3, [&](Group& group) {
    ReducerRank rank(group);
    ASSERT_TRUE(rank.make(power_sgd()).ok());
    for (uint64_t step = 0; step < 4; ++step) step_with(ledger, rank, step);
    if (group.rank() == 2) return ledger.keep(rank);
    rank.fill(4);
    ledger.give(rank);
    const auto report = rank.step();
    ASSERT_FALSE(report.ok());
    EXPECT_EQ(report.status().code(), Code::peer_lost) << report.status().to_string();
    ASSERT_TRUE(group.reform().ok());
    const auto resumed = rank.reducer->resume(group);
    ASSERT_TRUE(resumed.ok()) << resumed.status().to_string();
    ASSERT_EQ(resumed->lost.size(), 1u);
    EXPECT_GT(resumed->lost[0].residual_norm, 0);
    for (uint64_t step = 4; step < 9; ++step) step_with(ledger, rank, step);
    ledger.keep(rank);
  });
  ledger.expect_balanced();
}

TEST(GradientReducerPower, admits_a_process_without_factors) {
  Ledger ledger;
  std::vector<std::vector<Values>> got(3);
  const auto continue_training = [&](Group& group, ReducerRank& rank) {
    for (uint64_t step = 4; step < 8; ++step) step_with(ledger, rank, step);
    ledger.keep(rank);
    got[group.rank()] = rank.values;
  };
  in_group(
      2,
      [&](Group& group) {
        ReducerRank rank(group);
        ASSERT_TRUE(rank.make(power_sgd()).ok());
        for (uint64_t step = 0; step < 4; ++step) step_with(ledger, rank, step);
        while (group.world_size() < 3) ASSERT_TRUE(group.reform().ok());
        ASSERT_TRUE(rank.reducer->resume(group).ok());
        continue_training(group, rank);
      },
      {},
      [&](Group& group) {
        ReducerRank rank(group);
        ASSERT_TRUE(rank.make(power_sgd()).ok());
        EXPECT_EQ(rank.reducer->step(), 4u);
        continue_training(group, rank);
      });
  ledger.expect_balanced();
  for (const auto& each : got) EXPECT_EQ(each, got[0]);
}

}  // namespace
}  // namespace unisono
