#include "research/model/model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <limits>
#include <random>

namespace language_model {
namespace {

constexpr uint64_t seed = 20240611;

ModelShape small_shape() { return {.layers = 2, .width = 12, .heads = 2, .hidden = 10, .context = 35}; }

Batch random_batch(size_t sequences, size_t context, std::mt19937_64& generator) {
  Batch batch{.sequences = sequences, .inputs = {}, .targets = {}};
  for (size_t i = 0; i < sequences * context; ++i) {
    batch.inputs.push_back(static_cast<uint8_t>(generator() % 256));
    batch.targets.push_back(static_cast<uint8_t>(generator() % 256));
  }
  return batch;
}

// Parameters unlike the initial ones: gains are not 1, and logits are not small.
std::vector<double> random_parameters(const ParameterLayout& layout, std::mt19937_64& generator) {
  std::normal_distribution<double> normal;
  std::vector<double> parameters(layout.count);
  for (const Region& region : layout.regions) {
    for (size_t i = region.offset; i < region.offset + region.count(); ++i) {
      parameters[i] = region.deviation > 0 ? 0.4 * normal(generator) : 1 + 0.3 * normal(generator);
    }
  }
  return parameters;
}

struct Checked {
  explicit Checked(const ModelShape& shape, size_t sequences = 2) : generator(seed), model(shape, sequences) {
    std::cout << "seed " << seed << "\n";
    parameters = random_parameters(model.layout(), generator);
    batch = random_batch(sequences, shape.context, generator);
    gradients.resize(parameters.size(), std::numeric_limits<double>::quiet_NaN());
    loss = model.forward(parameters, batch);
    model.backward(parameters, batch, gradients, [](size_t) {});
  }
  // Returns the derivative along `direction`, by central differences of fourth order. The error is about step^4, the noise
  // 1e-15 / step.
  double slope(const std::vector<double>& direction) {
    constexpr double step = 1e-4;
    const auto loss_at = [&](double distance) {
      std::vector<double> moved(parameters);
      for (size_t i = 0; i < moved.size(); ++i) moved[i] += distance * direction[i];
      return model.loss(moved, batch);
    };
    return (8 * (loss_at(step) - loss_at(-step)) - (loss_at(2 * step) - loss_at(-2 * step))) / (12 * step);
  }
  std::mt19937_64 generator;
  Model<double> model;
  std::vector<double> parameters, gradients;
  Batch batch;
  double loss = 0;
};

TEST(Model, gradient_of_single_parameters_agrees_with_finite_differences) {
  Checked c(small_shape());
  for (const Region& region : c.model.layout().regions) {
    for (int sample = 0; sample < 24; ++sample) {
      size_t i = region.offset + c.generator() % region.count();
      // Take an embedding row of a byte in the batch: the gradients of the other rows are zero.
      if (region.name == "embedding") i = c.batch.inputs[c.generator() % c.batch.inputs.size()] * 12u + c.generator() % 12;
      std::vector<double> direction(c.parameters.size());
      direction[i] = 1;
      EXPECT_NEAR(c.gradients[i], c.slope(direction), 2e-9) << region.name << " element " << i - region.offset;
    }
  }
}

TEST(Model, gradient_of_every_region_agrees_with_finite_differences_along_random_directions) {
  Checked c(small_shape());
  for (const Region& region : c.model.layout().regions) {
    for (int sample = 0; sample < 4; ++sample) {
      std::vector<double> direction(c.parameters.size());
      double expected = 0;
      for (size_t i = region.offset; i < region.offset + region.count(); ++i) {
        direction[i] = c.generator() % 2 == 0 ? 1 : -1;
        expected += direction[i] * c.gradients[i];
      }
      const double measured = c.slope(direction);
      EXPECT_NEAR(expected, measured, 1e-7 * std::max(1.0, std::abs(measured))) << region.name;
    }
  }
}

TEST(Model, gradient_is_right_at_the_smallest_and_at_odd_shapes) {
  for (const ModelShape& shape : {ModelShape{.layers = 1, .width = 2, .heads = 1, .hidden = 1, .context = 1},
                                  ModelShape{.layers = 1, .width = 6, .heads = 3, .hidden = 7, .context = 32},
                                  ModelShape{.layers = 3, .width = 10, .heads = 1, .hidden = 33, .context = 33}}) {
    Checked c(shape, 1);
    std::vector<double> direction(c.parameters.size());
    double expected = 0;
    for (size_t i = 0; i < direction.size(); ++i) {
      direction[i] = c.generator() % 2 == 0 ? 1 : -1;
      expected += direction[i] * c.gradients[i];
    }
    const double measured = c.slope(direction);
    EXPECT_NEAR(expected, measured, 1e-6 * std::max(1.0, std::abs(measured)));
  }
}

TEST(Model, float_kernels_of_every_target_agree_with_double) {
  const ModelShape shape{.layers = 2, .width = 48, .heads = 3, .hidden = 40, .context = 70};
  Checked c(shape);
  const std::vector<float> parameters(c.parameters.begin(), c.parameters.end());
  for (const Kernels<float>* target : supported_kernels()) {
    SCOPED_TRACE(target->name);
    Model<float> model(shape, 2, *target);
    std::vector<float> gradients(parameters.size());
    EXPECT_NEAR(model.forward(parameters, c.batch), c.loss, 2e-5);
    model.backward(parameters, c.batch, gradients, [](size_t) {});
    for (const Region& region : model.layout().regions) {
      double error = 0, norm = 0;
      for (size_t i = region.offset; i < region.offset + region.count(); ++i) {
        error += std::pow(gradients[i] - c.gradients[i], 2);
        norm += std::pow(c.gradients[i], 2);
      }
      EXPECT_LT(std::sqrt(error), 2e-4 * std::sqrt(norm)) << region.name;
    }
  }
}

TEST(Model, same_input_gives_same_bits) {
  std::mt19937_64 generator(seed);
  const ModelShape shape{.layers = 2, .width = 48, .heads = 3, .hidden = 40, .context = 70};
  Model<float> model(shape, 2), other(shape, 3);
  std::vector<float> parameters(model.layout().count), first(parameters.size()), second(parameters.size());
  initialise(model.layout(), seed, parameters);
  const Batch batch = random_batch(2, shape.context, generator);
  const double loss = model.forward(parameters, batch);
  model.backward(parameters, batch, first, [](size_t) {});
  other.loss(parameters, random_batch(3, shape.context, generator));  // leaves other values in the buffers of `other`
  EXPECT_EQ(loss, other.forward(parameters, batch));
  other.backward(parameters, batch, second, [](size_t) {});
  EXPECT_EQ(first, second);
}

TEST(Model, later_bytes_do_not_change_the_loss_of_earlier_ones) {
  Checked c(small_shape(), 1);
  std::vector<double> before(256), after(256);
  for (const size_t position : {0, 1, 20, 31, 32, 33}) {
    c.model.loss(c.parameters, c.batch);
    c.model.next_probabilities(position, before);
    Batch changed = c.batch;
    for (size_t i = position + 1; i < changed.inputs.size(); ++i) changed.inputs[i] ^= 0x55;
    c.model.loss(c.parameters, changed);
    c.model.next_probabilities(position, after);
    EXPECT_EQ(before, after) << position;
    changed.inputs[position] ^= 0x55;
    c.model.loss(c.parameters, changed);
    c.model.next_probabilities(position, after);
    EXPECT_NE(before, after) << position;
  }
}

TEST(Model, ready_falls_to_zero_and_ready_gradients_do_not_change) {
  std::mt19937_64 generator(seed);
  Model<float> model(small_shape(), 2);
  std::vector<float> parameters(model.layout().count), gradients(parameters.size());
  initialise(model.layout(), seed, parameters);
  const Batch batch = random_batch(2, small_shape().context, generator);
  model.forward(parameters, batch);
  std::vector<size_t> offsets;
  std::vector<std::vector<float>> seen;
  model.backward(parameters, batch, gradients, [&](size_t first) {
    offsets.push_back(first);
    seen.emplace_back(gradients.begin() + static_cast<ptrdiff_t>(first), gradients.end());
  });
  ASSERT_EQ(offsets.size(), model.layout().regions.size());
  for (size_t i = 0; i < offsets.size(); ++i) {
    EXPECT_EQ(offsets[i], model.layout().regions[offsets.size() - 1 - i].offset);
    EXPECT_TRUE(std::equal(seen[i].begin(), seen[i].end(), gradients.begin() + static_cast<ptrdiff_t>(offsets[i])));
  }
  EXPECT_EQ(offsets.back(), 0u);
}

TEST(Model, first_loss_is_that_of_a_uniform_guess) {
  std::mt19937_64 generator(seed);
  Model<float> model({}, 2);
  std::vector<float> parameters(model.layout().count);
  initialise(model.layout(), seed, parameters);
  EXPECT_NEAR(model.loss(parameters, random_batch(2, ModelShape{}.context, generator)), std::log(256.0), 0.05);
  EXPECT_GE(model.layout().count, 1'000'000u);
}

TEST(Model, a_parameter_that_is_not_a_number_makes_the_loss_not_a_number) {
  std::mt19937_64 generator(seed);
  Model<float> model(small_shape(), 1);
  std::vector<float> parameters(model.layout().count);
  initialise(model.layout(), seed, parameters);
  parameters[model.layout().norm] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(model.loss(parameters, random_batch(1, small_shape().context, generator))));
}

TEST(ModelShape, refuses_shapes_that_cannot_be_computed) {
  EXPECT_TRUE(ModelShape{}.validate().ok());
  EXPECT_FALSE((ModelShape{.layers = 0}.validate().ok()));
  EXPECT_FALSE((ModelShape{.width = 100, .heads = 3}.validate().ok()));
  // head width 9 / 3 is odd, and cannot be rotated in pairs
  EXPECT_FALSE((ModelShape{.width = 9, .heads = 3}.validate().ok()));
  EXPECT_FALSE((ModelShape{.hidden = 0}.validate().ok()));
  EXPECT_FALSE((ModelShape{.context = 0}.validate().ok()));
}

TEST(Kernels, swiglu_is_accurate_from_minus_to_plus_infinity) {
  std::vector<float> gates;
  for (float gate = -110; gate < 110; gate += 0.0371f) gates.push_back(gate);
  for (const float gate : {0.0f, -0.0f, 1e-30f, -1e-30f, 1e30f, -1e30f}) gates.push_back(gate);
  for (const Kernels<float>* target : supported_kernels()) {
    SCOPED_TRACE(target->name);
    for (const float gate : gates) {
      const float gate_up[2] = {gate, 1};
      float out = -1;
      target->swiglu({1, 1, gate_up, &out});
      const double exact = gate / (1 + std::exp(-static_cast<double>(gate)));
      EXPECT_NEAR(out, exact, 3e-7 * std::abs(exact) + 1e-20 * std::abs(gate)) << gate;
    }
  }
}

TEST(Kernels, cross_entropy_bears_large_logits_and_certainty) {
  for (const Kernels<float>* target : supported_kernels()) {
    SCOPED_TRACE(target->name);
    std::vector<float> logits(vocabulary_size, -3e4f);
    logits[7] = 3e4f;
    const uint8_t right = 7, wrong = 8;
    const Matrix<float> row{logits.data(), 1, vocabulary_size, vocabulary_size};
    EXPECT_NEAR(target->cross_entropy({row, &right, 0}), 0, 1e-6);
    EXPECT_NEAR(target->cross_entropy({row, &wrong, 0}), 6e4, 1);
    EXPECT_NEAR(target->cross_entropy({row, &wrong, 1}), 6e4, 1);
    EXPECT_NEAR(logits[7], 1, 1e-6);
    EXPECT_NEAR(logits[8], -1, 1e-6);
  }
}

TEST(Kernels, products_agree_with_the_definition_at_odd_sizes_and_strides) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<float> normal;
  for (const Kernels<float>* target : supported_kernels()) {
    for (const auto& [m, n, k] : {std::array<size_t, 3>{1, 1, 1}, {3, 5, 7}, {33, 17, 65}, {64, 48, 1}, {1, 130, 31}}) {
      for (const int mode : {0, 1, 2}) {
        const bool at = mode == 1, bt = mode == 2;
        const size_t a_stride = (at ? m : k) + 3, b_stride = (bt ? k : n) + 1, out_stride = n + 2;
        std::vector<float> a((at ? k : m) * a_stride), b((bt ? n : k) * b_stride), out(m * out_stride, 0.5f);
        for (float& x : a) x = normal(generator);
        for (float& x : b) x = normal(generator);
        target->multiply({.a = {a.data(), at ? k : m, at ? m : k, a_stride},
                          .b = {b.data(), bt ? n : k, bt ? k : n, b_stride},
                          .out = {out.data(), m, n, out_stride},
                          .transpose_a = at,
                          .transpose_b = bt,
                          .accumulate = true,
                          .scale = 2});
        for (size_t i = 0; i < m; ++i) {
          double exact = 0.5;
          for (size_t l = 0; l < k; ++l) {
            exact += 2.0 * (at ? a[l * a_stride + i] : a[i * a_stride + l]) * (bt ? b[l] : b[l * b_stride]);
          }
          EXPECT_NEAR(out[i * out_stride], exact, 1e-4) << target->name << " mode " << mode;
          if (i + 1 == m) break;
          EXPECT_EQ(out[i * out_stride + n], 0.5f) << "written between the rows";
        }
      }
    }
  }
}

}  // namespace
}  // namespace language_model
