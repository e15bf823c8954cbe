#include "unisono/shard_optimizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/random.h"

namespace unisono {
namespace {

using Values = std::vector<float>;

constexpr size_t shard_elements = 37;

float gradient_at(uint64_t step, size_t i) { return static_cast<float>(Random(step * 1000 + i).unit() - 0.4); }
float start_at(size_t i) { return static_cast<float>(i) / 8 - 2; }

Values run(ShardOptimizer& optimizer, uint64_t steps, float scale = 1) {
  optimizer.resize(shard_elements);
  Values values(shard_elements), gradient(shard_elements);
  for (size_t i = 0; i < shard_elements; ++i) values[i] = start_at(i);
  for (uint64_t step = 1; step <= steps; ++step) {
    for (size_t i = 0; i < shard_elements; ++i) gradient[i] = gradient_at(step, i);
    optimizer.update({.begin = 0, .values = values, .gradient = gradient, .scale = scale, .step = step});
  }
  return values;
}

// The formulae in the documentation of torch.optim.SGD and torch.optim.AdamW, computed in double.
double sgd_reference(const SgdOptions& o, size_t i, uint64_t steps) {
  double theta = start_at(i), b = 0;
  for (uint64_t t = 1; t <= steps; ++t) {
    double g = gradient_at(t, i);
    g += o.weight_decay * theta;
    if (o.momentum != 0) {
      b = t == 1 ? g : o.momentum * b + g;
      g = o.nesterov ? g + o.momentum * b : b;
    }
    theta -= o.rate * g;
  }
  return theta;
}

double adamw_reference(const AdamWOptions& o, size_t i, uint64_t steps, double scale) {
  double theta = start_at(i), m = 0, v = 0;
  for (uint64_t t = 1; t <= steps; ++t) {
    const double g = scale * gradient_at(t, i);
    theta -= o.rate * o.weight_decay * theta;
    m = o.beta1 * m + (1 - o.beta1) * g;
    v = o.beta2 * v + (1 - o.beta2) * g * g;
    const double m_hat = m / (1 - std::pow(o.beta1, double(t))), v_hat = v / (1 - std::pow(o.beta2, double(t)));
    theta -= o.rate * m_hat / (std::sqrt(v_hat) + o.epsilon);
  }
  return theta;
}

TEST(ShardOptimizer, sgd_equals_pytorch) {
  for (const SgdOptions& options : {SgdOptions{.rate = 0.05},
                                    {.rate = 0.05, .weight_decay = 0.1},
                                    {.rate = 0.05, .momentum = 0.9},
                                    {.rate = 0.05, .momentum = 0.9, .weight_decay = 0.1},
                                    {.rate = 0.05, .momentum = 0.8, .weight_decay = 0.1, .nesterov = true}}) {
    const auto optimizer = make_sgd(options);
    const auto values = run(*optimizer, 25);
    for (size_t i = 0; i < shard_elements; ++i)
      EXPECT_NEAR(values[i], sgd_reference(options, i, 25), 2e-6) << i << " momentum " << options.momentum;
  }
}

TEST(ShardOptimizer, adamw_equals_pytorch) {
  for (const AdamWOptions& options :
       {AdamWOptions{}, {.rate = 0.02, .beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-3, .weight_decay = 0.2}}) {
    for (const float scale : {1.0f, 0.25f}) {
      for (const uint64_t steps : {1, 2, 30}) {
        const auto optimizer = make_adamw(options);
        const auto values = run(*optimizer, steps, scale);
        for (size_t i = 0; i < shard_elements; ++i)
          EXPECT_NEAR(values[i], adamw_reference(options, i, steps, scale), 2e-6) << i << " after " << steps;
      }
    }
  }
}

// Computed by hand. First step of SGD: the gradient with weight decay is 0.5 + 0.1 * 2 = 0.7, so the momentum is 0.7 and the
// value 2 - 0.1 * 0.7 = 1.93. Second step: the momentum is 0.9 * 0.7 + 0.5 + 0.1 * 1.93. Apart from weight decay, AdamW's first
// step equals the rate for any gradient.
TEST(ShardOptimizer, first_steps_equal_hand_computed_values) {
  const auto sgd = make_sgd({.rate = 0.1, .momentum = 0.9, .weight_decay = 0.1});
  sgd->resize(1);
  Values value{2};
  const Values gradient{0.5f};
  sgd->update({.values = value, .gradient = gradient, .step = 1});
  EXPECT_NEAR(value[0], 1.93, 1e-6);
  sgd->update({.values = value, .gradient = gradient, .step = 2});
  EXPECT_NEAR(value[0], 1.93 - 0.1 * (0.63 + 0.5 + 0.193), 1e-6);
  const auto adamw = make_adamw({.rate = 0.01, .weight_decay = 0.5});
  adamw->resize(1);
  value = {2};
  adamw->update({.values = value, .gradient = gradient, .step = 1});
  EXPECT_NEAR(value[0], 2 * (1 - 0.005) - 0.01, 1e-6);
}

TEST(ShardOptimizer, updates_by_range_equal_one_update_of_the_whole_shard) {
  for (const bool adam : {false, true}) {
    const auto make = [&] {
      return adam ? make_adamw({}) : make_sgd({.momentum = 0.9, .weight_decay = 0.1, .nesterov = true});
    };
    const auto whole = make(), cut = make();
    const auto expected = run(*whole, 5);
    cut->resize(shard_elements);
    Values values(shard_elements), gradient(shard_elements);
    for (size_t i = 0; i < shard_elements; ++i) values[i] = start_at(i);
    for (uint64_t step = 1; step <= 5; ++step) {
      for (size_t i = 0; i < shard_elements; ++i) gradient[i] = gradient_at(step, i);
      for (const size_t begin : {30, 0, 10, 20}) {
        const size_t count = std::min<size_t>(10, shard_elements - begin);
        cut->update({.begin = begin,
                     .values = std::span(values).subspan(begin, count),
                     .gradient = std::span(gradient).subspan(begin, count),
                     .step = step});
      }
    }
    EXPECT_EQ(values, expected);
    for (uint32_t i = 0; i < cut->state_count(); ++i) EXPECT_TRUE(std::ranges::equal(cut->state(i), whole->state(i)));
  }
}

TEST(ShardOptimizer, elements_outside_the_update_do_not_change) {
  const auto optimizer = make_adamw({.weight_decay = 0.5});
  optimizer->resize(4);
  Values values{1, 1, 1, 1};
  const Values gradient{1, 1};
  optimizer->update({.begin = 1, .values = std::span(values).subspan(1, 2), .gradient = gradient, .step = 1});
  EXPECT_EQ(values[0], 1);
  EXPECT_EQ(values[3], 1);
  EXPECT_NE(values[1], 1);
  EXPECT_EQ(optimizer->state(0)[3], 0);
  EXPECT_NE(optimizer->state(1)[2], 0);
}

TEST(ShardOptimizer, the_rate_may_change_between_steps) {
  const auto optimizer = make_sgd({.rate = 0.5});
  optimizer->resize(1);
  Values value{0};
  const Values gradient{1};
  optimizer->update({.values = value, .gradient = gradient, .step = 1});
  optimizer->set_rate(0.25);
  EXPECT_EQ(optimizer->rate(), 0.25);
  optimizer->update({.values = value, .gradient = gradient, .step = 2});
  EXPECT_EQ(value[0], -0.75f);
}

TEST(ShardOptimizer, resize_starts_with_zero_state) {
  for (const bool adam : {false, true}) {
    const auto optimizer = adam ? make_adamw({}) : make_sgd({.momentum = 0.5});
    run(*optimizer, 3);
    optimizer->resize(5);
    for (uint32_t i = 0; i < optimizer->state_count(); ++i) EXPECT_TRUE(std::ranges::equal(optimizer->state(i), Values(5)));
  }
  EXPECT_EQ(make_sgd({})->state_count(), 0u);
  EXPECT_EQ(make_sgd({.momentum = 0.5})->state_count(), 1u);
}

}  // namespace
}  // namespace unisono
