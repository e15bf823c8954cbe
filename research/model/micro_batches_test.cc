#include "research/model/micro_batches.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

#include "research/model/test_support.h"

namespace language_model {
namespace {

constexpr uint64_t seed = 5;
constexpr size_t sequences = 2;

ModelShape small_shape() { return {.layers = 1, .width = 32, .heads = 2, .hidden = 48, .context = 24}; }

struct Bench {
  explicit Bench(const MicroBatchOptions& options)
      : text(repeating_text(small_shape().context)),
        model(small_shape(), sequences * options.count),
        micro_batches(options, model, {text, seed, sequences}),
        parameters(model.layout().count) {
    initialise(model.layout(), seed, parameters);
  }
  Text text;
  Model<float> model;
  MicroBatches micro_batches;
  Buffer<float> parameters;
};

TEST(MicroBatches, micro_batches_in_order_have_the_sequences_of_the_whole_share) {
  const Bench bench({.count = 3});
  for (const uint64_t step : {0, 1, 7}) {
    for (const size_t part : {0, 2}) {
      Batch all;
      for (uint64_t m = 0; m < 3; ++m) {
        const auto batch = bench.micro_batches.batch_of({.part = part, .position = 3 * step + m});
        all.inputs.insert(all.inputs.end(), batch.inputs.begin(), batch.inputs.end());
        all.targets.insert(all.targets.end(), batch.targets.begin(), batch.targets.end());
      }
      const auto whole = training_batch(bench.text, seed, step, {part * 3 * sequences, 3 * sequences});
      EXPECT_EQ(all.inputs, whole.inputs) << step << " " << part;
      EXPECT_EQ(all.targets, whole.targets) << step << " " << part;
    }
  }
}

TEST(MicroBatches, gradients_and_losses_add_up_to_those_of_the_whole_share) {
  Bench bench({.count = 4});
  const size_t count = bench.parameters.size();
  Buffer<float> added(count + loss_elements), whole(count);
  for (uint32_t m = 0; m < 4; ++m) bench.micro_batches.add({.part = 1, .position = m}, bench.parameters, added, [](size_t) {});
  const auto batch = training_batch(bench.text, seed, 0, {4 * sequences, 4 * sequences});
  const double loss = bench.model.forward(bench.parameters, batch);
  bench.model.backward(bench.parameters, batch, whole, [](size_t) {});
  double difference = 0, size = 0;
  for (size_t i = 0; i < count; ++i) difference += std::pow(added[i] - whole[i], 2), size += std::pow(whole[i], 2);
  EXPECT_LT(std::sqrt(difference / size), 1e-5);
  EXPECT_NEAR(loss_of(added), loss, 1e-5);
  EXPECT_EQ(added.back(), 4);
}

TEST(MicroBatches, ready_ranges_hold_the_gradient_and_do_not_change) {
  Bench bench({.count = 2});
  Buffer<float> gradients(bench.parameters.size() + loss_elements);
  bench.micro_batches.add({}, bench.parameters, gradients, [](size_t) {});
  const auto before = gradients;
  std::vector<Buffer<float>> seen;
  std::vector<size_t> firsts;
  bench.micro_batches.add({.position = 1, .number = 1}, bench.parameters, gradients, [&](size_t first) {
    firsts.push_back(first);
    seen.push_back(gradients);
  });
  ASSERT_GT(firsts.size(), 3u);
  EXPECT_TRUE(std::is_sorted(firsts.rbegin(), firsts.rend()));
  EXPECT_EQ(firsts.back(), 0u);
  for (size_t i = 0; i < seen.size(); ++i) {
    EXPECT_TRUE(std::equal(seen[i].begin() + static_cast<ptrdiff_t>(firsts[i]), seen[i].end(),
                           gradients.begin() + static_cast<ptrdiff_t>(firsts[i])))
        << firsts[i];
    EXPECT_TRUE(std::equal(before.begin(), before.begin() + static_cast<ptrdiff_t>(firsts[i]), seen[i].begin())) << firsts[i];
  }
}

TEST(MicroBatches, a_delay_depends_on_seed_step_rank_and_number_only) {
  const auto law = unisono::sim::DelayModel::parse("L:mu=0.02").value();
  const Bench bench({.count = 3, .delay = law}), with_base({.count = 3, .delay = law, .delay_base = true});
  const MicroBatch which{.part = 2, .position = 10, .step = 4, .number = 1};
  auto random = unisono::sim::random_of(seed, 4, 2, 1);
  const double delay = law.delay(random);
  EXPECT_GT(delay, 0);
  EXPECT_NEAR(bench.micro_batches.delay_s(which), delay, 1e-12);
  EXPECT_NEAR(with_base.micro_batches.delay_s(which), delay + 0.02, 1e-12);
  auto other = which;
  other.position = 11;
  EXPECT_EQ(bench.micro_batches.delay_s(other), bench.micro_batches.delay_s(which));
  for (const auto& differs : {MicroBatch{1, 10, 4, 1}, MicroBatch{2, 10, 5, 1}, MicroBatch{2, 10, 4, 2}})
    EXPECT_NE(bench.micro_batches.delay_s(differs), bench.micro_batches.delay_s(which));
}

TEST(MicroBatches, a_slow_worker_is_later_by_its_factor_and_no_worker_is_early) {
  const auto law = unisono::sim::DelayModel::parse("constant:base=0.5,slow=1x3").value();
  const Bench slow({.count = 1, .delay = law}),
      noise({.count = 1, .delay = unisono::sim::DelayModel::parse("G:mean=1,sd=0.5").value()}), none({.count = 1});
  EXPECT_EQ(slow.micro_batches.delay_s({.part = 0}), 0);
  EXPECT_NEAR(slow.micro_batches.delay_s({.part = 1}), 1, 1e-12);
  EXPECT_EQ(none.micro_batches.delay_s({.part = 1}), 0);
  size_t zeros = 0;
  for (uint64_t step = 0; step < 100; ++step) {
    EXPECT_GE(noise.micro_batches.delay_s({.step = step}), 0);
    zeros += noise.micro_batches.delay_s({.step = step}) == 0;
  }
  EXPECT_GT(zeros, 20u);
  EXPECT_LT(zeros, 80u);
}

TEST(MicroBatches, a_delay_really_passes_before_anything_is_added) {
  Bench bench({.count = 1, .delay = unisono::sim::DelayModel::parse("constant:base=0.01").value(), .delay_base = true});
  Buffer<float> gradients(bench.parameters.size() + loss_elements);
  const auto start = std::chrono::steady_clock::now();
  std::chrono::steady_clock::duration until_first{0};
  bench.micro_batches.add({}, bench.parameters, gradients, [&](size_t) {
    if (until_first.count() == 0) until_first = std::chrono::steady_clock::now() - start;
  });
  EXPECT_GE(until_first, std::chrono::milliseconds(10));
}

}  // namespace
}  // namespace language_model
