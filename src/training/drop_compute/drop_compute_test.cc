// DropCompute in groups of threads with simulated clocks: computed micro-batches, averages and reports. Numbers of checks refer
// to docs/design/methods/drop_compute.md, "Checked values".
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <set>

#include "base/random.h"
#include "training/drop_compute/drop_compute_test_support.h"

namespace unisono {
namespace {

using test::constant_latency;
using test::in_group;
using test::ms;
using test::with_stalls;
using test::Worker;

TEST(DropCompute, records_without_drops_then_drops_by_the_searched_threshold) {
  in_group(4, [](Group& group) {
    Worker worker(group, 12, with_stalls);
    ASSERT_TRUE(worker.make("auto:max_drop=0.5").ok());
    for (int i = 0; i < 49; ++i) {
      const auto step = worker.step();
      ASSERT_TRUE(step.ok()) << step.status().to_string();
      EXPECT_EQ(step->computed, 12u);
    }
    auto trace = worker.drop->trace_of(6, 50, false);  // step 49, the last recorded step, is still open
    ASSERT_TRUE(trace.ok());
    EXPECT_EQ((*trace)->steps(), 43u);
    uint64_t computed = 0, planned = 0;
    for (int i = 0; i < 100; ++i) {
      const auto step = worker.step();
      ASSERT_TRUE(step.ok()) << step.status().to_string();
      computed += step->computed, planned += step->planned;
    }
    ASSERT_TRUE(worker.step().ok());  // exchanges the window's records, so that a report follows
    trace = worker.drop->trace_of(6, 50, false);
    ASSERT_TRUE(trace.ok());
    ASSERT_EQ((*trace)->steps(), 44u);
    const auto options = *DropOptions::parse("auto:max_drop=0.5");
    const auto found = search(**trace, search_options(options, **trace));
    const auto& report = worker.drop->report();
    EXPECT_EQ(report.state, "dropping");
    EXPECT_EQ(std::llround(report.threshold * 1e9), found.best.threshold_ns);
    EXPECT_EQ(report.predicted_total, found.best.total);
    EXPECT_EQ(report.first_step, 50u);
    EXPECT_EQ(report.steps, 100u);
    // Check 21 of docs/design/methods/drop_compute.md: the reported drop is 1 - (sum of k) / (N M I), on all ranks.
    uint64_t sums[] = {computed, planned};
    ASSERT_TRUE(group.all_reduce(std::span<uint64_t>(sums)).ok());
    EXPECT_EQ(report.drop, static_cast<double>(sums[1] - sums[0]) / static_cast<double>(sums[1]));
    EXPECT_GT(report.drop, 0);
    EXPECT_GT(report.per_second, report.per_second_before);
    EXPECT_NEAR(report.per_second / report.per_second_before, report.predicted_total, 0.1 * report.predicted_total);
  });
}

// Check 12 of docs/design/methods/drop_compute.md: rank 5 takes twice as long as the other seven.
TEST(DropCompute, names_a_rank_that_is_always_slow_within_one_window) {
  in_group(8, [](Group& group) {
    Worker worker(group, 12, [](uint32_t rank, uint64_t, uint32_t) { return rank == 5 ? 2 * ms : ms; });
    ASSERT_TRUE(worker.make("auto:slack=0").ok());
    worker.run(150);
    const auto& report = worker.drop->report();
    EXPECT_EQ(std::llround(report.threshold * 1e9), 11 * ms);
    EXPECT_NEAR(report.predicted_total, 147.0 / 80, 1e-9);
    EXPECT_NEAR(report.drop, 1.0 / 16, 1e-12);
    EXPECT_EQ(report.drop_most_rank, 5u);
    EXPECT_NEAR(report.per_second / report.per_second_before, 147.0 / 80, 1e-9);
    ASSERT_EQ(worker.warnings.size(), 1u);
    EXPECT_NE(worker.warnings[0].find("persistent_straggler: rank 5 has dropped 50.0 %"), std::string::npos)
        << worker.warnings[0];
  });
}

TEST(DropCompute, stays_off_with_a_reason_if_no_rank_is_late) {
  in_group(3, [](Group& group) {
    Worker worker(group, 12, constant_latency);
    ASSERT_TRUE(worker.make("auto").ok());
    worker.run(150);
    EXPECT_EQ(worker.drop->report().state, "off");
    EXPECT_NE(worker.drop->report().off.find("gain"), std::string::npos) << worker.drop->report().off;
    EXPECT_EQ(worker.drop->total().drop, 0);
    EXPECT_TRUE(worker.warnings.empty());
  });
}

// Check 11 of docs/design/methods/drop_compute.md: with one rank no rank waits, and with one micro-batch none can be dropped.
TEST(DropCompute, stays_off_with_one_rank_or_one_micro_batch) {
  in_group(1, [](Group& group) {
    Worker worker(group, 3, [](uint32_t, uint64_t, uint32_t micro_batch) { return micro_batch == 3 ? 10 * ms : ms; });
    ASSERT_TRUE(worker.make("auto").ok());
    worker.run(150);
    EXPECT_NE(worker.drop->report().off.find("one worker"), std::string::npos);
  });
  in_group(2, [](Group& group) {
    Worker worker(group, 1, with_stalls);
    ASSERT_TRUE(worker.make("auto").ok());
    worker.run(150);
    EXPECT_NE(worker.drop->report().off.find("nothing_to_drop"), std::string::npos);
  });
}

TEST(DropCompute, records_again_with_dropping_off_when_ranks_become_slower) {
  in_group(3, [](Group& group) {
    Worker worker(group, 12, [](uint32_t rank, uint64_t step, uint32_t micro_batch) {
      return with_stalls(rank, step, micro_batch) * (step > 160 ? 3 : 1);
    });
    ASSERT_TRUE(worker.make("auto:max_drop=0.5").ok());
    worker.run(150);
    ASSERT_EQ(worker.drop->report().state, "dropping");
    const double before = worker.drop->report().threshold;
    EXPECT_TRUE(worker.warnings.empty());
    EXPECT_GT(worker.run(99).step, 248u);
    EXPECT_EQ(worker.step()->computed, 12u);
    ASSERT_EQ(worker.warnings.size(), 1u);
    EXPECT_EQ(worker.warnings[0].rfind("drift: ", 0), 0u) << worker.warnings[0];
    for (int i = 0; i < 43; ++i) EXPECT_EQ(worker.step()->computed, 12u);
    worker.run(101);
    EXPECT_EQ(worker.drop->report().state, "dropping");
    EXPECT_NEAR(worker.drop->report().threshold / before, 3, 0.8);
  });
}

// Check 13 of docs/design/methods/drop_compute.md: one rank computes 3 of 3 micro-batches, the other 1 of 3. The sum is divided
// by 6 (normalize=max) or by 4 (normalize=computed).
TEST(DropCompute, divides_by_all_micro_batches_or_by_those_that_were_computed) {
  for (const std::string normalize : {"max", "computed"}) {
    SCOPED_TRACE(normalize);
    in_group(2, [&](Group& group) {
      Worker worker(group, 3, constant_latency);
      const bool first = group.rank() == 0;
      ASSERT_TRUE(worker.make("off:normalize=" + normalize, 0, {first ? 3u : 1u}).ok());
      const auto step = worker.step();
      ASSERT_TRUE(step.ok());
      EXPECT_EQ(step->computed, first ? 3u : 1u);
      float sum = Worker::gradient_of(1, 0, 0);
      for (uint64_t position = 0; position < 3; ++position) sum += Worker::gradient_of(0, position, 0);
      EXPECT_NEAR(worker.averages[0] * step->scale, sum / (normalize == "max" ? 6 : 4), 1e-6);
    });
  }
}

TEST(DropCompute, without_drops_gives_the_bits_of_plain_averaging) {
  in_group(3, [](Group& group) {
    Worker worker(group, 4, constant_latency);
    ASSERT_TRUE(worker.make("0.001:warmup=0,min_computed=4,normalize=computed").ok());
    std::vector<float> parameters = worker.parameters;
    for (uint64_t step = 0; step < 5; ++step) {
      ASSERT_TRUE(worker.step().ok());
      std::vector<float> gradient(parameters.size());
      for (uint64_t position = 4 * step; position < 4 * step + 4; ++position) {
        for (size_t i = 0; i < gradient.size(); ++i) gradient[i] += Worker::gradient_of(group.rank(), position, i) / 4.0f;
      }
      ASSERT_TRUE(group.all_reduce(std::span(gradient), {.op = ReduceOp::avg}).ok());
      for (size_t i = 0; i < gradient.size(); ++i) parameters[i] -= 0.1f * gradient[i];
      EXPECT_EQ(worker.parameters, parameters);
    }
  });
}

TEST(DropCompute, a_step_without_any_computed_micro_batch_is_not_applied) {
  in_group(2, [](Group& group) {
    Worker worker(group, 3, [](uint32_t, uint64_t step, uint32_t) { return step > 5 ? 100 * ms : ms; });
    // The recorded time of a micro-batch exceeds the threshold, so the rule `before` then computes nothing.
    ASSERT_TRUE(worker.make("0.05:rule=before,min_computed=0,warmup=5,calibration=10").ok());
    worker.run(15);
    const auto parameters = worker.parameters;
    const auto step = worker.step();
    ASSERT_TRUE(step.ok());
    EXPECT_EQ(step->computed, 0u);
    EXPECT_FALSE(step->applied);
    EXPECT_EQ(worker.parameters, parameters);
  });
}

// Check 22 of docs/design/methods/drop_compute.md. The ranks' shards differ in length. Each micro-batch must be used once per
// epoch, whatever is dropped.
TEST(DropCompute, uses_each_micro_batch_once_in_an_epoch_and_ends_it_on_all_ranks_at_once) {
  in_group(3, [](Group& group) {
    const uint64_t shard = 20 + 7 * group.rank();
    Worker worker(group, 4, [](uint32_t rank, uint64_t step, uint32_t m) {
      return static_cast<int64_t>(1 + mix64(step * 100 + rank * 10 + m) % 3) * ms;
    });
    ASSERT_TRUE(worker.make("0.003:warmup=2", shard).ok());
    uint64_t cut = 0;
    for (uint64_t epoch = 0; epoch < 3; ++epoch) {
      std::multiset<uint64_t> used;
      for (;;) {
        const auto step = worker.step();
        ASSERT_TRUE(step.ok()) << step.status().to_string();
        used.insert(worker.positions.begin(), worker.positions.end());
        EXPECT_EQ(worker.positions.size(), step->computed);
        cut += step->planned - step->computed;
        uint64_t ended = step->epoch_ended ? 1 : 0;
        ASSERT_TRUE(group.all_reduce(std::span(&ended, 1)).ok());
        ASSERT_TRUE(ended == 0 || ended == 3);
        if (step->epoch_ended) break;
      }
      ASSERT_EQ(used.size(), shard);
      EXPECT_EQ(*used.begin(), epoch * shard);
      EXPECT_EQ(*used.rbegin(), (epoch + 1) * shard - 1);
      EXPECT_EQ(std::set<uint64_t>(used.begin(), used.end()).size(), shard);
    }
    EXPECT_GT(cut, 0u);
  });
}

TEST(DropCompute, finish_reports_the_steps_since_the_last_window) {
  in_group(2, [](Group& group) {
    Worker worker(group, 4, [](uint32_t rank, uint64_t, uint32_t) { return (1 + rank) * ms; });
    ASSERT_TRUE(worker.make("0.005:warmup=3,window=10").ok());
    worker.run(3);
    EXPECT_EQ(worker.drop->finish()->steps, 0u);
    worker.run(10);
    EXPECT_EQ(worker.drop->finish()->steps, 10u);
    worker.run(4);
    const auto total = worker.drop->finish();
    ASSERT_TRUE(total.ok()) << total.status().to_string();
    EXPECT_EQ(total->first_step, 4u);
    EXPECT_EQ(total->last_step, 17u);
    EXPECT_EQ(total->steps, 14u);
    EXPECT_DOUBLE_EQ(total->drop, 1.0 / 8);
    EXPECT_EQ(worker.drop->report().steps, 4u);
    EXPECT_TRUE(worker.warnings.empty());
    EXPECT_EQ(worker.drop->finish()->steps, 14u);
    EXPECT_EQ(worker.run(11).computed, group.rank() == 0 ? 4u : 3u);
    EXPECT_EQ(worker.drop->report().steps, 10u);
  });
}

TEST(DropCompute, pause_excludes_the_time_between_steps) {
  in_group(2, [](Group& group) {
    Worker worker(group, 4, constant_latency);
    ASSERT_TRUE(worker.make("0.5:warmup=1,window=10").ok());
    for (int i = 0; i < 12; ++i) {
      ASSERT_TRUE(worker.step().ok());
      if (i % 2 == 0) continue;
      worker.drop->pause();
      worker.now += 1000 * ms;  // time between two steps, such as a validation
      worker.drop->pause();
    }
    EXPECT_EQ(worker.drop->report().steps, 10u);
    EXPECT_DOUBLE_EQ(worker.drop->report().step_mean, 0.0045);
  });
}

TEST(DropCompute, tail_discard_skips_the_samples_not_computed) {
  in_group(2, [](Group& group) {
    Worker worker(group, 4, constant_latency);
    ASSERT_TRUE(worker.make("off:tail=discard", 0, {1, 4, 2}).ok());
    ASSERT_TRUE(worker.step().ok());
    ASSERT_TRUE(worker.step().ok());
    EXPECT_EQ(worker.positions, (std::vector<uint64_t>{4, 5, 6, 7}));
    ASSERT_TRUE(worker.step().ok());
    EXPECT_EQ(worker.positions, (std::vector<uint64_t>{8, 9}));
  });
}

TEST(DropCompute, replays_the_counts_of_another_run_bit_for_bit) {
  std::mutex mutex;
  std::vector<std::vector<uint32_t>> counts(3);
  std::vector<float> parameters;
  const auto latency = [](uint32_t rank, uint64_t step, uint32_t m) {
    return static_cast<int64_t>(1 + mix64(step * 100 + rank * 10 + m) % 5) * ms;
  };
  in_group(3, [&](Group& group) {
    Worker worker(group, 6, latency);
    ASSERT_TRUE(worker.make("0.012:warmup=1").ok());
    for (int i = 0; i < 20; ++i) {
      const auto step = worker.step();
      ASSERT_TRUE(step.ok());
      const std::lock_guard lock(mutex);
      counts[group.rank()].push_back(step->computed);
    }
    const std::lock_guard lock(mutex);
    if (!parameters.empty()) {
      EXPECT_EQ(worker.parameters, parameters);
    }
    parameters = worker.parameters;
  });
  ASSERT_NE(counts[0], counts[1]);
  in_group(3, [&](Group& group) {
    Worker worker(group, 6, constant_latency);
    ASSERT_TRUE(worker.make("off", 0, counts[group.rank()]).ok());
    worker.run(20);
    EXPECT_EQ(worker.parameters, parameters);
    EXPECT_EQ(worker.step()->computed, 6u);
  });
}

TEST(DropCompute, returns_the_sample_of_an_abandoned_micro_batch) {
  in_group(2, [](Group& group) {
    Worker worker(group, 4, [](uint32_t, uint64_t step, uint32_t m) { return step == 3 && m == 2 ? 9 * ms : ms; });
    worker.abandons = true;
    ASSERT_TRUE(worker.make("0.006:warmup=2").ok());
    worker.run(2);
    const auto step = worker.step();
    ASSERT_TRUE(step.ok());
    EXPECT_EQ(step->computed, 1u);
    EXPECT_EQ(worker.positions, (std::vector<uint64_t>{8, 9}));
    ASSERT_TRUE(worker.step().ok());
    EXPECT_EQ(worker.positions[0], 9u);
  });
}

}  // namespace
}  // namespace unisono
