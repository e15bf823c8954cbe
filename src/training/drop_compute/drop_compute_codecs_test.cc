// DropCompute together with compression: codecs, and the gradient reducer with error feedback. Some ranks compute nothing in
// some steps.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <mutex>

#include "base/random.h"
#include "testing/group_of_threads.h"
#include "training/drop_compute/dropper.h"
#include "training/reducer/gradient_reducer_test_support.h"

namespace unisono {
namespace {

using test::in_group;
using test::kept_by;
using test::Ledger;
using test::model;
using test::normals;
using test::ReducerRank;
using test::Values;

constexpr uint32_t world = 3, micro_batches = 4;
constexpr uint64_t steps = 24;

// Returns how many micro-batches a rank computes in a step: 0 to 4; in step 8 no rank computes any.
uint32_t count_of(uint32_t rank, uint64_t step) {
  return step == 8 ? 0 : static_cast<uint32_t>(mix64(100 * step + rank) % (micro_batches + 1));
}

// Makes a dropper that replays the numbers of count_of(). Its clock advances by a microsecond per call.
std::unique_ptr<internal::Dropper> replaying(Group& group, const std::string& options) {
  auto parsed = *DropOptions::parse(options);
  for (uint64_t step = 1; step <= steps; ++step) parsed.replay.push_back(count_of(group.rank(), step));
  auto made = internal::Dropper::make(group, micro_batches, parsed, {}, [now = int64_t{0}]() mutable { return now += 1000; });
  EXPECT_TRUE(made.ok()) << made.status().to_string();
  return *std::move(made);
}

// Adds the gradient of one micro-batch.
void compute(internal::Dropper& drop, uint32_t rank, uint32_t tensor, std::span<float> gradients) {
  const auto one = normals(11, drop.position(), 100 * rank + tensor, gradients.size());
  for (size_t i = 0; i < gradients.size(); ++i) gradients[i] += one[i] / micro_batches;
}

// Checks that the values are equal on all ranks, bit by bit.
void expect_equal_on_all_ranks(Group& group, std::span<const float> values) {
  std::vector<float> largest(values.begin(), values.end()), least = largest;
  ASSERT_TRUE(group.all_reduce(std::span(largest), {.op = ReduceOp::max, .codec = Codec()}).ok());
  ASSERT_TRUE(group.all_reduce(std::span(least), {.op = ReduceOp::min, .codec = Codec()}).ok());
  EXPECT_TRUE(std::equal(values.begin(), values.end(), largest.begin()));
  EXPECT_TRUE(std::equal(values.begin(), values.end(), least.begin()));
}

// Returns the dropped share over all steps and ranks, computed from count_of(). Reports must show the same share.
double dropped() {
  uint64_t computed = 0;
  for (uint64_t step = 1; step <= steps; ++step) {
    for (uint32_t rank = 0; rank < world; ++rank) computed += count_of(rank, step);
  }
  return 1 - static_cast<double>(computed) / static_cast<double>(steps * world * micro_batches);
}

// The group's default codec is lossy too; counts and tables of times must be sent exactly.
TEST(DropComputeCodecs, partial_gradients_by_few_bits_are_the_same_on_all_ranks_and_counts_are_exact) {
  for (const std::string codec : {"int8", "int4"}) {
    for (const std::string normalize : {"max", "computed"}) {
      SCOPED_TRACE(codec + ", " + normalize);
      Options options;
      options.codec = codec;
      in_group(
          world,
          [&](Group& group) {
            auto drop = replaying(group, "off:warmup=0,window=24,normalize=" + normalize);
            std::vector<float> parameters(1000, 1.0f), gradients(1000), exact(1000);
            for (uint64_t step = 1; step <= steps; ++step) {
              std::fill(gradients.begin(), gradients.end(), 0.0f);
              ASSERT_TRUE(drop->begin_step().ok());
              while (drop->next()) compute(*drop, group.rank(), 0, gradients);
              exact = gradients;
              ASSERT_TRUE(group.all_reduce(std::span(exact), {.op = ReduceOp::avg, .codec = Codec()}).ok());
              const auto reduced =
                  group.all_reduce(std::span(gradients),
                                   {.op = ReduceOp::avg, .schedule = ScheduleKind::two_step, .codec = *Codec::parse(codec)});
              ASSERT_TRUE(reduced.ok()) << reduced.status().to_string();
              const auto ended = drop->end_step();
              ASSERT_TRUE(ended.ok()) << ended.status().to_string();
              uint32_t all = 0;
              for (uint32_t rank = 0; rank < world; ++rank) all += count_of(rank, step);
              EXPECT_EQ(ended->computed, count_of(group.rank(), step));
              EXPECT_EQ(ended->applied, all > 0);
              EXPECT_EQ(ended->scale, normalize == "max" || all == 0
                                          ? 1
                                          : static_cast<float>(static_cast<double>(world * micro_batches) / all));
              // Zeros are exact. Otherwise each of two encodings loses a small part of the largest value.
              double error = 0, most = 0;
              for (size_t i = 0; i < exact.size(); ++i)
                error = std::max<double>(error, std::abs(gradients[i] - exact[i])),
                most = std::max<double>(most, std::abs(exact[i]));
              EXPECT_LE(error, most * (codec == "int8" ? 0.03 : 0.5)) << "step " << step;
              EXPECT_EQ(most == 0, all == 0);
              for (size_t i = 0; i < parameters.size() && ended->applied; ++i)
                parameters[i] -= 0.1f * ended->scale * gradients[i];
              ASSERT_NO_FATAL_FAILURE(expect_equal_on_all_ranks(group, parameters));
            }
            ASSERT_TRUE(drop->begin_step().ok());
            EXPECT_EQ(drop->report().steps, steps);
            EXPECT_DOUBLE_EQ(drop->report().drop, dropped());
          },
          options);
    }
  }
}

// Checks error feedback in a step in which this rank computed nothing. The state of each compressed tensor must change all the
// same.
void expect_memory_went_on(const std::string& feedback, FeedbackStore& before, FeedbackStore& after) {
  for (const auto* name : {"a", "c", "e"}) {
    if (feedback == "ef14") {
      EXPECT_NE(after[name].residual, before[name].residual) << name << ": nothing was sent of what was left over";
      continue;
    }
    ASSERT_EQ(after[name].momentum.size(), before[name].momentum.size());
    for (size_t i = 0; i < after[name].momentum.size(); ++i)
      ASSERT_NEAR(after[name].momentum[i], 0.9f * before[name].momentum[i], 1e-6f)
          << name << ": the mean must take in a gradient of zero";
  }
}

// EF21M: `mean` must be the mean over all ranks of `known`, the values that each rank has sent.
void expect_mean_of_known(Group& group, ReducerRank& rank) {
  auto store = kept_by(rank);
  for (auto& [name, state] : store) {
    if (state.known.empty()) continue;
    ASSERT_TRUE(group.all_reduce(std::span(state.known), {.op = ReduceOp::avg}).ok());
    for (size_t i = 0; i < state.known.size(); ++i) ASSERT_NEAR(state.known[i], state.mean[i], 1e-5f) << name;
  }
}

TEST(DropComputeCodecs, partial_gradients_by_the_reducer_lose_nothing_and_are_the_same_on_all_ranks) {
  for (const std::string feedback : {"ef14", "ef21m"}) {
    SCOPED_TRACE(feedback);
    Ledger ledger;
    in_group(world, [&](Group& group) {
      auto drop = replaying(group, "off:warmup=0,window=24");
      ReducerRank rank(group);
      ASSERT_TRUE(rank.make(test::arc("ratio=0.2,rank=4,feedback=" + feedback)).ok());
      std::vector<float> parameters;
      for (uint64_t step = 1; step <= steps; ++step) {
        for (auto& tensor : rank.values) std::fill(tensor.begin(), tensor.end(), 0.0f);
        ASSERT_TRUE(drop->begin_step().ok());
        while (drop->next()) {
          for (uint32_t i = 0; i < model.size(); ++i) compute(*drop, group.rank(), i, rank.values[i]);
        }
        ledger.give(rank);
        auto before = kept_by(rank);
        const auto report = rank.step();
        ASSERT_TRUE(report.ok()) << report.status().to_string();
        ASSERT_TRUE(report->applied);
        ledger.deliver(rank);
        const auto ended = drop->end_step();
        ASSERT_TRUE(ended.ok()) << ended.status().to_string();
        EXPECT_EQ(ended->computed, count_of(group.rank(), step));
        auto after = kept_by(rank);
        if (ended->computed == 0 && step > 1) {
          ASSERT_NO_FATAL_FAILURE(expect_memory_went_on(feedback, before, after));
        }
        if (feedback == "ef21m") {
          ASSERT_NO_FATAL_FAILURE(expect_mean_of_known(group, rank));
        }
        size_t at = 0;
        for (const auto& tensor : rank.values) {
          parameters.resize(std::max(parameters.size(), at + tensor.size()), 1.0f);
          for (const float value : tensor) parameters[at++] -= 0.1f * value;
        }
        ASSERT_NO_FATAL_FAILURE(expect_equal_on_all_ranks(group, parameters));
      }
      if (feedback == "ef14") ledger.keep(rank);
      ASSERT_TRUE(drop->begin_step().ok());
      EXPECT_DOUBLE_EQ(drop->report().drop, dropped());
    });
    if (feedback == "ef14") ledger.expect_balanced();
  }
}

}  // namespace
}  // namespace unisono
