// When DropPolicy records, drops and stops dropping, given made-up data of all ranks.
#include <gtest/gtest.h>

#include <vector>

#include "base/clock.h"

#include "training/drop_compute/drop_policy.h"

namespace unisono {
namespace {

using Phase = DropPolicy::Phase;
using Gather = DropPolicy::Gather;

// Feeds a policy with micro-batches computed per step and step times of all ranks.
class PolicyRun {
 public:
  PolicyRun(const std::string& options, uint32_t ranks, uint32_t micro_batches = 10)
      : policy(*DropOptions::parse(options), ranks, micro_batches), ranks_(ranks), micro_batches_(micro_batches) {}

  // Runs `count` steps in which rank r computes computed[r] micro-batches. Exchanges data as ranks would.
  void steps(uint64_t count, const std::vector<uint64_t>& computed, int64_t wall_ns = 10 * millisecond) {
    for (uint64_t i = 0; i < count; ++i) {
      const auto from = policy.window_from();
      window_.resize(ranks_);
      for (uint32_t rank = 0; rank < ranks_; ++rank)
        window_[rank].push_back(
            {.planned = micro_batches_, .computed = computed[rank], .compute_ns = wall_ns - millisecond, .wall_ns = wall_ns});
      gathered = policy.step_ended();
      if (gathered != Gather::nothing) warnings = policy.window_gathered(window_);
      if (gathered == Gather::trace) adopt();
      if (policy.window_from() != from) window_.assign(ranks_, {});
    }
  }
  void adopt() { policy.adopt(decision, decision.off != 0 ? "so it was found" : ""); }

  DropPolicy policy;
  DropPolicy::Decision decision{.threshold_ns = 8 * millisecond,
                                .micro_batch_ns = millisecond,
                                .predicted_step = 1.2,
                                .predicted_total = 1.2,
                                .predicted_drop = 0.1,
                                .per_second = 1000};
  Gather gathered = Gather::nothing;
  std::vector<std::string> warnings;

 private:
  const uint32_t ranks_, micro_batches_;
  std::vector<std::vector<StepRecord>> window_;
};

TEST(DropPolicy, warms_up_for_5_steps_records_44_and_drops_from_the_50th_on) {
  PolicyRun run("auto", 2);
  for (uint64_t step = 1; step < 60; ++step) {
    EXPECT_EQ(run.policy.next_step(), step);
    EXPECT_EQ(run.policy.phase(), step <= 5 ? Phase::warming_up : step <= 49 ? Phase::calibrating : Phase::dropping) << step;
    EXPECT_EQ(run.policy.threshold_ns().has_value(), step >= 50);
    EXPECT_EQ(run.policy.records(), step >= 6 && step <= 49);
    run.steps(1, {10, 10});
    EXPECT_EQ(run.gathered, step == 49 ? Gather::trace : Gather::nothing);
  }
  EXPECT_EQ(run.policy.threshold_ns(), 8 * millisecond);
  EXPECT_EQ(run.policy.rule().micro_batch_ns, millisecond);
}

TEST(DropPolicy, with_a_fixed_threshold_only_warms_up_and_before_records_for_the_mean_alone) {
  PolicyRun after("0.008", 2), before("0.008:rule=before", 2), none("off", 2);
  EXPECT_EQ(after.policy.phase(), Phase::warming_up);
  after.steps(5, {10, 10}), before.steps(5, {10, 10}), none.steps(5, {10, 10});
  EXPECT_EQ(after.policy.threshold_ns(), 8 * millisecond);
  EXPECT_EQ(before.policy.phase(), Phase::calibrating);
  EXPECT_EQ(none.policy.phase(), Phase::off);
  before.steps(44, {10, 10});
  EXPECT_EQ(before.policy.threshold_ns(), 8 * millisecond);
}

TEST(DropPolicy, reports_every_window_of_100_steps_even_without_drops) {
  PolicyRun run("off", 2);
  run.steps(104, {10, 10});
  EXPECT_EQ(run.gathered, Gather::nothing);
  run.steps(1, {10, 10});
  EXPECT_EQ(run.gathered, Gather::window);
  EXPECT_EQ(run.policy.report().first_step, 6u);
  EXPECT_EQ(run.policy.report().steps, 100u);
  EXPECT_EQ(run.policy.report().off, "");
  EXPECT_NEAR(run.policy.report().per_second, 2000, 1e-6);
}

TEST(DropPolicy, drift_starts_a_recording_without_switching_off) {
  PolicyRun run("auto", 2);
  run.steps(149, {10, 6});  // 16 of 20 computed: 20 % are dropped, and 10 % were predicted
  ASSERT_EQ(run.warnings.size(), 2u);
  EXPECT_EQ(run.warnings[0].rfind("persistent_straggler: rank 1", 0), 0u);
  EXPECT_EQ(run.warnings[1].rfind("drift: 20.0 %", 0), 0u) << run.warnings[1];
  EXPECT_EQ(run.policy.phase(), Phase::calibrating);
  EXPECT_FALSE(run.policy.threshold_ns());
  EXPECT_EQ(run.policy.recorded_from(), 150u);
  run.steps(44, {10, 10});
  EXPECT_EQ(run.policy.phase(), Phase::dropping);
}

TEST(DropPolicy, the_last_window_changes_no_decision) {
  PolicyRun run("auto", 2);
  run.steps(49, {10, 10});
  ASSERT_EQ(run.policy.phase(), Phase::dropping);
  (void)run.policy.step_ended();
  const std::vector<std::vector<StepRecord>> one_step(
      2, {{.planned = 10, .computed = 1, .compute_ns = millisecond, .wall_ns = 10 * millisecond}});
  EXPECT_TRUE(run.policy.window_gathered(one_step, true).empty());
  EXPECT_EQ(run.policy.phase(), Phase::dropping);
  EXPECT_DOUBLE_EQ(run.policy.report().drop, 0.9);
}

TEST(DropPolicy, switches_off_above_max_drop_if_it_may_not_record_again) {
  PolicyRun run("auto:recalibrate=never", 2);
  run.steps(149, {9, 7});
  EXPECT_EQ(run.policy.phase(), Phase::off);
  run.steps(3000, {10, 10});
  EXPECT_NE(run.policy.report().off.find("more than max_drop (10.0 %)"), std::string::npos) << run.policy.report().off;
  EXPECT_EQ(run.policy.phase(), Phase::off);
}

TEST(DropPolicy, switches_off_if_not_faster_and_retries_after_2000_steps) {
  PolicyRun run("auto", 2);
  run.steps(149, {9, 9}, 19 * millisecond);  // 18 / 19 ms = 947 micro-batches per second; 1000 were recorded
  EXPECT_EQ(run.policy.phase(), Phase::off);
  run.steps(1999, {10, 10});
  EXPECT_NE(run.policy.report().off.find("not faster: 947.4"), std::string::npos) << run.policy.report().off;
  EXPECT_EQ(run.policy.phase(), Phase::off);
  run.steps(1, {10, 10});
  EXPECT_EQ(run.policy.phase(), Phase::calibrating);
}

TEST(DropPolicy, recalibrates_periodically_on_request) {
  PolicyRun run("auto:recalibrate=200", 2);
  run.steps(248, {9, 9});
  EXPECT_EQ(run.policy.phase(), Phase::dropping);
  run.steps(1, {9, 9});
  EXPECT_EQ(run.policy.phase(), Phase::calibrating);
}

TEST(DropPolicy, extends_the_recording_until_enough_steps_are_recorded) {
  DropPolicy policy(*DropOptions::parse("auto:warmup=0"), 2, 10);
  EXPECT_EQ(policy.phase(), Phase::calibrating);
  for (int i = 0; i < 44; ++i) (void)policy.step_ended();
  EXPECT_TRUE(policy.extend(7));
  EXPECT_EQ(policy.step_ended(), Gather::nothing);
  EXPECT_EQ(policy.step_ended(), Gather::nothing);
  EXPECT_EQ(policy.step_ended(), Gather::trace);
  EXPECT_FALSE(policy.extend(10));
}

TEST(DropPolicy, stays_off_after_a_search_without_gain) {
  PolicyRun run("auto", 2);
  run.decision.off = 1;
  run.steps(5000, {10, 10});
  EXPECT_EQ(run.policy.phase(), Phase::off);
  EXPECT_EQ(run.policy.report().off, "so it was found");
}

TEST(DropPolicy, one_rank_drops_nothing_and_starts_when_others_join) {
  DropPolicy policy(*DropOptions::parse("auto:warmup=2"), 2, 10);
  policy.ranks_changed(1);
  EXPECT_EQ(policy.phase(), Phase::off);
  policy.ranks_changed(3);
  EXPECT_EQ(policy.phase(), Phase::warming_up);
  (void)policy.step_ended();
  (void)policy.step_ended();
  EXPECT_EQ(policy.phase(), Phase::calibrating);
}

TEST(DropPolicy, continues_from_its_written_state) {
  PolicyRun run("auto", 2);
  run.steps(77, {9, 9});
  ByteWriter writer;
  run.policy.write(writer);
  DropPolicy other(*DropOptions::parse("auto"), 2, 10);
  ByteReader reader(writer.view());
  ASSERT_TRUE(other.read(reader) && reader.done());
  EXPECT_EQ(other.next_step(), 78u);
  EXPECT_EQ(other.threshold_ns(), 8 * millisecond);
  EXPECT_EQ(other.rule(), run.policy.rule());
  for (size_t size = 0; size < writer.view().size(); ++size) {
    ByteReader cut(writer.view().first(size));
    EXPECT_FALSE(other.read(cut)) << size;
  }
  EXPECT_EQ(other.next_step(), 78u);
}

// A rank whose shard is finished counts neither in the dropped share nor in the arrival spread.
TEST(DropPolicy, excludes_ranks_without_data_from_its_numbers) {
  const std::vector<std::vector<StepRecord>> ranks{
      {{10, 8, 5 * millisecond, 10 * millisecond}, {10, 10, 6 * millisecond, 10 * millisecond}},
      {{0, 0, 0, 10 * millisecond}, {4, 2, 2 * millisecond, 10 * millisecond}}};
  const auto sums = sums_of(ranks);
  DropReport report;
  fill(report, sums);
  EXPECT_DOUBLE_EQ(report.drop, 4.0 / 24);
  EXPECT_DOUBLE_EQ(report.drop_most, 0.5);
  EXPECT_EQ(report.drop_most_rank, 1u);
  EXPECT_DOUBLE_EQ(report.compute_mean, 0.0055);
  EXPECT_DOUBLE_EQ(report.arrival_spread, 0.002);
  EXPECT_DOUBLE_EQ(report.extra_steps, 4.0 / 20);
}

TEST(DropPolicy, ranks_without_data_are_no_reason_to_switch_off) {
  PolicyRun run("auto", 2);
  run.steps(49, {10, 10});
  for (int i = 0; i < 100; ++i) (void)run.policy.step_ended();
  const StepRecord computes{10, 9, 14 * millisecond, 15 * millisecond},
      // 9 / 15 ms = 600 micro-batches per second from one of two ranks, so 1200 for both; 1000 were recorded.
      through{0, 0, 0, 15 * millisecond};
  (void)run.policy.window_gathered(
      std::vector<std::vector<StepRecord>>{std::vector<StepRecord>(100, computes), std::vector<StepRecord>(100, through)});
  EXPECT_EQ(run.policy.phase(), Phase::dropping);
}

TEST(DropPolicy, compares_rates_per_rank_after_a_loss) {
  PolicyRun run("auto", 2);
  run.steps(49, {10, 10});
  run.policy.ranks_changed(1 + 3);
  for (int i = 0; i < 100; ++i) (void)run.policy.step_ended();
  run.policy.ranks_changed(3);
  const std::vector<StepRecord> slow(1, {10, 9, 14 * millisecond, 15 * millisecond}),
      // Per rank, `slow` is 9 / 15 ms = 600 micro-batches per second, and `slower` 9 / 19 ms = 474; 500 were recorded.
      slower(1, {10, 9, 18 * millisecond, 19 * millisecond});
  (void)run.policy.window_gathered(std::vector{slow, slow, slow});
  EXPECT_EQ(run.policy.phase(), Phase::dropping);
  EXPECT_NEAR(run.policy.report().per_second_before, 1500, 1e-6);
  (void)run.policy.window_gathered(std::vector{slower, slower, slower});
  EXPECT_EQ(run.policy.phase(), Phase::off);
}

TEST(DropPolicy, retries_dropping_when_ranks_join) {
  PolicyRun run("auto", 2);
  run.decision.off = 1;
  run.steps(60, {10, 10});
  run.policy.ranks_changed(1);
  EXPECT_EQ(run.policy.phase(), Phase::off);
  run.policy.ranks_changed(4);
  EXPECT_EQ(run.policy.phase(), Phase::warming_up);
  for (int i = 0; i < 5; ++i) (void)run.policy.step_ended();
  EXPECT_EQ(run.policy.phase(), Phase::calibrating);
}

TEST(DropPolicy, remembers_a_measured_loss_through_a_second_warm_up) {
  PolicyRun run("auto", 2);
  run.steps(149, {9, 9}, 19 * millisecond);
  ASSERT_EQ(run.policy.phase(), Phase::off);
  run.policy.restart();
  run.steps(5, {10, 10});
  EXPECT_EQ(run.policy.phase(), Phase::off);
  run.steps(101, {10, 10});
  EXPECT_NE(run.policy.report().off.find("not faster"), std::string::npos) << run.policy.report().off;
}

TEST(DropPolicy, a_window_cut_short_by_a_new_recording_is_reported) {
  PolicyRun run("auto:recalibrate=30", 2);
  run.steps(79, {9, 9});
  EXPECT_EQ(run.policy.phase(), Phase::calibrating);
  EXPECT_EQ(run.policy.report().first_step, 50u);
  EXPECT_EQ(run.policy.report().steps, 30u);
  EXPECT_EQ(run.policy.total().first_step, 6u);
  EXPECT_EQ(run.policy.total().steps, 74u);
}

TEST(DropPolicy, restarts_the_recording_if_no_step_was_recorded_by_all_ranks) {
  DropPolicy policy(*DropOptions::parse("auto:warmup=0"), 2, 10);
  for (int i = 0; i < 44; ++i) (void)policy.step_ended();
  EXPECT_EQ(policy.recorded_from(), 1u);
  EXPECT_TRUE(policy.extend(0));
  EXPECT_EQ(policy.recorded_from(), 45u);
}

TEST(DropPolicy, a_threshold_is_at_least_a_nanosecond) {
  DropPolicy policy(*DropOptions::parse("1e-10:warmup=0"), 2, 10);
  EXPECT_EQ(policy.threshold_ns(), 1);
}

TEST(DropPolicy, describes_a_window_in_one_line) {
  PolicyRun run("auto", 2);
  run.steps(149, {9, 9}, 15 * millisecond);
  const auto text = run.policy.report().to_string();
  EXPECT_EQ(text.rfind("steps 50 to 149, dropping, after, threshold 0.008 s: dropped 10 % (predicted 10), most by rank 0: 10 "
                       "%; 1200 micro-batches/s, 1.2 times the rate before (predicted 1.2)",
                       0),
            0u)
      << text;
  EXPECT_NE(text.find("11.11 % more steps make up for it"), std::string::npos) << text;
  PolicyRun fixed("0.008", 2);  // a fixed threshold has no recorded times to predict from
  fixed.steps(105, {9, 9});
  EXPECT_EQ(fixed.policy.report().to_string().find("predicted"), std::string::npos) << fixed.policy.report().to_string();
}

}  // namespace
}  // namespace unisono
