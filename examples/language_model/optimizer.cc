#include "language_model/optimizer.h"

#include <algorithm>
#include <cmath>

namespace language_model {

namespace {

double norm_of(std::span<const float> values) {
  constexpr size_t lane_count = 16;
  double lanes[lane_count] = {};
  size_t i = 0;
  for (; i + lane_count <= values.size(); i += lane_count) {
    for (size_t lane = 0; lane < lane_count; ++lane) {
      const double value = values[i + lane];
      lanes[lane] += value * value;
    }
  }
  for (size_t lane = 0; i < values.size(); ++i, ++lane) lanes[lane] += static_cast<double>(values[i]) * values[i];
  double total = 0;
  for (const double lane : lanes) total += lane;
  return std::sqrt(total);
}

// One step's numbers, equal for all parameters of a region.
struct Step {
  float clip;  // what gradients are multiplied by
  float rate;
  float decay;       // what parameters are multiplied by
  float mean_scale;  // the averages start at zero: 1 / (1 - beta^t) corrects for that
  float square_scale;
  float beta_1, beta_2, epsilon;
};

void update(const Step s, size_t count, const float* __restrict gradient, float* __restrict mean, float* __restrict square,
            float* __restrict parameter) {
  for (size_t i = 0; i < count; ++i) {
    const float g = gradient[i] * s.clip;
    mean[i] = s.beta_1 * mean[i] + (1 - s.beta_1) * g;
    square[i] = s.beta_2 * square[i] + (1 - s.beta_2) * g * g;
    const float direction = mean[i] * s.mean_scale / (std::sqrt(square[i] * s.square_scale) + s.epsilon);
    parameter[i] = parameter[i] * s.decay - s.rate * direction;
  }
}

}  // namespace

float learning_rate(const OptimizerOptions& options, size_t step) {
  const double peak = options.learning_rate;
  if (step < options.warm_up_steps) {
    return static_cast<float>(peak * static_cast<double>(step + 1) / static_cast<double>(options.warm_up_steps));
  }
  if (step >= options.steps) return 0;
  return static_cast<float>(peak * static_cast<double>(options.steps - step) /
                            static_cast<double>(options.steps - options.warm_up_steps));
}

AdamW::AdamW(const ParameterLayout& layout, const OptimizerOptions& options)
    : options_(options), regions_(layout.regions), mean_(layout.count), square_(layout.count) {}

double AdamW::step(std::span<const float> gradients, std::span<float> parameters) {
  const double norm = norm_of(gradients);
  beta_1_power_ *= options_.beta_1;
  beta_2_power_ *= options_.beta_2;
  const float rate = learning_rate(options_, step_++);
  Step s{.clip = norm > options_.norm_max ? static_cast<float>(options_.norm_max / norm) : 1.0f,
         .rate = rate,
         .decay = 1.0f,
         .mean_scale = static_cast<float>(1 / (1 - beta_1_power_)),
         .square_scale = static_cast<float>(1 / (1 - beta_2_power_)),
         .beta_1 = options_.beta_1,
         .beta_2 = options_.beta_2,
         .epsilon = options_.epsilon};
  for (const Region& region : regions_) {
    s.decay = region.deviation > 0 ? 1.0f - rate * options_.weight_decay : 1.0f;
    update(s, region.count(), gradients.data() + region.offset, mean_.data() + region.offset, square_.data() + region.offset,
           parameters.data() + region.offset);
  }
  return norm;
}

}  // namespace language_model
