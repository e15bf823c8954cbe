// DropCompute::run() with real clocks. With the rule `at`, a micro-batch may outlast its step. Also tests random runs over TCP.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <vector>

#include "base/concat.h"
#include "base/random.h"
#include "testing/group_of_threads.h"
#include "unisono/drop_compute.h"

namespace unisono {
namespace {

using test::in_group;

Result<DropCompute> make(const Group& group, uint32_t micro_batches, const std::string& options) {
  return DropCompute::make(group, micro_batches, *DropOptions::parse(options));
}

TEST(DropComputeRun, computes_averages_and_applies_with_each_rule) {
  for (const std::string options :
       {"off", "off:rule=at", "1000:warmup=0", "1000:warmup=0,rule=at", "auto:rule=at,calibration=3,min_calibration=3"}) {
    SCOPED_TRACE(options);
    in_group(2, [&](Group& group) {
      auto drop = make(group, 3, options);
      ASSERT_TRUE(drop.ok()) << drop.status().to_string();
      std::vector<float> gradients(4), applied;
      const DropWork work{
          .compute =
              [&](uint64_t position, std::span<float> out) {
                for (float& value : out) value += static_cast<float>(position + 10 * group.rank()) / 3;
                return Status();
              },
          .reduce = {},
          .apply = [&](std::span<const float> averages, const DropStep&) { applied.assign(averages.begin(), averages.end()); }};
      for (int step = 0; step < 3; ++step) {
        const auto done = drop->run(gradients, work);
        ASSERT_TRUE(done.ok()) << done.status().to_string();
        EXPECT_EQ(done->computed, 3u);
        for (const float value : applied) EXPECT_FLOAT_EQ(value, static_cast<float>(3 * step + 1) + 5);
        EXPECT_EQ(gradients, std::vector<float>(4));
      }
    });
  }
}

// Rank 0's first micro-batch ends after rank 1 has done four steps. Rank 0 contributes zeros to these steps. It applies their
// averages when the micro-batch has ended.
TEST(DropComputeRun, rule_at_contributes_zeros_while_a_micro_batch_runs_and_applies_each_step_once) {
  std::atomic<uint32_t> others_done{0};
  in_group(2, [&](Group& group) {
    auto drop = make(group, 2, "0.0005:rule=at,warmup=0,min_computed=0");
    ASSERT_TRUE(drop.ok());
    const bool slow = group.rank() == 0;
    std::vector<float> gradients(3);
    std::vector<std::pair<uint64_t, float>> applied;
    std::vector<uint64_t> begun;
    const DropWork work{
        .compute =
            [&](uint64_t position, std::span<float> out) {
              if (slow) begun.push_back(position);
              for (uint32_t done; slow && begun.size() == 1 && (done = others_done) < 4;) others_done.wait(done);
              for (float& value : out) value += 0.5f;
              return Status();
            },
        .reduce = {},
        .apply = [&](std::span<const float> averages, const DropStep& step) { applied.emplace_back(step.step, averages[0]); }};
    std::vector<float> expected;
    for (int step = 0; step < 4; ++step) {
      const auto done = drop->run(gradients, work);
      ASSERT_TRUE(done.ok()) << done.status().to_string();
      if (slow) {
        EXPECT_EQ(done->computed, 0u);
      } else {
        ++others_done;
        others_done.notify_all();
      }
    }
    ASSERT_TRUE(drop->drain(work).ok());
    std::vector<float> mine;
    for (size_t i = 0; i < applied.size(); ++i) {
      if (i > 0) {
        EXPECT_LT(applied[i - 1].first, applied[i].first);
      }
      mine.push_back(applied[i].second);
    }
    // Both ranks must have applied the same steps. On a slow machine they may have applied no step.
    uint64_t counts[] = {mine.size(), mine.size()};
    ASSERT_TRUE(group.all_reduce(std::span<uint64_t>(counts, 1), {.op = ReduceOp::max}).ok());
    ASSERT_EQ(counts[0], counts[1]);
    std::vector<float> sums = mine;
    if (!mine.empty()) {
      ASSERT_TRUE(group.all_reduce(std::span(sums), {.op = ReduceOp::avg}).ok());
    }
    EXPECT_EQ(sums, mine);
    if (slow) {
      EXPECT_EQ(begun, (std::vector<uint64_t>{0}));
    }
  });
}

TEST(DropComputeRun, an_error_of_compute_is_returned_by_the_step) {
  for (const std::string options : {"off", "1000:warmup=0,rule=at"}) {
    in_group(1, [&](Group& group) {
      auto drop = make(group, 2, options);
      std::vector<float> gradients(3);
      const auto done =
          drop->run(gradients, {.compute = [](uint64_t, std::span<float>) { return Status(Code::unavailable, "no data"); },
                                .reduce = {},
                                .apply = {}});
      EXPECT_EQ(done.status(), Status(Code::unavailable, "no data"));
    });
  }
}

// Check 19 of docs/design/methods/drop_compute.md: random compute times and thresholds, all rules, over TCP. No rank may hang,
// and parameters must be equal on all ranks after every step.
TEST(DropComputeRun, at_random_over_tcp_all_ranks_keep_the_same_parameters) {
  constexpr uint32_t world = 8, micro_batches = 5, steps_each = 34;
  Options tcp;
  tcp.transport = "tcp";
  for (const std::string rule : {"after", "before", "at"}) {
    const uint64_t seed = std::chrono::steady_clock::now().time_since_epoch().count() & 0xFFFF;
    SCOPED_TRACE(concat(rule, ", seed ", seed));
    in_group(
        world,
        [&](Group& group) {
          Random shared(seed), own(seed + 1 + group.rank());
          const double threshold = 1e-4 + 4e-4 * shared.unit();
          auto drop = make(group, micro_batches,
                           concat(threshold, ":warmup=2,calibration=3,min_calibration=3,rule=", rule,
                                  rule == "before" ? ",min_computed=0" : ""));
          ASSERT_TRUE(drop.ok()) << drop.status().to_string();
          std::vector<float> parameters(300, 1.0f), gradients(300);
          std::vector<uint64_t> positions;
          const DropWork work{.compute =
                                  [&](uint64_t position, std::span<float> out) {
                                    positions.push_back(position);
                                    const auto until =
                                        std::chrono::steady_clock::now() +
                                        std::chrono::nanoseconds(own.below(own.below(10) == 0 ? 400'000 : 30'000));
                                    while (std::chrono::steady_clock::now() < until) continue;
                                    for (size_t i = 0; i < out.size(); ++i)
                                      out[i] += 1.0f / static_cast<float>(1 + (position * 7 + group.rank() + i) % 31);
                                    return Status();
                                  },
                              .reduce = {},
                              .apply =
                                  [&](std::span<const float> averages, const DropStep&) {
                                    for (size_t i = 0; i < averages.size(); ++i) parameters[i] -= 0.01f * averages[i];
                                  }};
          uint64_t position = 0;
          for (uint32_t step = 0; step < steps_each; ++step) {
            positions.clear();
            const auto done = drop->run(gradients, work);
            ASSERT_TRUE(done.ok()) << done.status().to_string();
            EXPECT_LE(done->computed, micro_batches);
            if (rule == "after") {
              EXPECT_GE(done->computed, 1u);
            }
            ASSERT_TRUE(drop->drain(work).ok());
            for (size_t i = 0; i < done->computed; ++i) ASSERT_EQ(positions[i], position + i);
            position += done->computed;
            auto mean = parameters;
            ASSERT_TRUE(group.all_reduce(std::span(mean), {.op = ReduceOp::max}).ok());
            ASSERT_EQ(mean, parameters) << "step " << step;
          }
        },
        tcp);
  }
}

}  // namespace
}  // namespace unisono
